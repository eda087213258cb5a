"""Owns the private folder of one launcher's sockets, and what killed launchers left of theirs.

Owns no sockets. A launcher holds a lock on a file in its folder for as long as it lives; the kernel
drops that lock with the process, so a folder whose lock is free belongs to nobody. Invariant: the
lock file appears locked, so a folder that is just being made is never taken for a left one.
"""

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from mizzen_worker.contracts.errors import ConfigError

_PREFIX = "mizzen-"
_LOCK = "lock"
_MAX_BYTES = 90
"""The kernel takes 107 bytes as a socket's path; its name and a slash come behind the folder's."""


@contextlib.contextmanager
def socket_folder(root: Path | None = None) -> Iterator[Path]:
    """Make a folder that only this user may enter, for its sockets carry prompts; remove it after.

    ``root`` None is the folder for temporary files. Raises ``ConfigError``.
    """
    try:
        place = Path(tempfile.gettempdir()) if root is None else root
        _remove_left(place)
        folder = Path(tempfile.mkdtemp(prefix=_PREFIX, dir=place))
    except OSError as error:
        msg = f"TMPDIR: no folder for sockets can be made ({error}); set it to one that can be used"
        raise ConfigError(msg) from error
    try:
        _require_short(folder)
        with (folder / f".{_LOCK}").open("wb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            (folder / f".{_LOCK}").rename(folder / _LOCK)
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _require_short(folder: Path) -> None:
    num_bytes = len(os.fsencode(folder))
    if num_bytes > _MAX_BYTES:
        msg = (
            f"TMPDIR: {folder} is too long for sockets, {num_bytes} bytes of at most {_MAX_BYTES};"
            " set it to a shorter path, as /tmp"
        )
        raise ConfigError(msg)


def _remove_left(place: Path) -> None:
    """Remove this user's folders whose launchers are dead; whatever cannot be is left."""
    for folder in place.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            if folder.is_symlink() or folder.stat().st_uid != os.getuid():
                continue
            with (folder / _LOCK).open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(folder, ignore_errors=True)
