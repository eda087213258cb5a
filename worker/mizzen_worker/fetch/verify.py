"""Owns comparing a model's folder with its manifest; changes nothing."""

import hashlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from mizzen_worker.contracts.errors import FetchError
from mizzen_worker.contracts.fetch import MANIFEST_FILE, STATE_FOLDER, FetchReason
from mizzen_worker.fetch.manifest import Manifest, ManifestFile, decode_manifest

_MAX_NAMED = 5


def read_manifest(folder: Path) -> Manifest | None:
    """None where there is none; raises ``FetchError`` for one that cannot be read."""
    path = folder / STATE_FOLDER / MANIFEST_FILE
    try:
        content = path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        msg = f"{path}: cannot be read: {error.strerror}"
        raise _failed(msg) from error
    return decode_manifest(content, str(path))


def require_sizes(folder: Path, manifest: Manifest) -> None:
    """Raise ``FetchError`` (VerifyFailed) unless every file is there with its size."""
    _require_none(folder, [p for file in manifest.files if (p := _size_problem(folder, file))])


def require_contents(
    folder: Path, manifest: Manifest, *, num_threads: int, checked: Callable[[str, int], None]
) -> None:
    """Likewise for every byte, and for files that the manifest does not name.

    ``checked`` is told of each file, and raises to stop.
    """

    def problem(file: ManifestFile) -> str:
        found = _size_problem(folder, file) or _content_problem(folder, file)
        checked(file.path, file.size)
        return found

    with ThreadPoolExecutor(num_threads) as pool:
        problems = [found for found in pool.map(problem, manifest.files) if found]
    known = {folder / file.path for file in manifest.files} | {folder / STATE_FOLDER}
    problems += [
        f"{path.relative_to(folder)} is not part of it"
        for path in sorted(folder.rglob("*"))
        if path not in known and folder / STATE_FOLDER not in path.parents
        if path.is_symlink() or not path.is_dir()
    ]
    _require_none(folder, problems)


def _size_problem(folder: Path, file: ManifestFile) -> str:
    path = folder / file.path
    if path.is_symlink() or not path.is_file():
        return f"{file.path} is missing"
    size = path.stat().st_size
    return "" if size == file.size else f"{file.path} has {size} of {file.size} bytes"


def _content_problem(folder: Path, file: ManifestFile) -> str:
    try:
        with (folder / file.path).open("rb") as opened:
            found = hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        return f"{file.path} cannot be read: {error.strerror}"
    return "" if found == file.sha256 else f"{file.path} has other content"


def _require_none(folder: Path, problems: list[str]) -> None:
    if problems:
        named = "; ".join(problems[:_MAX_NAMED])
        more = f"; and {len(problems) - _MAX_NAMED} more" if len(problems) > _MAX_NAMED else ""
        msg = f"{folder}: {named}{more}; remove the folder and fetch it again"
        raise _failed(msg)


def _failed(message: str) -> FetchError:
    return FetchError(message, reason=FetchReason.VERIFY_FAILED)
