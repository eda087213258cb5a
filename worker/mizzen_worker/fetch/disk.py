"""Owns how files reach the disk: whole or not at all, and a full disk as our own error."""

import contextlib
import errno
import os
from collections.abc import Iterator
from pathlib import Path

from mizzen_worker.contracts.errors import FetchError
from mizzen_worker.contracts.fetch import FetchReason

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_REFUSED = (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EISDIR, errno.EEXIST)


@contextlib.contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn what the file system says into ``FetchError``."""
    try:
        yield
    except OSError as error:
        place = error.filename if isinstance(error.filename, str) else path
        reason, remedy = _meaning(error.errno)
        message = f"{place}: cannot be written: {error.strerror or error}; {remedy}"
        raise FetchError(message, reason=reason) from error


def _meaning(number: int | None) -> tuple[FetchReason, str]:
    if number in _FULL:
        return FetchReason.NO_SPACE, "give the volume more space"
    if number in _REFUSED:
        remedy = "let it be a folder that this user may write (a pod's fsGroup)"
        return FetchReason.INVALID_SOURCE, remedy
    return FetchReason.UNREACHABLE, "look after the volume"


def sync_file(path: Path) -> None:
    """Make a file's content last."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make renames in a folder last."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, content: bytes) -> None:
    """Write a small file so that it is seen as a whole, also after a crash."""
    part = path.with_name(f"{path.name}.new")
    with part.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    part.replace(path)
    sync_folder(path.parent)


def free_bytes(folder: Path) -> int:
    """What an ordinary user may still write."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize
