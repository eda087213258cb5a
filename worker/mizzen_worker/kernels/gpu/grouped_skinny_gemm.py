"""Owns products of experts' matrices with the few rows that each was chosen for; sorts no pairs.

As in ``skinny_gemm.py`` the matrix is the left operand and rows of the batch are its columns. Work
for 2 to some 400 tokens, where most experts have some 16 rows or fewer; a crowded one takes wide
tiles. ``slots`` [experts, num_tokens] uint8 are those of ``expert_routing.py``: a program finds the
pairs of its expert itself, which costs less than a kernel that sorts them for all.

- ``gated_few``: ``inputs`` [num_tokens, K], ``matrices`` [experts, 2 * F, K] (rows gate, up in
  turn) and ``weights`` [num_tokens, num_chosen] float32 to ``silu(gate) * up * weight``
  [pairs, F], in the order of pairs.
- ``down_few``: ``inputs`` [pairs, K] and ``matrices`` [experts, N, K] to [num_chosen, num_tokens,
  N]: to be added up, in this order, by whoever needs the sum.

Contiguous, one dtype, K a multiple of 16 bytes, at aligned addresses; any F and N. Sums float32.
Grid: a program is a tile of rows of an expert's matrix, for all of its pairs in blocks; without
pairs it ends at once. Matrices come through tensor descriptors: a tile that passes the end of an
expert reads rows of the next one, and stores none of them. With ``Tile.ahead`` a dependent launch
asks L2 for that many bytes (a power of two, 128 at least) of each of its rows before it waits.
"""

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

from mizzen_worker.kernels.gpu import expert_blocks
from mizzen_worker.kernels.gpu.expert_blocks import count_pairs, find_pairs
from mizzen_worker.kernels.gpu.row_tiles import RowTiles, kernel_options
from mizzen_worker.kernels.gpu.skinny_tile import ask_ahead

_TOKENS = 128
"""Looked at together for those that chose an expert."""


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

    Which experts have pairs is not known yet. ``num_rows`` of all experts' matrices.
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
    slots,
    weights,
    products,
    num_tokens,
    expert,
    first,
    count,
    first_row,
    F,
    K,
    CHOSEN: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    pair = find_pairs(slots, expert, num_tokens, first, CHOSEN, ROWS, TOKENS)
    exists = first + tl.arange(0, ROWS) < count
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


