"""Owns reading the key-value part of a GGUF file; owns no tensors.

The file is untrusted: every count and length is checked against the bytes that are there, and
whatever does not fit is one ``ModelLoadError``.
"""

import mmap
import struct
from pathlib import Path
from typing import TypeAlias

from mizzen_worker.contracts.errors import ModelLoadError

MetadataValue: TypeAlias = "int | float | bool | str | list[MetadataValue]"

_SCALARS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_STRING = 8
_ARRAY = 9
_MAX_KEYS = 1 << 16
_MAX_DEPTH = 4


class _Cursor:
    """A position in the mapped file."""

    def __init__(self, view: mmap.mmap, path: Path) -> None:
        self._view = view
        self._path = path
        self._at = 0

    def take(self, num_bytes: int) -> bytes:
        if num_bytes > len(self._view) - self._at:
            msg = f"{self._path}: the file ends early; download it again"
            raise ModelLoadError(msg)
        self._at += num_bytes
        return self._view[self._at - num_bytes : self._at]

    def unpack(self, layout: struct.Struct) -> int | float | bool:
        value: int | float | bool = layout.unpack(self.take(layout.size))[0]
        return value

    def count(self) -> int:
        return int(self.unpack(_SCALARS[10]))

    def string(self) -> str:
        return self.take(self.count()).decode(errors="replace")

    def value(self, kind: int, depth: int = 0) -> MetadataValue:
        if kind in _SCALARS:
            return self.unpack(_SCALARS[kind])
        if kind == _STRING:
            return self.string()
        if kind == _ARRAY and depth < _MAX_DEPTH:
            return self._array(depth)
        msg = f"{self._path}: metadata type {kind} is not part of GGUF"
        raise ModelLoadError(msg)

    def _array(self, depth: int) -> MetadataValue:
        kind = int(self.unpack(_SCALARS[4]))
        length = self.count()
        if kind in _SCALARS:
            layout = _SCALARS[kind]
            return [entry for (entry,) in layout.iter_unpack(self.take(length * layout.size))]
        return [self.value(kind, depth + 1) for _ in range(length)]


def read_gguf_metadata(path: Path) -> dict[str, MetadataValue]:
    """Read every key of a GGUF file (version 2 or 3, little endian)."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            return _read(_Cursor(view, path), path)
    except (OSError, ValueError) as error:
        msg = f"{path}: cannot be read: {error}"
        raise ModelLoadError(msg) from error


def _read(cursor: _Cursor, path: Path) -> dict[str, MetadataValue]:
    if cursor.take(4) != b"GGUF":
        msg = f"{path}: is no GGUF file; give a .gguf file or a model folder"
        raise ModelLoadError(msg)
    version = int(cursor.unpack(_SCALARS[4]))
    if version not in {2, 3}:
        msg = f"{path}: GGUF version {version} is not 2 or 3; convert it again"
        raise ModelLoadError(msg)
    cursor.count()
    num_keys = cursor.count()
    if num_keys > _MAX_KEYS:
        msg = f"{path}: {num_keys} metadata keys are more than {_MAX_KEYS}"
        raise ModelLoadError(msg)
    metadata: dict[str, MetadataValue] = {}
    for _ in range(num_keys):
        key = cursor.string()
        metadata[key] = cursor.value(int(cursor.unpack(_SCALARS[4])))
    return metadata
