"""Owns products of experts' matrices with the few rows that each was chosen for; sorts no pairs.

As in ``skinny_gemm.py`` the matrix is the left operand and rows of the batch are its columns. Work
for 2 to some 400 tokens, where most experts have some 16 rows or fewer; a crowded one takes wide
tiles. Pairs, ``order`` and ``offsets`` are those of ``expert_routing.py``.

- ``gated_few``: ``inputs`` [num_tokens, K], ``matrices`` [experts, 2 * F, K] (rows gate, up in
  turn) and ``weights`` [num_tokens, num_chosen] float32 to ``silu(gate) * up * weight``
  [pairs, F], in the order of pairs.
- ``down_few``: ``inputs`` [pairs, K] and ``matrices`` [experts, N, K] to [num_chosen, num_tokens,
  N]: to be added up, in this order, by whoever needs the sum.

Contiguous, one dtype, K a multiple of 16 bytes, at aligned addresses; any F and N. Sums float32.
Grid: a program is a tile of rows of an expert's matrix for one block of its pairs; there are as
many as there can be at most, and those without work end at once (which was measured to be faster
than programs that stay and take several). An expert's are neighbours. Matrices come through tensor
descriptors: a tile that passes the end of an expert reads rows of the next one, and stores none of
them. With ``Tile.ahead`` the programs of a dependent launch ask L2 for that many bytes (a power of
two, 128 at least) of each row of theirs before they wait: worth it where nearly all experts are
chosen.
"""

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

from mizzen_worker.kernels.gpu.expert_blocks import (
    find_block,
    load_blocks,
    max_blocks,
    require_sizes,
)
from mizzen_worker.kernels.gpu.row_tiles import RowTiles, kernel_options
from mizzen_worker.kernels.gpu.skinny_tile import ask_ahead


@triton.jit
def _load_rows(rows, exists, k, K, DEPTH: tl.constexpr, IS_WHOLE: tl.constexpr):
    """[DEPTH, pairs]: a step of K of the pairs' rows, zeros where there is none."""
    if IS_WHOLE:
        batch = tl.load(rows + k, mask=exists[:, None], other=0.0)
    else:
        is_inside = (k + tl.arange(0, DEPTH) < K)[None, :]
        batch = tl.load(rows + k, mask=exists[:, None] & is_inside, other=0.0)
    return batch.T


@triton.jit
def _begin(
    matrix,
    first_row,
    num_rows,
    K,
    COLUMNS: tl.constexpr,
    AHEAD: tl.constexpr,
    PDL: tl.constexpr,
):
    """Let successors begin and wait; meanwhile ask L2 for the matrix.

    Which experts have pairs is not known yet: if all have, these are the program's own rows, else
    mostly those of some other program that begins now. ``num_rows`` of all experts' matrices.
    """
    if PDL:
        gdc_launch_dependents()
        if AHEAD > 0:
            ask_ahead(matrix, first_row, 0, num_rows, K, COLUMNS, AHEAD)
        gdc_wait()


