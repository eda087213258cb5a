"""Owns the products of one token with the experts chosen for it; chooses none.

- ``gated_chosen``: ``x`` [K], ``matrices`` [experts, 2 * F, K] (rows gate, up in turn), ``chosen``
  and ``weights`` [num_chosen] to ``silu(gate) * up * weight`` [num_chosen, F] of the RMS norm of x
  (whose weight is folded into the matrices), as ``gemv.py`` does it for one matrix.
- ``down_chosen_add``: ``residual`` [N] + the sum over the chosen of ``matrices`` [experts, N, F]
  times ``activations`` [num_chosen, F]: one product over num_chosen * F inputs, in that order.

Contiguous, 16-byte aligned, K and F multiples of 16; sums float32, results in the dtype of ``x``.

Dependent launches: ``gated_chosen`` waits before it reads the experts and only then lets its
successor begin, so ``down_chosen_add`` may read them, and its weights, before its own wait.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from mizzen_worker.kernels.gpu.dependent_launch import begin_dependent
from mizzen_worker.kernels.gpu.gemv import GemvTile
from mizzen_worker.kernels.gpu.row_sums import (
    CHUNK,
    inside,
    load_ahead,
    load_chunk,
    row_pointers,
    row_sums,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DownTile:
    """Warps of a program, each with a row; chunks of a row that are in flight together."""

    warps: int
    ahead: int


@triton.jit
def _gated_kernel(
    x_ptr,
    w_ptr,
    chosen_ptr,
    weight_ptr,
    y_ptr,
    eps,
    F: tl.constexpr,
    K: tl.constexpr,
    WARPS: tl.constexpr,
    ROWS: tl.constexpr,
    AHEAD: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (slot, block of outputs): a warp has ``ROWS / 2`` pairs of rows."""
    PAIRS: tl.constexpr = ROWS // 2
    if PDL:
        gdc_wait()
        gdc_launch_dependents()
    slot = tl.program_id(0)
    expert = tl.load(chosen_ptr + slot).to(tl.int64)
    weight = tl.load(weight_ptr + slot)
    matrix = w_ptr + expert * (2 * F * K)
    first = tl.program_id(1) * (WARPS * PAIRS) + tl.arange(0, WARPS)
    rows = ()
    for p in tl.static_range(PAIRS):
        gate_row = 2 * inside(first + p * WARPS, F, WARPS * PAIRS)
        rows = rows + (row_pointers(matrix, gate_row, K), row_pointers(matrix, gate_row + 1, K))
    tiles = load_ahead(rows, K, ROWS, AHEAD)
    sums = row_sums(x_ptr, rows, tiles, eps, K, WARPS, ROWS, AHEAD, 1, (), 0, 0)
    for p in tl.static_range(PAIRS):
        output = first + p * WARPS
        gate = sums[2 * p]
        y = gate * tl.sigmoid(gate) * sums[2 * p + 1] * weight
        tl.store(y_ptr + slot * F + output, y.to(y_ptr.dtype.element_ty), mask=output < F)


@triton.jit
def _chunk_of_slot(pointers, c, F: tl.constexpr, CHUNKS: tl.constexpr):
    """Chunk ``c``, not known beforehand: whole where 256 divides F, else with zeros past F."""
    if CHUNKS * CHUNK == F:
        tile = tl.load(pointers + c * CHUNK)
    else:
        mask = (tl.arange(0, CHUNK) < F - c * CHUNK)[None, :]
        tile = tl.load(pointers + c * CHUNK, mask=mask, other=0.0)
    return tile


