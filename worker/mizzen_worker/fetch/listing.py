"""Owns what a source holds, as one frozen value, and which of it is fetched. Pure.

Invariants: a path is relative, of plain names, and never leads out of the model's folder or into
our own state; no two files contend for one place; nothing that runs code when it is loaded is
chosen. Sizes are bytes.
"""

import enum
import fnmatch
from collections.abc import Sequence

import msgspec

from mizzen_worker.contracts.errors import FetchError
from mizzen_worker.contracts.fetch import PARTIAL_FOLDER, STATE_FOLDER, FetchReason
from mizzen_worker.fetch.source import invalid

MAX_FILES = 10_000
MAX_FILE_BYTES = 1 << 42
PART_SUFFIX = ".part"
_WEIGHTS = (".safetensors", ".gguf")
_BESIDE = (".json", ".txt", ".model", ".jinja", ".tiktoken")
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl", ".pickle")
_MAX_PATH, _MAX_NAME, _SHOWN = 512, 200, 120


class HashKind(enum.Enum):
    """What a source may say of a file's content; ``GIT_BLOB`` is the SHA-1 of git's object."""

    SHA256 = "sha256"
    GIT_BLOB = "git-blob"
    SHA1 = "sha1"
    MD5 = "md5"
    CRC32 = "crc32"


class Stated(msgspec.Struct, frozen=True):
    """A hash that the source states, in lower-case hex."""

    kind: HashKind
    value: str


class RemoteFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file of a source.

    ``locator`` is the source's own name of it; ``etag`` is of an object that may change under it.
    """

    path: str
    size: int
    locator: str
    stated: Stated | None = None
    etag: str | None = None


class Compression(enum.Enum):
    """How a layer's archive is packed."""

    NONE = "none"
    GZIP = "gzip"
    ZSTD = "zstd"


class Archive(msgspec.Struct, frozen=True, kw_only=True):
    """A tar archive of files; the upper ones of a list win."""

    blob: RemoteFile
    compression: Compression


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """A source at one moment: what it resolved to, and all that it holds there."""

    revision: str
    files: tuple[RemoteFile, ...] = ()
    archives: tuple[Archive, ...] = ()

    @property
    def downloads(self) -> tuple[RemoteFile, ...]:
        """Everything to be fetched, the largest first, so that none is left alone at the end."""
        every = (*self.files, *(archive.blob for archive in self.archives))
        return tuple(sorted(every, key=lambda file: (-file.size, file.path)))

    @property
    def total_bytes(self) -> int:
        """Bytes to be fetched."""
        return sum(file.size for file in self.downloads)


def is_safe_file(path: str) -> bool:
    """Tell whether loading such a file runs no code."""
    return path.lower().endswith((*_WEIGHTS, *_BESIDE))


def require_sound_path(path: str) -> None:
    """Raise ``FetchError`` for a path that could lead out of the folder or into our state."""
    names = path.split("/")
    is_sound = (
        len(path) <= _MAX_PATH
        and path.isprintable()
        and "\\" not in path
        and all(name not in {"", ".", ".."} and len(name) <= _MAX_NAME for name in names)
        and names[0] not in {STATE_FOLDER, PARTIAL_FOLDER}
    )
    if not is_sound:
        msg = (
            f"the source holds a file at {path[:_SHOWN]!r}, which is no plain path inside a "
            "folder; do not use this source"
        )
        raise invalid(msg)


def choose_paths(paths: Sequence[str], allow: Sequence[str]) -> tuple[str, ...]:
    """The paths to fetch, sorted; raises ``FetchError`` where none holds weights we may load.

    Without ``allow`` everything safe is taken but second copies of the same weights: GGUF files
    and ``consolidated`` ones beside a Hugging Face model.
    """
    for path in paths:
        require_sound_path(path)
    matching = [path for path in paths if not allow or _matches(path, allow)]
    safe = [path for path in matching if is_safe_file(path)]
    chosen = sorted(safe if allow else _without_copies(safe))
    if not any(path.lower().endswith(_WEIGHTS) for path in chosen):
        raise _no_weights(paths, matching, allow)
    _require_one_gguf(chosen)
    _require_apart(chosen)
    return tuple(chosen)