@triton.jit
def _gated_item(
    gates,
    ups,
    inputs,
    order,
    weights,
    products,
    expert,
    first,
    end,
    first_row,
    F,
    K,
    CHOSEN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    place = first + tl.arange(0, ROWS)
    exists = place < end
    pair = tl.load(order + place, mask=exists, other=0)
    rows = inputs + (pair // CHOSEN).to(tl.int64)[:, None] * K + tl.arange(0, DEPTH)[None, :]
    gate = tl.zeros([COLUMNS, ROWS], tl.float32)
    up = tl.zeros([COLUMNS, ROWS], tl.float32)
    for k in tl.range(0, K, DEPTH, num_stages=STAGES):
        batch = _load_rows(rows, exists, k, K, DEPTH, IS_WHOLE)
        gate_rows = gates.load([expert * F + first_row, k])
        gate = tl.dot(gate_rows, batch, gate, input_precision=PRECISION)
        up_rows = ups.load([expert * F + first_row, k])
        up = tl.dot(up_rows, batch, up, input_precision=PRECISION)
    weight = tl.load(weights + pair, mask=exists, other=0.0)
    value = tl.trans(gate * tl.sigmoid(gate) * up * weight[None, :])
    column = first_row + tl.arange(0, COLUMNS)
    target = products + pair.to(tl.int64)[:, None] * F + column[None, :]
    mask = exists[:, None] & (column < F)[None, :]
    tl.store(target, value.to(products.dtype.element_ty), mask=mask)


@triton.jit
def _gated_kernel(
    gates,
    ups,
    wide_gates,
    wide_ups,
    matrix,
    inputs,
    order,
    offsets,
    weights,
    products,
    F,
    K,
    EXPERTS: tl.constexpr,
    EXPERTS_BLOCK: tl.constexpr,
    CHOSEN: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    WIDE_ROWS: tl.constexpr,
    WIDE_DEPTH: tl.constexpr,
    WIDE_STAGES: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    AHEAD: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (block of rows, tile of gate rows and of the up rows beside them)."""
    tiles = tl.cdiv(F, COLUMNS)
    own = tl.program_id(0)
    guess = 2 * (own // tiles * F + own % tiles * COLUMNS)
    _begin(matrix, guess, EXPERTS * 2 * F, K, 2 * COLUMNS, AHEAD, PDL)
    begins, ends, until = load_blocks(offsets, EXPERTS, EXPERTS_BLOCK, WIDE_ROWS)
    if own < tl.max(until, axis=0) * tiles:
        expert, first, end = find_block(begins, ends, until, own // tiles, EXPERTS_BLOCK, WIDE_ROWS)
        first_row = own % tiles * COLUMNS
        if end - first <= ROWS:
            _gated_item(
                gates,
                ups,
                inputs,
                order,
                weights,
                products,
                expert,
                first,
                end,
                first_row,
                F,
                K,
                CHOSEN,
                ROWS,
                COLUMNS,
                DEPTH,
                STAGES,
                IS_WHOLE,
                PRECISION,
            )
        else:
            _gated_item(
                wide_gates,
                wide_ups,
                inputs,
                order,
                weights,
                products,
                expert,
                first,
                tl.minimum(end, first + WIDE_ROWS),
                first_row,
                F,
                K,
                CHOSEN,
                WIDE_ROWS,
                COLUMNS,
                WIDE_DEPTH,
                WIDE_STAGES,
                IS_WHOLE,
                PRECISION,
            )


@triton.jit
def _down_item(
    matrices,
    inputs,
    order,
    products,
    expert,
    first,
    end,
    first_row,
    num_tokens,
    N,
    K,
    CHOSEN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    place = first + tl.arange(0, ROWS)
    exists = place < end
    pair = tl.load(order + place, mask=exists, other=0)
    rows = inputs + pair.to(tl.int64)[:, None] * K + tl.arange(0, DEPTH)[None, :]
    total = tl.zeros([COLUMNS, ROWS], tl.float32)
    for k in tl.range(0, K, DEPTH, num_stages=STAGES):
        batch = _load_rows(rows, exists, k, K, DEPTH, IS_WHOLE)
        weights = matrices.load([expert * N + first_row, k])
        total = tl.dot(weights, batch, total, input_precision=PRECISION)
    column = first_row + tl.arange(0, COLUMNS)
    token = (pair % CHOSEN).to(tl.int64) * num_tokens + pair // CHOSEN
    target = products + token[:, None] * N + column[None, :]
    mask = exists[:, None] & (column < N)[None, :]
    tl.store(target, tl.trans(total).to(products.dtype.element_ty), mask=mask)


@triton.jit
def _down_kernel(
    matrices,
    wide_matrices,
    matrix,
    inputs,
    order,
    offsets,
    products,
    num_tokens,
    N,
    K,
    EXPERTS: tl.constexpr,
    EXPERTS_BLOCK: tl.constexpr,
    CHOSEN: tl.constexpr,
    COLUMNS: tl.constexpr,
    ROWS: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    WIDE_ROWS: tl.constexpr,
    WIDE_DEPTH: tl.constexpr,
    WIDE_STAGES: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    AHEAD: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (block of rows, tile of rows of the expert's matrix)."""
    tiles = tl.cdiv(N, COLUMNS)
    own = tl.program_id(0)
    _begin(matrix, own // tiles * N + own % tiles * COLUMNS, EXPERTS * N, K, COLUMNS, AHEAD, PDL)
    begins, ends, until = load_blocks(offsets, EXPERTS, EXPERTS_BLOCK, WIDE_ROWS)
    if own < tl.max(until, axis=0) * tiles:
        expert, first, end = find_block(begins, ends, until, own // tiles, EXPERTS_BLOCK, WIDE_ROWS)
        first_row = own % tiles * COLUMNS
        if end - first <= ROWS:
            _down_item(
                matrices,
                inputs,
                order,
                products,
                expert,
                first,
                end,
                first_row,
                num_tokens,
                N,
                K,
                CHOSEN,
                ROWS,
                COLUMNS,
                DEPTH,
                STAGES,
                IS_WHOLE,
                PRECISION,
            )
        else:
            _down_item(
                wide_matrices,
                inputs,
                order,
                products,
                expert,
                first,
                tl.minimum(end, first + WIDE_ROWS),
                first_row,
                num_tokens,
                N,
                K,
                CHOSEN,
                WIDE_ROWS,
                COLUMNS,
                WIDE_DEPTH,
                WIDE_STAGES,
                IS_WHOLE,
                PRECISION,
            )


def gated_few(
    inputs: torch.Tensor,
    matrices: torch.Tensor,
    weights: torch.Tensor,
    sorted_pairs: tuple[torch.Tensor, torch.Tensor],
    tiles: RowTiles,
    launch: Mapping[str, Any],
) -> torch.Tensor:
    """Activations [pairs, F]; tiles' columns count gate and up rows."""
    experts, double, depth = matrices.shape
    num_tokens, num_chosen = weights.shape
    require_sizes(inputs, matrices, num_tokens)
    inner = double // 2
    products = torch.empty((weights.numel(), inner), dtype=inputs.dtype, device=inputs.device)
    if num_tokens:
        sides = matrices.view(experts * inner, 2, depth)
        half = tiles.narrow.columns // 2
        items = max_blocks(weights.numel(), experts, tiles.wide) * triton.cdiv(inner, half)
        _gated_kernel[(items,)](
            *(
                TensorDescriptor.from_tensor(sides[:, side], [half, tile.depth])
                for tile in (tiles.narrow, tiles.wide)
                for side in (0, 1)
            ),
            matrices,
            inputs,
            *sorted_pairs,
            weights,
            products,
            inner,
            depth,
            CHOSEN=num_chosen,
            **kernel_options(inputs, experts, tiles, half, launch),
        )
    return products


def down_few(
    inputs: torch.Tensor,
    matrices: torch.Tensor,
    num_chosen: int,
    sorted_pairs: tuple[torch.Tensor, torch.Tensor],
    tiles: RowTiles,
    launch: Mapping[str, Any],
) -> torch.Tensor:
    """Products [num_chosen, num_tokens, N]."""
    experts, outputs, depth = matrices.shape
    num_tokens = len(inputs) // num_chosen
    require_sizes(inputs, matrices, num_tokens * num_chosen)
    shape = (num_chosen, num_tokens, outputs)
    products = torch.empty(shape, dtype=inputs.dtype, device=inputs.device)
    if num_tokens:
        columns = tiles.narrow.columns
        items = max_blocks(len(inputs), experts, tiles.wide) * triton.cdiv(outputs, columns)
        rows = matrices.view(experts * outputs, depth)
        _down_kernel[(items,)](
            TensorDescriptor.from_tensor(rows, [columns, tiles.narrow.depth]),
            TensorDescriptor.from_tensor(rows, [columns, tiles.wide.depth]),
            matrices,
            inputs,
            *sorted_pairs,
            products,
            num_tokens,
            outputs,
            depth,
            CHOSEN=num_chosen,
            **kernel_options(inputs, experts, tiles, columns, launch),
        )
    return products