@triton.jit
def _load_range(
    own,
    chosen_ptr,
    BEGIN: tl.constexpr,
    END: tl.constexpr,
    MATRIX: tl.constexpr,
    F: tl.constexpr,
    CHUNKS: tl.constexpr,
):
    """Chunks BEGIN to END - 1 of the rows of all slots, one slot after the other.

    The experts come past L1, which may hold those of another layer: predecessors still run.
    """
    tiles = ()
    for slot in tl.static_range(BEGIN // CHUNKS, (END + CHUNKS - 1) // CHUNKS):
        expert = tl.load(chosen_ptr + slot, cache_modifier=".cg").to(tl.int64)
        pointers = own + expert * MATRIX
        for c in tl.static_range(CHUNKS):
            if slot * CHUNKS + c >= BEGIN and slot * CHUNKS + c < END:
                tiles = tiles + (load_chunk(pointers, c, F),)
    return tiles


@triton.jit
def _add_range(
    products, x_pointers, tiles, BEGIN: tl.constexpr, F: tl.constexpr, CHUNKS: tl.constexpr
):
    for index in tl.static_range(len(tiles)):
        x = load_chunk(x_pointers + (BEGIN + index) // CHUNKS * F, (BEGIN + index) % CHUNKS, F)
        products += tiles[index].to(tl.float32) * x.to(tl.float32)
    return products


@triton.jit
def _down_kernel(
    x_ptr,
    w_ptr,
    chosen_ptr,
    residual_ptr,
    y_ptr,
    N: tl.constexpr,
    F: tl.constexpr,
    CHUNKS: tl.constexpr,
    ALL: tl.constexpr,
    WARPS: tl.constexpr,
    AHEAD: tl.constexpr,
    SECOND: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (block of outputs): a warp has one row of every chosen expert.

    ALL chunks, CHUNKS of each slot: those before AHEAD are loaded before the wait, those from there
    to SECOND together with what follows it, the others one by one.
    """
    row = tl.program_id(0) * WARPS + tl.arange(0, WARPS)
    own = row_pointers(w_ptr, inside(row, N, WARPS), F)
    tiles = _load_range(own, chosen_ptr, 0, AHEAD, N * F, F, CHUNKS)
    begin_dependent(PDL)
    residual = tl.load(residual_ptr + row, mask=row < N, other=0.0).to(tl.float32)
    x_pointers = x_ptr + (tl.arange(0, WARPS) * 0)[:, None] + tl.arange(0, CHUNK)[None, :]
    products = tl.zeros([WARPS, CHUNK], tl.float32)
    products = _add_range(products, x_pointers, tiles, 0, F, CHUNKS)
    if AHEAD < SECOND:
        others = _load_range(own, chosen_ptr, AHEAD, SECOND, N * F, F, CHUNKS)
        products = _add_range(products, x_pointers, others, AHEAD, F, CHUNKS)
    if SECOND < ALL:
        for index in tl.range(SECOND, ALL, num_stages=1, loop_unroll_factor=AHEAD):
            slot = index // CHUNKS
            expert = tl.load(chosen_ptr + slot).to(tl.int64)
            chunk = _chunk_of_slot(own + expert * (N * F), index % CHUNKS, F, CHUNKS)
            x = _chunk_of_slot(x_pointers + slot * F, index % CHUNKS, F, CHUNKS)
            products += chunk.to(tl.float32) * x.to(tl.float32)
    y = tl.sum(products, axis=1) + residual
    tl.store(y_ptr + row, y.to(y_ptr.dtype.element_ty), mask=row < N)


def gated_chosen(
    x: torch.Tensor,
    matrices: torch.Tensor,
    chosen: torch.Tensor,
    weights: torch.Tensor,
    *,
    eps: float,
    tile: GemvTile,
    launch: Mapping[str, Any],
) -> torch.Tensor:
    """Activations [num_chosen, F]; see the module. ``tile.rows`` counts gate and up rows."""
    _, double, depth = matrices.shape
    inner = double // 2
    _require(x, matrices, depth)
    if tile.rows % 2:
        message = f"gate and up rows come in pairs, {tile.rows} rows a warp are not even"
        raise ValueError(message)
    output = x.new_empty(chosen.numel(), inner)
    grid = (chosen.numel(), triton.cdiv(double, tile.warps * tile.rows))
    _gated_kernel[grid](
        x,
        matrices,
        chosen,
        weights,
        output,
        eps,
        F=inner,
        K=depth,
        WARPS=tile.warps,
        ROWS=tile.rows,
        AHEAD=tile.chunks_ahead(depth),
        num_warps=tile.warps,
        **launch,
    )
    return output


def down_chosen_add(
    activations: torch.Tensor,
    matrices: torch.Tensor,
    chosen: torch.Tensor,
    residual: torch.Tensor,
    *,
    tile: DownTile,
    launch: Mapping[str, Any],
) -> torch.Tensor:
    """The new hidden row, shaped as ``residual``; see the module."""
    _, outputs, inner = matrices.shape
    _require(activations, matrices, chosen.numel() * inner)
    if residual.numel() != outputs:
        message = f"experts give {outputs} outputs, the residual has {residual.numel()}"
        raise ValueError(message)
    output = torch.empty_like(residual)
    chunks = triton.cdiv(inner, CHUNK.value)
    num_chunks = chosen.numel() * chunks
    ahead = min(tile.ahead, num_chunks)
    _down_kernel[(triton.cdiv(outputs, tile.warps),)](
        activations,
        matrices,
        chosen,
        residual,
        output,
        N=outputs,
        F=inner,
        CHUNKS=chunks,
        ALL=num_chunks,
        WARPS=tile.warps,
        AHEAD=ahead,
        SECOND=min(2 * ahead, num_chunks),
        num_warps=tile.warps,
        **launch,
    )
    return output


def _require(x: torch.Tensor, matrices: torch.Tensor, num_inputs: int) -> None:
    if x.numel() != num_inputs or x.dtype != matrices.dtype or matrices.shape[2] % 16:
        message = (
            f"{x.numel()} inputs {x.dtype} cannot be multiplied with experts "
            f"{tuple(matrices.shape)} {matrices.dtype}: one dtype, {num_inputs} inputs, of a "
            "multiple of 16 for each expert, are needed"
        )
        raise ValueError(message)
    if not (x.is_contiguous() and matrices.is_contiguous()):
        message = "inputs and matrices of experts must be contiguous"
        raise ValueError(message)
