"""Owns the query/key/value product of one row with rotation in it; the KV pool is not its matter.

Contract: as ``gemv.py``; rows of ``weight`` are query heads, key heads, value heads, ``head_dim``
rows each. A warp owns rows i and i + head_dim / 2 of a head, the pair that is rotated together, so
rotation needs no data of another thread.

A norm of heads (Qwen 3) commutes with rotation but for its factor, one number per head that no
program knows, since none has a whole head: its weight is applied here, and the sum of squares of
each program's rows goes to ``squares`` [heads, parts] for the reader to finish. So queries and keys
come out rotated, and too large by that factor.

Grid: heads * parts; a program has ``num_warps * ROWS`` rows of one head.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from mizzen_worker.kernels.fp8_matrix import require_scale
from mizzen_worker.kernels.gpu.dependent_launch import begin_dependent
from mizzen_worker.kernels.gpu.gemv import GemvTile, check_matrix
from mizzen_worker.kernels.gpu.row_sums import load_ahead, row_pointers, row_sums, scale_pointers


@dataclass(frozen=True, slots=True, kw_only=True)
class RotaryHeads:
    """What is rotated and by what.

    ``table`` [positions, 2, head_dim / 2] float32: cosines, then sines; ``position`` [1] int64, on
    the device (past the table: its last row is taken). ``query_norm`` and ``key_norm`` [head_dim]:
    weights of the norms of heads, both or none.
    """

    num_heads: int
    num_kv_heads: int
    table: torch.Tensor
    position: torch.Tensor
    query_norm: torch.Tensor | None
    key_norm: torch.Tensor | None


def parts_of_head(head_dim: int, tile: GemvTile) -> int:
    """Programs that share a head; raises ``ValueError`` where the tile does not divide it."""
    rows = tile.warps * tile.rows
    if tile.rows % 2 or head_dim % rows:
        message = f"head_dim {head_dim} is not a multiple of {tile.warps} warps x {tile.rows} rows"
        raise ValueError(message)
    return head_dim // rows


@triton.jit
def _rotary_kernel(
    x_ptr,
    w_ptr,
    scale_ptr,
    bias_ptr,
    query_norm_ptr,
    key_norm_ptr,
    table_ptr,
    position_ptr,
    y_ptr,
    squares_ptr,
    num_heads,
    num_rotated,
    num_outputs,
    last_position,
    eps,
    K: tl.constexpr,
    D: tl.constexpr,
    WARPS: tl.constexpr,
    ROWS: tl.constexpr,
    AHEAD: tl.constexpr,
    NORM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_HEAD_NORMS: tl.constexpr,
    GROUPS: tl.constexpr,
    PDL: tl.constexpr,
):
    PAIRS: tl.constexpr = ROWS // 2
    PARTS: tl.constexpr = D // (WARPS * ROWS)
    head = tl.program_id(0) // PARTS
    part = tl.program_id(0) % PARTS
    first = part * (WARPS * PAIRS) + tl.arange(0, WARPS)
    rows = ()
    indices = ()
    for p in tl.static_range(PAIRS):
        row = head * D + first + p * WARPS
        indices = indices + (row, row + D // 2)
        rows = rows + (row_pointers(w_ptr, row, K), row_pointers(w_ptr, row + D // 2, K))
    tiles = load_ahead(rows, K, ROWS, AHEAD)
    scales = scale_pointers(scale_ptr, indices, ROWS, GROUPS)

    position = tl.minimum(tl.load(position_ptr), last_position)
    is_rotated = first * 0 + head < num_rotated  # of the tile's shape, as masks must be
    cosines = ()
    sines = ()
    weights = ()
    for p in tl.static_range(PAIRS):
        j = first + p * WARPS
        entry = table_ptr + position * D + j
        cosines = cosines + (tl.load(entry, mask=is_rotated, other=1.0),)
        sines = sines + (tl.load(entry + D // 2, mask=is_rotated, other=0.0),)
        if HAS_HEAD_NORMS:
            norm_ptr = key_norm_ptr
            if head < num_heads:
                norm_ptr = query_norm_ptr
            weights = weights + (
                tl.load(norm_ptr + j, mask=is_rotated, other=1.0).to(tl.float32),
                tl.load(norm_ptr + D // 2 + j, mask=is_rotated, other=1.0).to(tl.float32),
            )
    begin_dependent(PDL)

    sums = row_sums(
        x_ptr, rows, tiles, eps, K, WARPS, ROWS, AHEAD, NORM, scales, num_outputs, GROUPS
    )
    squares = tl.zeros([WARPS], tl.float32)
    for p in tl.static_range(PAIRS):
        row = head * D + first + p * WARPS
        low = sums[2 * p]
        high = sums[2 * p + 1]
        if HAS_BIAS:
            low += tl.load(bias_ptr + row)
            high += tl.load(bias_ptr + row + D // 2)
        if HAS_HEAD_NORMS:
            squares += low * low + high * high
            low = low * weights[2 * p]
            high = high * weights[2 * p + 1]
        rotated_low = low * cosines[p] - high * sines[p]
        rotated_high = high * cosines[p] + low * sines[p]
        tl.store(y_ptr + row, rotated_low.to(y_ptr.dtype.element_ty))
        tl.store(y_ptr + row + D // 2, rotated_high.to(y_ptr.dtype.element_ty))
    if HAS_HEAD_NORMS:
        tl.store(squares_ptr + head * PARTS + part, tl.sum(squares, axis=0))


def rotary_linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    heads: RotaryHeads,
    output: torch.Tensor,
    squares: torch.Tensor,
    *,
    norm_eps: float | None,
    tile: GemvTile,
    launch: Mapping[str, Any],
    scale: torch.Tensor | None = None,
) -> None:
    """``output`` [outputs] = ``weight`` @ RMS norm of ``x`` + ``bias``, queries and keys rotated.

    ``norm_eps`` None: ``x`` is normed already.

    ``squares`` [heads, parts] float32, written where there are norms of heads (module docstring).
    """
    num_outputs, num_inputs = check_matrix(x, weight)
    num_all_heads = heads.num_heads + 2 * heads.num_kv_heads
    head_dim = num_outputs // num_all_heads
    num_parts = parts_of_head(head_dim, tile)
    if tuple(heads.table.shape[1:]) != (2, head_dim // 2) or output.numel() != num_outputs:
        message = f"rotary GEMV: {num_outputs} outputs, table of {head_dim // 2} pairs are needed"
        raise ValueError(message)
    if tuple(squares.shape) != (num_all_heads, num_parts):
        message = f"squares are {tuple(squares.shape)}, not {(num_all_heads, num_parts)}"
        raise ValueError(message)
    has_head_norms = heads.query_norm is not None and heads.key_norm is not None
    _rotary_kernel[(num_all_heads * num_parts,)](
        x,
        weight,
        x if scale is None else scale,
        weight if bias is None else bias,
        heads.query_norm if has_head_norms else weight,
        heads.key_norm if has_head_norms else weight,
        heads.table,
        heads.position,
        output,
        squares,
        heads.num_heads,
        heads.num_heads + heads.num_kv_heads,
        num_outputs,
        len(heads.table) - 1,
        0.0 if norm_eps is None else norm_eps,
        K=num_inputs,
        D=head_dim,
        WARPS=tile.warps,
        ROWS=tile.rows,
        AHEAD=tile.chunks_ahead(num_inputs),
        NORM=norm_eps is not None,
        HAS_BIAS=bias is not None,
        HAS_HEAD_NORMS=has_head_norms,
        GROUPS=require_scale(weight, scale),
        num_warps=tile.warps,
        **launch,
    )