def choose_files(files: Sequence[RemoteFile], allow: Sequence[str]) -> tuple[RemoteFile, ...]:
    """Likewise, for files; also refuses sizes that no file has."""
    if len(files) > MAX_FILES:
        msg = f"the source holds more than {MAX_FILES} files; name a smaller part of it"
        raise invalid(msg)
    chosen = set(choose_paths([file.path for file in files], allow))
    kept = tuple(sorted((f for f in files if f.path in chosen), key=lambda file: file.path))
    for file in kept:
        if not 0 <= file.size <= MAX_FILE_BYTES:
            msg = f"{file.path}: a size of {file.size} bytes is none; check the source"
            raise invalid(msg)
    return kept


def model_root(paths: Sequence[str]) -> str:
    """The folder of an image that holds the model: the highest one with a model's own files.

    Empty for the top, else with a slash at its end.
    """
    telling = [
        path
        for path in paths
        if path.rpartition("/")[2] == "config.json" or path.lower().endswith(_WEIGHTS)
    ]
    folders = [path.rpartition("/")[0] for path in telling]
    if not folders:
        return ""
    top = min(folders, key=lambda folder: (folder.count("/") if folder else -1, folder))
    return f"{top}/" if top else ""


def _matches(path: str, allow: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in allow)


def _without_copies(paths: Sequence[str]) -> list[str]:
    names = {path.rpartition("/")[2] for path in paths if "/" not in path}
    is_folder_model = "config.json" in names and any(
        name.startswith("model") and name.endswith(".safetensors") for name in names
    )
    if not is_folder_model:
        return list(paths)
    return [
        path
        for path in paths
        if not path.lower().endswith(".gguf")
        and not path.rpartition("/")[2].startswith("consolidated")
    ]


def _require_one_gguf(chosen: Sequence[str]) -> None:
    """A server takes one GGUF file, so a folder of many quantisations must be asked for less."""
    found = [path for path in chosen if path.lower().endswith(".gguf")]
    if len(found) > 1 and "config.json" not in chosen:
        names = ", ".join(found[:8]) + (", ..." if len(found) > 8 else "")
        msg = f"the source holds {len(found)} GGUF files; --allow one of them: {names}"
        raise invalid(msg)


def _require_apart(chosen: Sequence[str]) -> None:
    """Refuse two files for one place: the same path, a file that is another's folder, a part."""
    places = set(chosen)
    taken = places | {f"{path}{PART_SUFFIX}" for path in chosen}
    for path in chosen:
        parts = path.split("/")
        above = {"/".join(parts[:end]) for end in range(1, len(parts))}
        if above & taken:
            msg = f"{path}: lies below what is a file too; do not use this source"
            raise invalid(msg)
    if len(places) != len(chosen):
        msg = "the source holds two files of one path; do not use this source"
        raise invalid(msg)


def _no_weights(paths: Sequence[str], matching: Sequence[str], allow: Sequence[str]) -> FetchError:
    if allow and not matching:
        return invalid(
            f"--allow {' '.join(allow)}: matches none of the source's {len(paths)} files"
        )
    pickles = [path for path in matching if path.lower().endswith(_PICKLES)]
    if pickles:
        return invalid(
            f"the source's weights are pickles ({pickles[0]}), which run code when they are "
            "loaded; use a source with safetensors or GGUF files"
        )
    if not paths:
        return FetchError("the source holds no file", reason=FetchReason.NOT_FOUND)
    taken = f" that --allow {' '.join(allow)} takes" if allow else ""
    remedy = "allow the weights too" if allow else "check the source"
    return invalid(
        f"none of {len(matching)} files{taken} holds weights as safetensors or GGUF; {remedy}"
    )
