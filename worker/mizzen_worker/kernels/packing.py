"""Owns the packed form of weights for the native kernels; see ``native/kernels.h`` for the layout.

Pure array work. A matrix is packed without rounding: ``unpack`` gives the very same weights.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mizzen_worker.kernels.quantised_matrix import QuantisedMatrix

LANES = 16

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedFormat:
    """One format that the kernels were compiled for; ``choose_tile`` in linear.inc lists them."""

    bits: int
    block: int
    has_half_scales: bool
    has_minimums: bool


FORMATS = (
    PackedFormat(bits=4, block=32, has_half_scales=True, has_minimums=False),
    PackedFormat(bits=4, block=32, has_half_scales=True, has_minimums=True),
    PackedFormat(bits=4, block=32, has_half_scales=False, has_minimums=True),
    PackedFormat(bits=4, block=16, has_half_scales=False, has_minimums=False),
    PackedFormat(bits=4, block=16, has_half_scales=False, has_minimums=True),
    PackedFormat(bits=8, block=32, has_half_scales=True, has_minimums=False),
    PackedFormat(bits=8, block=32, has_half_scales=True, has_minimums=True),
    PackedFormat(bits=8, block=32, has_half_scales=False, has_minimums=True),
    PackedFormat(bits=8, block=16, has_half_scales=False, has_minimums=False),
    PackedFormat(bits=8, block=16, has_half_scales=False, has_minimums=True),
)
"""Smallest first: the first that can hold a matrix without rounding is taken."""


def _is_half_exact(values: Floats) -> bool:
    with np.errstate(over="ignore"):
        return bool(np.array_equal(values.astype(np.float16).astype(np.float32), values))


def _code_offset(matrix: QuantisedMatrix) -> int:
    """What must be added to signed codes to make them unsigned."""
    return 0 if matrix.minimums is not None else 1 << (matrix.code_bits - 1)


def choose_format(parts: Sequence[QuantisedMatrix]) -> PackedFormat:
    """The smallest format that holds all parts without rounding; the last one holds any."""
    bits = max(part.code_bits for part in parts)
    block = min(part.block_size for part in parts)
    needs_minimums = any(part.minimums is not None for part in parts) or (
        len({_code_offset(part) for part in parts}) > 1
    )
    for candidate in FORMATS:
        if candidate.bits < bits or block % candidate.block:
            continue
        if needs_minimums != candidate.has_minimums:
            continue
        arrays = [part.scales for part in parts] + [_minimums(part) for part in parts]
        if candidate.has_half_scales and not all(_is_half_exact(array) for array in arrays):
            continue
        return candidate
    return FORMATS[-1]


def _minimums(part: QuantisedMatrix) -> Floats:
    """Minimums of the part as unsigned codes see them."""
    if part.minimums is not None:
        return part.minimums
    return part.scales * np.float32(-_code_offset(part))


def _tiled(values: npt.NDArray[np.generic]) -> npt.NDArray[np.generic]:
    """[rows, n] to [tiles, n, 16], rows padded with zeros."""
    rows, count = values.shape
    tiles = -(-rows // LANES)
    padded = np.zeros((tiles * LANES, count), dtype=values.dtype)
    padded[:rows] = values
    return padded.reshape(tiles, LANES, count).swapaxes(1, 2)


def _pack_codes(codes: Bytes, packed_format: PackedFormat) -> Bytes:
    """[rows, columns] unsigned codes to [tiles, blocks, code bytes]."""
    groups_per_block = packed_format.block // 4
    tiled = _tiled(codes)
    tiles, columns, _ = tiled.shape
    blocks = columns // packed_format.block
    grouped = tiled.reshape(tiles, blocks, groups_per_block, 4, LANES).swapaxes(3, 4)
    groups: Bytes = np.ascontiguousarray(grouped, dtype=np.uint8).reshape(
        tiles, blocks, groups_per_block, 4 * LANES
    )
    if packed_format.bits == 4:
        high = np.left_shift(groups[:, :, 1::2], 4, dtype=np.uint8)
        groups = np.bitwise_or(groups[:, :, 0::2], high)
    return groups.reshape(tiles, blocks, -1)


def _pack_floats(values: Floats, packed_format: PackedFormat) -> Bytes:
    """[rows, blocks] to [tiles, blocks, bytes]."""
    dtype = np.float16 if packed_format.has_half_scales else np.float32
    tiled = np.ascontiguousarray(_tiled(values.astype(dtype)))
    return tiled.view(np.uint8).reshape(tiled.shape[0], tiled.shape[1], -1)


def pack_quantised(parts: Sequence[QuantisedMatrix]) -> tuple[Bytes, PackedFormat, int]:
    """Rows of all parts in order; returns the bytes, their format and the code offset."""
    chosen = choose_format(parts)
    codes = [part.codes.astype(np.int16) + _code_offset(part) for part in parts]
    factors = [part.block_size // chosen.block for part in parts]
    scales = [
        part.scales.repeat(factor, axis=1) for part, factor in zip(parts, factors, strict=True)
    ]
    sections = [
        _pack_codes(np.concatenate(codes).astype(np.uint8), chosen),
        _pack_floats(np.concatenate(scales), chosen),
    ]
    if not chosen.has_minimums:
        return np.concatenate(sections, axis=2).reshape(-1), chosen, _code_offset(parts[0])
    minimums = [
        _minimums(part).repeat(factor, axis=1) for part, factor in zip(parts, factors, strict=True)
    ]
    sections.append(_pack_floats(np.concatenate(minimums), chosen))
    return np.concatenate(sections, axis=2).reshape(-1), chosen, 0


def pack_dense(values: npt.NDArray[np.generic]) -> Bytes:
    """[rows, columns] of any type (bfloat16 as int16) to [tiles][columns][16] bytes."""
    return np.ascontiguousarray(_tiled(values)).view(np.uint8).reshape(-1)