# Not specialised: any number of tokens runs the same code.
@triton.jit(do_not_specialize=["num_tokens"])
def _gated_kernel(
    gates,
    ups,
    wide_gates,
    wide_ups,
    matrix,
    inputs,
    slots,
    weights,
    products,
    tally,
    num_tokens,
    F,
    K,
    EXPERTS: tl.constexpr,
    CHOSEN: tl.constexpr,
    TOKENS: tl.constexpr,
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
    HAS_TALLY: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (expert, tile of gate rows and of the up rows beside them)."""
    tiles = tl.cdiv(F, COLUMNS)
    expert = tl.program_id(0) // tiles
    tile = tl.program_id(0) % tiles
    first_row = tile * COLUMNS
    _begin(matrix, 2 * (expert * F + first_row), EXPERTS * 2 * F, K, 2 * COLUMNS, AHEAD, PDL)
    count = count_pairs(slots, expert, num_tokens, TOKENS)
    if HAS_TALLY and tile == 0:
        tl.atomic_add(tally, (count > 0).to(tl.int32), sem="relaxed")
        tl.atomic_add(tally + 1, (expert == 0).to(tl.int32), sem="relaxed")
    for first in range(0, count, WIDE_ROWS):
        if count - first <= ROWS:
            _gated_item(
                gates,
                ups,
                inputs,
                slots,
                weights,
                products,
                num_tokens,
                expert,
                first,
                count,
                first_row,
                F,
                K,
                CHOSEN,
                TOKENS,
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
                slots,
                weights,
                products,
                num_tokens,
                expert,
                first,
                count,
                first_row,
                F,
                K,
                CHOSEN,
                TOKENS,
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
    slots,
    products,
    expert,
    first,
    count,
    first_row,
    num_tokens,
    N,
    K,
    CHOSEN: tl.constexpr,
    TOKENS: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    pair = find_pairs(slots, expert, num_tokens, first, CHOSEN, ROWS, TOKENS)
    exists = first + tl.arange(0, ROWS) < count
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


@triton.jit(do_not_specialize=["num_tokens"])
def _down_kernel(
    matrices,
    wide_matrices,
    matrix,
    inputs,
    slots,
    products,
    num_tokens,
    N,
    K,
    EXPERTS: tl.constexpr,
    CHOSEN: tl.constexpr,
    TOKENS: tl.constexpr,
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
    """Program (expert, tile of rows of its matrix)."""
    tiles = tl.cdiv(N, COLUMNS)
    expert = tl.program_id(0) // tiles
    first_row = tl.program_id(0) % tiles * COLUMNS
    _begin(matrix, expert * N + first_row, EXPERTS * N, K, COLUMNS, AHEAD, PDL)
    count = count_pairs(slots, expert, num_tokens, TOKENS)
    for first in range(0, count, WIDE_ROWS):
        if count - first <= ROWS:
            _down_item(
                matrices,
                inputs,
                slots,
                products,
                expert,
                first,
                count,
                first_row,
                num_tokens,
                N,
                K,
                CHOSEN,
                TOKENS,
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
                slots,
                products,
                expert,
                first,
                count,
                first_row,
                num_tokens,
                N,
                K,
                CHOSEN,
                TOKENS,
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
    slots: torch.Tensor,
    tiles: RowTiles,
    launch: Mapping[str, Any],
    tally: torch.Tensor | None = None,
) -> torch.Tensor:
    """Activations [pairs, F]; tiles' columns count gate and up rows; adds to an ``ExpertTally``."""
    experts, double, depth = matrices.shape
    num_tokens, num_chosen = weights.shape
    expert_blocks.require_sizes(inputs, matrices, num_tokens)
    expert_blocks.require_slots(slots, experts, num_tokens)
    inner = double // 2
    products = torch.empty((weights.numel(), inner), dtype=inputs.dtype, device=inputs.device)
    if num_tokens:
        sides = matrices.view(experts * inner, 2, depth)
        half = tiles.narrow.columns // 2
        _gated_kernel[(experts * triton.cdiv(inner, half),)](
            *(
                TensorDescriptor.from_tensor(sides[:, side], [half, tile.depth])
                for tile in (tiles.narrow, tiles.wide)
                for side in (0, 1)
            ),
            matrices,
            inputs,
            slots,
            weights,
            products,
            slots if tally is None else tally,
            num_tokens,
            inner,
            depth,
            CHOSEN=num_chosen,
            TOKENS=_TOKENS,
            HAS_TALLY=tally is not None,
            **kernel_options(inputs, experts, tiles, half, launch),
        )
    return products


def down_few(
    inputs: torch.Tensor,
    matrices: torch.Tensor,
    num_chosen: int,
    slots: torch.Tensor,
    tiles: RowTiles,
    launch: Mapping[str, Any],
) -> torch.Tensor:
    """Products [num_chosen, num_tokens, N]."""
    experts, outputs, depth = matrices.shape
    num_tokens = len(inputs) // num_chosen
    expert_blocks.require_sizes(inputs, matrices, num_tokens * num_chosen)
    expert_blocks.require_slots(slots, experts, num_tokens)
    shape = (num_chosen, num_tokens, outputs)
    products = torch.empty(shape, dtype=inputs.dtype, device=inputs.device)
    if num_tokens:
        columns = tiles.narrow.columns
        rows = matrices.view(experts * outputs, depth)
        _down_kernel[(experts * triton.cdiv(outputs, columns),)](
            TensorDescriptor.from_tensor(rows, [columns, tiles.narrow.depth]),
            TensorDescriptor.from_tensor(rows, [columns, tiles.wide.depth]),
            matrices,
            inputs,
            slots,
            products,
            num_tokens,
            outputs,
            depth,
            CHOSEN=num_chosen,
            TOKENS=_TOKENS,
            **kernel_options(inputs, experts, tiles, columns, launch),
        )
    return products
