"""Owns products of a matrix with one row, and what is done to their sums at once; knows no model.

Contract: ``x`` [inputs], contiguous; weights [outputs, inputs] contiguous (inputs a multiple of 8:
16-byte loads); sums in float32, results in the dtype of the output. A norm's weight is folded into
the columns, so an RMS norm is one factor per row: the sum of squares is made in the same loop.

Weights may be FP8 with a ``scale`` (``fp8_matrix.py``).

Grid: one program per ``num_warps * ROWS`` rows, summed as in ``row_sums.py``. The first ``AHEAD``
chunks are loaded before the wait.

Outputs must not share memory with inputs, but ``residual`` may be the output.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl

from mizzen_worker.kernels.fp8_matrix import FP8, require_scale
from mizzen_worker.kernels.gpu.dependent_launch import begin_dependent
from mizzen_worker.kernels.gpu.row_sums import (
    CHUNK,
    inside,
    load_ahead,
    row_pointers,
    row_sums,
    scale_pointers,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class GemvTile:
    """How a product is cut: rows of a warp (of gate and up rows: both count), chunks ahead."""

    warps: int
    rows: int
    ahead: int

    def chunks_ahead(self, num_inputs: int) -> int:
        """``ahead``, or all chunks where there are fewer."""
        return min(self.ahead, -(-num_inputs // int(CHUNK.value)))


@triton.jit
def _linear_kernel(
    x_ptr,
    w_ptr,
    scale_ptr,
    bias_ptr,
    residual_ptr,
    y_ptr,
    eps,
    N: tl.constexpr,
    K: tl.constexpr,
    WARPS: tl.constexpr,
    ROWS: tl.constexpr,
    AHEAD: tl.constexpr,
    NORM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    GROUPS: tl.constexpr,
    PDL: tl.constexpr,
):
    first = tl.program_id(0) * (WARPS * ROWS) + tl.arange(0, WARPS)
    rows = ()
    indices = ()
    for r in tl.static_range(ROWS):
        index = inside(first + r * WARPS, N, WARPS * ROWS)
        indices = indices + (index,)
        rows = rows + (row_pointers(w_ptr, index, K),)
    tiles = load_ahead(rows, K, ROWS, AHEAD)
    scales = scale_pointers(scale_ptr, indices, ROWS, GROUPS)
    begin_dependent(PDL)
    sums = row_sums(x_ptr, rows, tiles, eps, K, WARPS, ROWS, AHEAD, NORM, scales, N, GROUPS)
    for r in tl.static_range(ROWS):
        row = first + r * WARPS
        y = sums[r]
        if HAS_BIAS:
            y += tl.load(bias_ptr + row, mask=row < N, other=0.0)
        if HAS_RESIDUAL:
            y += tl.load(residual_ptr + row, mask=row < N, other=0.0).to(tl.float32)
        tl.store(y_ptr + row, y.to(y_ptr.dtype.element_ty), mask=row < N)


@triton.jit
def _gated_kernel(
    x_ptr,
    w_ptr,
    scale_ptr,
    bias_ptr,
    y_ptr,
    eps,
    N: tl.constexpr,
    K: tl.constexpr,
    WARPS: tl.constexpr,
    ROWS: tl.constexpr,
    AHEAD: tl.constexpr,
    NORM: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    GROUPS: tl.constexpr,
    PDL: tl.constexpr,
):
    PAIRS: tl.constexpr = ROWS // 2
    first = tl.program_id(0) * (WARPS * PAIRS) + tl.arange(0, WARPS)
    rows = ()
    indices = ()
    for p in tl.static_range(PAIRS):
        gate_row = 2 * inside(first + p * WARPS, N, WARPS * PAIRS)
        indices = indices + (gate_row, gate_row + 1)
        rows = rows + (row_pointers(w_ptr, gate_row, K), row_pointers(w_ptr, gate_row + 1, K))
    tiles = load_ahead(rows, K, ROWS, AHEAD)
    scales = scale_pointers(scale_ptr, indices, ROWS, GROUPS)
    begin_dependent(PDL)
    sums = row_sums(x_ptr, rows, tiles, eps, K, WARPS, ROWS, AHEAD, NORM, scales, 2 * N, GROUPS)
    for p in tl.static_range(PAIRS):
        output = first + p * WARPS
        gate = sums[2 * p]
        up = sums[2 * p + 1]
        if HAS_BIAS:
            gate += tl.load(bias_ptr + 2 * output, mask=output < N, other=0.0)
            up += tl.load(bias_ptr + 2 * output + 1, mask=output < N, other=0.0)
        y = gate * tl.sigmoid(gate) * up
        tl.store(y_ptr + output, y.to(y_ptr.dtype.element_ty), mask=output < N)


def check_matrix(x: torch.Tensor, weight: torch.Tensor) -> tuple[int, int]:
    """Outputs and inputs of a weight that can be multiplied with ``x``; raises ``ValueError``."""
    num_outputs, num_inputs = weight.shape
    if x.numel() != num_inputs or weight.dtype not in (x.dtype, FP8):
        message = (
            f"GEMV of weights {tuple(weight.shape)} {weight.dtype} with {tuple(x.shape)} {x.dtype}:"
            " one row of as many inputs in the same dtype is needed"
        )
        raise ValueError(message)
    if not (x.is_contiguous() and weight.is_contiguous()):
        message = "GEMV needs contiguous operands; make them contiguous"
        raise ValueError(message)
    return num_outputs, num_inputs


def linear(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    residual: torch.Tensor | None,
    output: torch.Tensor,
    *,
    norm_eps: float | None,
    tile: GemvTile,
    launch: Mapping[str, Any],
    scale: torch.Tensor | None = None,
) -> None:
    """``output`` [outputs] = ``weight`` @ (RMS norm of) ``x`` + ``bias`` + ``residual``.

    ``bias`` float32. ``norm_eps`` None: no norm.
    """
    num_outputs, num_inputs = check_matrix(x, weight)
    if output.numel() != num_outputs or (residual is not None and residual.numel() != num_outputs):
        message = f"GEMV gives {num_outputs} outputs; output and residual must have as many"
        raise ValueError(message)
    _linear_kernel[(triton.cdiv(num_outputs, tile.warps * tile.rows),)](
        x,
        weight,
        x if scale is None else scale,
        weight if bias is None else bias,
        x if residual is None else residual,
        output,
        0.0 if norm_eps is None else norm_eps,
        N=num_outputs,
        K=num_inputs,
        WARPS=tile.warps,
        ROWS=tile.rows,
        AHEAD=tile.chunks_ahead(num_inputs),
        NORM=norm_eps is not None,
        HAS_BIAS=bias is not None,
        HAS_RESIDUAL=residual is not None,
        GROUPS=require_scale(weight, scale),
        num_warps=tile.warps,
        **launch,
    )


def gated(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    output: torch.Tensor,
    *,
    norm_eps: float | None,
    tile: GemvTile,
    launch: Mapping[str, Any],
    scale: torch.Tensor | None = None,
) -> None:
    """``output`` [n] = silu(gate) * up of (the RMS norm of) ``x``.

    ``weight`` [2 n, inputs] and ``bias`` [2 n] float32: gate and up rows alternate.
    """
    num_rows, num_inputs = check_matrix(x, weight)
    if num_rows != 2 * output.numel() or tile.rows % 2:
        message = f"gated GEMV: {num_rows} rows give half as many outputs, by an even {tile.rows=}"
        raise ValueError(message)
    _gated_kernel[(triton.cdiv(num_rows, tile.warps * tile.rows),)](
        x,
        weight,
        x if scale is None else scale,
        weight if bias is None else bias,
        output,
        0.0 if norm_eps is None else norm_eps,
        N=num_rows // 2,
        K=num_inputs,
        WARPS=tile.warps,
        ROWS=tile.rows,
        AHEAD=tile.chunks_ahead(num_inputs),
        NORM=norm_eps is not None,
        HAS_BIAS=bias is not None,
        GROUPS=require_scale(weight, scale),
        num_warps=tile.warps,
        **launch,
    )
