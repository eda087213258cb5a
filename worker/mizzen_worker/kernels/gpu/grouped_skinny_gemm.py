"""Owns products of experts' matrices with the few rows that each was chosen for; sorts no pairs.

As in ``skinny_gemm.py`` the matrix is the left operand and rows of the batch are its columns. Work
for 2 to some 500 tokens, where an expert has some 16 rows or fewer. Pairs, ``order`` and
``offsets`` are those of ``expert_routing.py``; experts without a pair cost next to nothing.

- ``gated_few``: ``inputs`` [num_tokens, K], ``matrices`` [experts, 2 * F, K] (rows gate, up in
  turn) and ``weights`` [num_tokens, num_chosen] float32 to ``silu(gate) * up * weight``
  [pairs, F], in the order of pairs.
- ``down_few``: ``inputs`` [pairs, K] and ``matrices`` [experts, N, K] to [num_chosen, num_tokens,
  N]: to be added up, in this order, by whoever needs the sum.

Contiguous, one dtype, K a multiple of 16 bytes, at aligned addresses; any F and N. Sums float32.
Grid: experts next to each other, then tiles of rows. Matrices come through tensor descriptors: a
tile that passes the end of an expert reads rows of the next one, and stores none of them. With
``Tile.ahead`` the first programs of a dependent launch ask L2 for that many bytes (a power of two,
128 at least) of each row of theirs before they wait: worth it where nearly all experts are chosen.
"""

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
from triton.tools.tensor_descriptor import TensorDescriptor

from mizzen_worker.kernels.gpu.skinny_gemm import Tile, ask_ahead

_EARLY_PROGRAMS = 132
"""Those that are there before their predecessor ends: one for each multiprocessor of an H200."""


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
    EARLY: tl.constexpr,
    AHEAD: tl.constexpr,
    PDL: tl.constexpr,
):
    """Let successors begin and wait; programs that are early ask L2 for their matrix meanwhile.

    Whether their expert has pairs is not known yet. ``num_rows`` of all experts' matrices.
    """
    if PDL:
        gdc_launch_dependents()
        if AHEAD > 0 and tl.program_id(1) * tl.num_programs(0) + tl.program_id(0) < EARLY:
            ask_ahead(matrix, first_row, 0, num_rows, K, COLUMNS, AHEAD)
        gdc_wait()


