"""Owns taking a model's files out of layers; writes regular files with safe names and no others.

Layers come from strangers. Whatever an entry says of owners, modes, devices or links is ignored,
nothing is written outside the folder, and the sum of sizes is bounded while it is written.
"""

import gzip
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, cast

import zstandard

from mizzen_worker.contracts.errors import FetchError
from mizzen_worker.contracts.fetch import FetchReason
from mizzen_worker.fetch.hashes import FileHash
from mizzen_worker.fetch.listing import (
    Archive,
    Compression,
    choose_paths,
    is_safe_file,
    model_root,
    require_sound_path,
)
from mizzen_worker.fetch.manifest import ManifestFile
from mizzen_worker.fetch.source import invalid

MAX_ENTRIES = 500_000
_CHUNK_BYTES = 1 << 20
_WHITEOUT, _OPAQUE = ".wh.", ".wh..wh..opq"
_BROKEN = (tarfile.TarError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError, EOFError)


@dataclass(slots=True)
class _Tree:
    """Files unpacked so far, as lower layers and then upper ones have them."""

    folder: Path
    max_bytes: int
    stop_if_asked: Callable[[], None]
    file_by_path: dict[str, ManifestFile] = field(default_factory=dict)
    links: set[str] = field(default_factory=set)
    own_paths: set[str] = field(default_factory=set)
    """Of the layer being read: what it says is gone is of those below it."""
    num_bytes: int = 0
    num_entries: int = 0


def unpack(
    archives: Sequence[Archive],
    blobs: Path,
    into: Path,
    *,
    max_bytes: int,
    stop_if_asked: Callable[[], None],
) -> tuple[dict[str, ManifestFile], frozenset[str]]:
    """Unpack into an empty folder: what is there by its path, and paths that were links.

    ``blobs`` is the folder that the archives' paths are relative to. Raises ``FetchError`` and
    ``OSError``.
    """
    if into.exists():
        shutil.rmtree(into)
    into.mkdir(parents=True)
    tree = _Tree(folder=into, max_bytes=max_bytes, stop_if_asked=stop_if_asked)
    for archive in archives:
        tree.own_paths.clear()
        try:
            for tar, entry in _entries(blobs / archive.blob.path, archive.compression):
                _take(tree, tar, entry)
        except _BROKEN as error:
            message = f"layer {archive.blob.locator}: is no sound archive: {error}"
            raise FetchError(message, reason=FetchReason.INVALID_SOURCE) from error
    return tree.file_by_path, frozenset(tree.links)


def choose_unpacked(
    unpacked: Sequence[str], links: frozenset[str], beside: Sequence[str], allow: Sequence[str]
) -> tuple[dict[str, str], frozenset[str]]:
    """What to keep of an image: place by unpacked path, and which files ``beside`` it.

    An image's model is what lies in the highest folder with a model's files; the rest is of an
    operating system. Raises ``FetchError``.
    """
    root = model_root(unpacked)
    place_by_path = {path: path.removeprefix(root) for path in unpacked if path.startswith(root)}
    linked = sorted(path for path in links if path.startswith(root) and path not in place_by_path)
    if linked:
        msg = f"{linked[0]}: is a link, which is not followed; put the file itself into the image"
        raise invalid(msg)
    chosen = set(choose_paths([*place_by_path.values(), *beside], allow))
    kept = {path: place for path, place in place_by_path.items() if place in chosen}
    return kept, frozenset(chosen & set(beside))


def _entries(
    path: Path, compression: Compression
) -> Iterator[tuple[tarfile.TarFile, tarfile.TarInfo]]:
    with ExitStack() as stack:
        stream: IO[bytes] = stack.enter_context(path.open("rb"))
        if compression is Compression.GZIP:
            stream = cast("IO[bytes]", stack.enter_context(gzip.GzipFile(fileobj=stream)))
        elif compression is Compression.ZSTD:
            reader = zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True)
            stream = cast("IO[bytes]", stack.enter_context(reader))
        tar = stack.enter_context(tarfile.open(fileobj=stream, mode="r|"))
        for entry in tar:
            yield tar, entry
            # Else the list of members grows with the archive.
            tar.members = []  # type: ignore[attr-defined]  # documented nowhere, known everywhere


def _take(tree: _Tree, tar: tarfile.TarFile, entry: tarfile.TarInfo) -> None:
    tree.num_entries += 1
    if tree.num_entries > MAX_ENTRIES:
        msg = f"the image holds more than {MAX_ENTRIES} entries; use a smaller one"
        raise invalid(msg)
    path = entry.name.removeprefix("./").rstrip("/")
    name = path.rpartition("/")[2]
    if name.startswith(_WHITEOUT):
        _remove(tree, path)
    elif is_safe_file(path):
        require_sound_path(path)
        tree.own_paths.add(path)
        tree.links.discard(path)
        if entry.isreg():
            _write(tree, tar, entry, path)
        elif entry.issym() or entry.islnk():
            _forget(tree, path)
            tree.links.add(path)


def _write(tree: _Tree, tar: tarfile.TarFile, entry: tarfile.TarInfo, path: str) -> None:
    source = tar.extractfile(entry)
    assert source is not None, "a regular file has content"
    target = tree.folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    digest = FileHash(entry.size, None)
    _forget(tree, path)
    with target.open("xb") as file:
        while chunk := source.read(_CHUNK_BYTES):
            tree.stop_if_asked()
            tree.num_bytes += len(chunk)
            if tree.num_bytes > tree.max_bytes:
                msg = f"the image's files take more than the {tree.max_bytes} bytes allowed"
                raise FetchError(
                    msg,
                    reason=FetchReason.NO_SPACE,
                )
            file.write(chunk)
            digest.update(chunk)
    size = target.stat().st_size
    tree.file_by_path[path] = ManifestFile(path=path, size=size, sha256=digest.sha256)


def _remove(tree: _Tree, whiteout: str) -> None:
    """Take away what an upper layer says is gone."""
    folder, _, name = whiteout.rpartition("/")
    gone = folder if name == _OPAQUE else f"{folder}/{name.removeprefix(_WHITEOUT)}".lstrip("/")
    for path in {*tree.file_by_path, *tree.links} - tree.own_paths:
        if path == gone or not gone or path.startswith(f"{gone}/"):
            _forget(tree, path)
            tree.links.discard(path)


def _forget(tree: _Tree, path: str) -> None:
    entry = tree.file_by_path.pop(path, None)
    if entry is not None:
        (tree.folder / path).unlink()
        tree.num_bytes -= entry.size
