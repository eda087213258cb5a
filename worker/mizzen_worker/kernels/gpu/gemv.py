"""Owns products of a matrix with one row, and what is done to their sums at once; knows no model.

Contract: ``x`` [inputs], contiguous; weights [outputs, inputs] contiguous (inputs a multiple of 8:
16-byte loads); sums in float32, results in the dtype of the output. A norm's weight is folded into
the columns, so an RMS norm is one factor per row: the sum of squares is made in the same loop.

Grid: one program per ``num_warps * ROWS`` rows. A warp owns ``ROWS`` whole rows, so that sums need
shuffles only and a chunk of ``x``, once unpacked, serves all of them: tiles are [num_warps, 256]
(one row a warp), several of them per chunk. ``x`` is read through a pointer tile of that shape; a
vector would pass through shared memory. The first ``AHEAD`` chunks are loaded before the wait.

Outputs must not share memory with inputs, but ``residual`` may be the output.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

CHUNK = tl.constexpr(256)
"""Columns of a tile: 16 bytes of bfloat16 a thread."""


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
def let_next_begin(PDL: tl.constexpr):
    """The next kernel may start on what this one leaves free."""
    if PDL:
        gdc_launch_dependents()


@triton.jit
def wait_for_previous(PDL: tl.constexpr):
    """What the previous kernels wrote is there afterwards."""
    if PDL:
        gdc_wait()


@triton.jit
def begin_dependent(PDL: tl.constexpr):
    """Both, after what is loaded ahead was asked for."""
    let_next_begin(PDL)
    wait_for_previous(PDL)


@triton.jit
def row_pointers(w_ptr, rows, K: tl.constexpr):
    """Pointers to the first chunk of [num_warps] rows."""
    return w_ptr + rows[:, None].to(tl.int64) * K + tl.arange(0, CHUNK)[None, :]


@triton.jit
def inside(rows, N: tl.constexpr, BLOCK: tl.constexpr):
    """Rows past the end become the last one: loads need no mask, only stores do."""
    if N % BLOCK != 0:
        rows = tl.minimum(rows, N - 1)
    return rows


@triton.jit
def load_chunk(pointers, c: tl.constexpr, K: tl.constexpr):
    """Chunk ``c`` of some rows; zeros past the end."""
    if (c + 1) * CHUNK <= K:
        tile = tl.load(pointers + c * CHUNK)
    else:
        mask = (tl.arange(0, CHUNK) < K - c * CHUNK)[None, :]
        tile = tl.load(pointers + c * CHUNK, mask=mask, other=0.0)
    return tile


@triton.jit
def load_ahead(rows, K: tl.constexpr, ROWS: tl.constexpr, AHEAD: tl.constexpr):
    """The first chunks of a tuple of ``ROWS`` pointer tiles: chunk by chunk, row by row."""
    tiles = ()
    for c in tl.static_range(AHEAD):
        for r in tl.static_range(ROWS):
            tiles = tiles + (load_chunk(rows[r], c, K),)
    return tiles


@triton.constexpr_function
def _num_turns(num_full_chunks, ahead):
    """Rounds of ``ahead`` whole chunks that are followed by another such round."""
    return max(num_full_chunks // ahead - 1, 0)


@triton.jit
def _add_chunk(
    x, tiles, squares, products, c: tl.constexpr, ROWS: tl.constexpr, NORM: tl.constexpr
):
    if NORM:
        squares += x * x
    longer = ()
    for r in tl.static_range(ROWS):
        longer = longer + (products[r] + tiles[c * ROWS + r].to(tl.float32) * x,)
    return squares, longer


@triton.jit
def row_sums(
    x_ptr,
    rows,
    tiles,
    eps,
    K: tl.constexpr,
    WARPS: tl.constexpr,
    ROWS: tl.constexpr,
    AHEAD: tl.constexpr,
    NORM: tl.constexpr,
):
    """Tuple of ``ROWS`` sums [num_warps] float32 over products with ``x``, or with its norm."""
    NUM_CHUNKS: tl.constexpr = (K + CHUNK - 1) // CHUNK
    NUM_TURNS: tl.constexpr = _num_turns(K // CHUNK, AHEAD)
    x_pointers = x_ptr + (tl.arange(0, WARPS) * 0)[:, None] + tl.arange(0, CHUNK)[None, :]
    squares = tl.zeros([WARPS, CHUNK], tl.float32)
    products = ()
    for _ in tl.static_range(ROWS):
        products = products + (tl.zeros([WARPS, CHUNK], tl.float32),)
    if NUM_TURNS > 0:
        # Not unrolled: straight code would hold most of x in registers at once.
        for start in tl.range(0, NUM_TURNS * AHEAD * CHUNK, AHEAD * CHUNK, num_stages=1):
            later = ()
            for c in tl.static_range(AHEAD):
                for r in tl.static_range(ROWS):
                    later = later + (tl.load(rows[r] + start + (c + AHEAD) * CHUNK),)
                x = tl.load(x_pointers + start + c * CHUNK).to(tl.float32)
                squares, products = _add_chunk(x, tiles, squares, products, c, ROWS, NORM)
            tiles = later
    DONE: tl.constexpr = NUM_TURNS * AHEAD
    for c in tl.static_range(NUM_CHUNKS - DONE):
        if DONE + c + AHEAD < NUM_CHUNKS:
            for r in tl.static_range(ROWS):
                tiles = tiles + (load_chunk(rows[r], DONE + c + AHEAD, K),)
        x = load_chunk(x_pointers, DONE + c, K).to(tl.float32)
        squares, products = _add_chunk(x, tiles, squares, products, c, ROWS, NORM)
    if NORM:
        factor = tl.rsqrt(tl.sum(squares, axis=1) / K + eps)
    sums = ()
    for r in tl.static_range(ROWS):
        total = tl.sum(products[r], axis=1)
        if NORM:
            total = total * factor
        sums = sums + (total,)
    return sums


@triton.jit
def _linear_kernel(
    x_ptr,
    w_ptr,
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
    PDL: tl.constexpr,
):
    first = tl.program_id(0) * (WARPS * ROWS) + tl.arange(0, WARPS)
    rows = ()
    for r in tl.static_range(ROWS):
        rows = rows + (row_pointers(w_ptr, inside(first + r * WARPS, N, WARPS * ROWS), K),)
    tiles = load_ahead(rows, K, ROWS, AHEAD)
    begin_dependent(PDL)
    sums = row_sums(x_ptr, rows, tiles, eps, K, WARPS, ROWS, AHEAD, NORM)
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
    PDL: tl.constexpr,
):
    PAIRS: tl.constexpr = ROWS // 2
    first = tl.program_id(0) * (WARPS * PAIRS) + tl.arange(0, WARPS)
    rows = ()
    for p in tl.static_range(PAIRS):
        gate_row = 2 * inside(first + p * WARPS, N, WARPS * PAIRS)
        rows = rows + (row_pointers(w_ptr, gate_row, K), row_pointers(w_ptr, gate_row + 1, K))
    tiles = load_ahead(rows, K, ROWS, AHEAD)
    begin_dependent(PDL)
    sums = row_sums(x_ptr, rows, tiles, eps, K, WARPS, ROWS, AHEAD, NORM)
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
    if x.numel() != num_inputs or x.dtype != weight.dtype:
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
        num_warps=tile.warps,
        **launch,
    )
