"""Owns reading a GGUF file's header: key-value part and table of tensors; reads no tensor data.

The file is untrusted: every count and length is checked against the bytes that are there, and
whatever does not fit is one ``ModelLoadError``.
"""

import mmap
import struct
from dataclasses import dataclass
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
_MAX_TENSORS = 1 << 20
_DEFAULT_ALIGNMENT = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufTensor:
    """One entry of the table: ``sizes`` innermost first, ``offset`` in bytes from the file's start.

    Nothing says yet that the file is long enough for it.
    """

    name: str
    sizes: tuple[int, ...]
    type_number: int
    offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GgufHeader:
    """Everything before the tensor data."""

    metadata: dict[str, MetadataValue]
    tensors: tuple[GgufTensor, ...]


class _Cursor:
    """A position in the mapped file."""

    def __init__(self, view: mmap.mmap, path: Path) -> None:
        self._view = view
        self._path = path
        self._at = 0

    @property
    def position(self) -> int:
        """Bytes read so far."""
        return self._at

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


def read_gguf_header(path: Path) -> GgufHeader:
    """Read keys and tensor table of a GGUF file (version 2 or 3, little endian)."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as view:
            return _read(_Cursor(view, path), path)
    except (OSError, ValueError) as error:
        msg = f"{path}: cannot be read: {error}"
        raise ModelLoadError(msg) from error


def read_gguf_metadata(path: Path) -> dict[str, MetadataValue]:
    """Read every key of a GGUF file."""
    return read_gguf_header(path).metadata


def _read(cursor: _Cursor, path: Path) -> GgufHeader:
    if cursor.take(4) != b"GGUF":
        msg = f"{path}: is no GGUF file; give a .gguf file or a model folder"
        raise ModelLoadError(msg)
    version = int(cursor.unpack(_SCALARS[4]))
    if version not in {2, 3}:
        msg = f"{path}: GGUF version {version} is not 2 or 3; convert it again"
        raise ModelLoadError(msg)
    num_tensors, num_keys = cursor.count(), cursor.count()
    if num_keys > _MAX_KEYS or num_tensors > _MAX_TENSORS:
        msg = (
            f"{path}: {num_keys} metadata keys and {num_tensors} tensors are more than "
            f"{_MAX_KEYS} and {_MAX_TENSORS}"
        )
        raise ModelLoadError(msg)
    metadata: dict[str, MetadataValue] = {}
    for _ in range(num_keys):
        key = cursor.string()
        metadata[key] = cursor.value(int(cursor.unpack(_SCALARS[4])))
    return GgufHeader(metadata=metadata, tensors=_read_tensors(cursor, path, num_tensors, metadata))


def _read_tensors(
    cursor: _Cursor, path: Path, num_tensors: int, metadata: dict[str, MetadataValue]
) -> tuple[GgufTensor, ...]:
    relative: list[GgufTensor] = []
    for _ in range(num_tensors):
        name = cursor.string()
        num_sizes = int(cursor.unpack(_SCALARS[4]))
        if num_sizes > _MAX_DEPTH:
            msg = (
                f"{path}: tensor {name} has {num_sizes} dimensions, at most {_MAX_DEPTH} are known"
            )
            raise ModelLoadError(msg)
        sizes = tuple(cursor.count() for _ in range(num_sizes))
        type_number = int(cursor.unpack(_SCALARS[4]))
        offset = cursor.count()
        relative.append(GgufTensor(name=name, sizes=sizes, type_number=type_number, offset=offset))
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT)
    if not isinstance(alignment, int) or alignment < 1:
        msg = f"{path}: general.alignment is {alignment!r}; convert the file again"
        raise ModelLoadError(msg)
    start = -(-cursor.position // alignment) * alignment
    return tuple(
        GgufTensor(
            name=entry.name,
            sizes=entry.sizes,
            type_number=entry.type_number,
            offset=start + entry.offset,
        )
        for entry in relative
    )
