"""Owns the product of the head with one row of which only the best of each block is kept.

Contract and grid: as ``gemv.py``; a block is what a program has. Value and row of an output are one
integer that sorts as they do, so that finding the best takes one reduction.
"""

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl

from mizzen_worker.kernels.gpu.dependent_launch import begin_dependent
from mizzen_worker.kernels.gpu.gemv import GemvTile, check_matrix
from mizzen_worker.kernels.gpu.row_sums import inside, load_ahead, row_pointers, row_sums

_LOWEST_KEY = tl.constexpr(-(2**63))


@triton.jit
def pack_best(value, index):
    """An int64 that sorts by value, the lowest index first among equals; NaN is above all."""
    value = tl.where(value == 0.0, 0.0, value)  # -0 equals 0
    bits = value.to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    ordered = tl.where(value != value, 0x7FFFFFFF, ordered)  # noqa: PLR0124
    return (ordered.to(tl.int64) << 32) | (0x7FFFFFFF - index).to(tl.int64)


@triton.jit
def unpack_best(key):
    """Value and index of ``pack_best``."""
    ordered = (key >> 32).to(tl.int32)
    bits = ordered ^ ((ordered >> 31) & 0x7FFFFFFF)
    index = 0x7FFFFFFF - (key & 0x7FFFFFFF).to(tl.int32)
    return bits.to(tl.float32, bitcast=True), index


@triton.jit
def _best_kernel(
    x_ptr,
    w_ptr,
    bias_ptr,
    value_ptr,
    index_ptr,
    N: tl.constexpr,
    K: tl.constexpr,
    WARPS: tl.constexpr,
    ROWS: tl.constexpr,
    AHEAD: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PDL: tl.constexpr,
):
    first = tl.program_id(0) * (WARPS * ROWS) + tl.arange(0, WARPS)
    rows = ()
    for r in tl.static_range(ROWS):
        rows = rows + (row_pointers(w_ptr, inside(first + r * WARPS, N, WARPS * ROWS), K),)
    tiles = load_ahead(rows, K, ROWS, AHEAD)
    begin_dependent(PDL)
    sums = row_sums(x_ptr, rows, tiles, 0.0, K, WARPS, ROWS, AHEAD, 0, (), 0, 0)
    best = tl.full([WARPS], _LOWEST_KEY, tl.int64)
    for r in tl.static_range(ROWS):
        row = first + r * WARPS
        y = sums[r]
        if HAS_BIAS:
            y += tl.load(bias_ptr + row, mask=row < N, other=0.0)
        best = tl.maximum(best, tl.where(row < N, pack_best(y, row), _LOWEST_KEY))
    value, index = unpack_best(tl.max(best, axis=0))
    tl.store(value_ptr + tl.program_id(0), value)
    tl.store(index_ptr + tl.program_id(0), index)


def best_of_blocks(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    values: torch.Tensor,
    indices: torch.Tensor,
    *,
    tile: GemvTile,
    launch: Mapping[str, Any],
) -> None:
    """The largest of each ``warps * rows`` outputs of ``weight`` @ ``x``, and the lowest such row.

    ``values`` [blocks] float32, NaN where an output is NaN; ``indices`` [blocks] int32.
    """
    num_outputs, num_inputs = check_matrix(x, weight)
    num_blocks = triton.cdiv(num_outputs, tile.warps * tile.rows)
    if values.numel() != num_blocks or indices.numel() != num_blocks:
        message = f"{num_outputs} outputs are {num_blocks} blocks; there is room for others"
        raise ValueError(message)
    _best_kernel[(num_blocks,)](
        x,
        weight,
        weight if bias is None else bias,
        values,
        indices,
        N=num_outputs,
        K=num_inputs,
        WARPS=tile.warps,
        ROWS=tile.rows,
        AHEAD=tile.chunks_ahead(num_inputs),
        HAS_BIAS=bias is not None,
        num_warps=tile.warps,
        **launch,
    )