@triton.jit
def _gated_kernel(
    gates,
    ups,
    matrix,
    inputs,
    order,
    offsets,
    weights,
    products,
    F,
    K,
    CHOSEN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    EARLY: tl.constexpr,
    AHEAD: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (expert, tile of gate rows and of the up rows beside them)."""
    expert = tl.program_id(0)
    first_row = tl.program_id(1) * COLUMNS
    num_rows = tl.num_programs(0) * 2 * F
    _begin(matrix, 2 * (expert * F + first_row), num_rows, K, 2 * COLUMNS, EARLY, AHEAD, PDL)
    begin = tl.load(offsets + expert)
    end = tl.load(offsets + expert + 1)
    column = first_row + tl.arange(0, COLUMNS)
    for first in range(begin, end, ROWS):
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
        target = products + pair.to(tl.int64)[:, None] * F + column[None, :]
        mask = exists[:, None] & (column < F)[None, :]
        tl.store(target, value.to(products.dtype.element_ty), mask=mask)


@triton.jit
def _down_kernel(
    matrices,
    matrix,
    inputs,
    order,
    offsets,
    products,
    num_tokens,
    N,
    K,
    CHOSEN: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    EARLY: tl.constexpr,
    AHEAD: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """Program (expert, tile of rows of its matrix)."""
    expert = tl.program_id(0)
    first_row = tl.program_id(1) * COLUMNS
    num_rows = tl.num_programs(0) * N
    _begin(matrix, expert * N + first_row, num_rows, K, COLUMNS, EARLY, AHEAD, PDL)
    begin = tl.load(offsets + expert)
    end = tl.load(offsets + expert + 1)
    column = first_row + tl.arange(0, COLUMNS)
    for first in range(begin, end, ROWS):
        place = first + tl.arange(0, ROWS)
        exists = place < end
        pair = tl.load(order + place, mask=exists, other=0)
        rows = inputs + pair.to(tl.int64)[:, None] * K + tl.arange(0, DEPTH)[None, :]
        total = tl.zeros([COLUMNS, ROWS], tl.float32)
        for k in tl.range(0, K, DEPTH, num_stages=STAGES):
            batch = _load_rows(rows, exists, k, K, DEPTH, IS_WHOLE)
            weights = matrices.load([expert * N + first_row, k])
            total = tl.dot(weights, batch, total, input_precision=PRECISION)
        token = (pair % CHOSEN).to(tl.int64) * num_tokens + pair // CHOSEN
        target = products + token[:, None] * N + column[None, :]
        mask = exists[:, None] & (column < N)[None, :]
        tl.store(target, tl.trans(total).to(products.dtype.element_ty), mask=mask)


def gated_few(
    inputs: torch.Tensor,
    matrices: torch.Tensor,
    weights: torch.Tensor,
    sorted_pairs: tuple[torch.Tensor, torch.Tensor],
    tile: Tile,
    launch: Mapping[str, Any],
) -> torch.Tensor:
    """Activations [pairs, F]; ``tile.columns`` counts gate and up rows."""
    experts, double, depth = matrices.shape
    num_tokens, num_chosen = weights.shape
    require_sizes(inputs, matrices, num_tokens)
    inner = double // 2
    products = torch.empty((weights.numel(), inner), dtype=inputs.dtype, device=inputs.device)
    if num_tokens:
        sides = matrices.view(experts * inner, 2, depth)
        half = tile.columns // 2
        _gated_kernel[(experts, triton.cdiv(inner, half))](
            TensorDescriptor.from_tensor(sides[:, 0], [half, tile.depth]),
            TensorDescriptor.from_tensor(sides[:, 1], [half, tile.depth]),
            matrices,
            inputs,
            *sorted_pairs,
            weights,
            products,
            inner,
            depth,
            CHOSEN=num_chosen,
            **_options(inputs, tile, half, launch),
        )
    return products


def down_few(
    inputs: torch.Tensor,
    matrices: torch.Tensor,
    num_chosen: int,
    sorted_pairs: tuple[torch.Tensor, torch.Tensor],
    tile: Tile,
    launch: Mapping[str, Any],
) -> torch.Tensor:
    """Products [num_chosen, num_tokens, N]."""
    experts, outputs, depth = matrices.shape
    num_tokens = len(inputs) // num_chosen
    require_sizes(inputs, matrices, num_tokens * num_chosen)
    shape = (num_chosen, num_tokens, outputs)
    products = torch.empty(shape, dtype=inputs.dtype, device=inputs.device)
    if num_tokens:
        _down_kernel[(experts, triton.cdiv(outputs, tile.columns))](
            TensorDescriptor.from_tensor(
                matrices.view(experts * outputs, depth), [tile.columns, tile.depth]
            ),
            matrices,
            inputs,
            *sorted_pairs,
            products,
            num_tokens,
            outputs,
            depth,
            CHOSEN=num_chosen,
            **_options(inputs, tile, tile.columns, launch),
        )
    return products


def _options(
    inputs: torch.Tensor, tile: Tile, columns: int, launch: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "ROWS": tile.rows,
        "COLUMNS": columns,
        "DEPTH": tile.depth,
        "STAGES": tile.stages,
        "IS_WHOLE": inputs.shape[1] % tile.depth == 0,
        "EARLY": _EARLY_PROGRAMS,
        "AHEAD": tile.ahead,
        "PRECISION": "ieee" if inputs.dtype == torch.float32 else "tf32",
        "num_warps": tile.warps,
    } | dict(launch)


def require_sizes(inputs: torch.Tensor, matrices: torch.Tensor, num_rows: int) -> None:
    """Raise ``ValueError`` where rows and experts' matrices cannot be multiplied."""
    depth = matrices.shape[2]
    is_aligned = depth * inputs.element_size() % 16 == 0
    if inputs.shape != (num_rows, depth) or inputs.dtype != matrices.dtype or not is_aligned:
        message = (
            f"rows {tuple(inputs.shape)} {inputs.dtype} of {num_rows} cannot be multiplied with "
            f"experts {tuple(matrices.shape)} {matrices.dtype}: one dtype, and one depth that is a "
            "multiple of 16 bytes, are needed"
        )
        raise ValueError(message)
    if not (inputs.is_contiguous() and matrices.is_contiguous()):
        message = "rows and matrices of experts must be contiguous"
        raise ValueError(message)
