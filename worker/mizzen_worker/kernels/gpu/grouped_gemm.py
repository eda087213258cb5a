"""Owns products of experts' matrices with the many rows that each was chosen for; sorts no pairs.

For prompts: an expert has some tens to hundreds of rows, which are the left operand. Arguments and
results are those of ``grouped_skinny_gemm.py``, so that either may follow the other.

Grid: by what the host knows. ``pairs / rows of a tile + experts`` blocks of rows are the most that
there can be; a program finds its expert and rows by the offsets on the device, and those past the
last block do nothing. Tiles of one expert are neighbours, so that its matrix is in L2.
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
from mizzen_worker.kernels.gpu.skinny_tile import Tile


@triton.jit
def _multiply_rows(
    rows,
    exists,
    matrices,
    first_row,
    K,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """[ROWS, COLUMNS] float32."""
    total = tl.zeros([ROWS, COLUMNS], tl.float32)
    for k in tl.range(0, K, DEPTH, num_stages=STAGES):
        if IS_WHOLE:
            batch = tl.load(rows + k, mask=exists[:, None], other=0.0)
        else:
            is_inside = (k + tl.arange(0, DEPTH) < K)[None, :]
            batch = tl.load(rows + k, mask=exists[:, None] & is_inside, other=0.0)
        matrix = matrices.load([first_row, k])
        total = tl.dot(batch, matrix.T, total, input_precision=PRECISION)
    return total


@triton.jit
def _gated_kernel(
    matrices,
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
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    tiles = tl.cdiv(2 * F, COLUMNS)
    begins, ends, until = load_blocks(offsets, EXPERTS, EXPERTS_BLOCK, ROWS)
    expert, first, end = find_block(
        begins, ends, until, tl.program_id(0) // tiles, EXPERTS_BLOCK, ROWS
    )
    if expert < EXPERTS:
        tile = tl.program_id(0) % tiles
        place = first + tl.arange(0, ROWS)
        exists = place < end
        pair = tl.load(order + place, mask=exists, other=0)
        rows = inputs + (pair // CHOSEN).to(tl.int64)[:, None] * K + tl.arange(0, DEPTH)[None, :]
        first_row = expert * 2 * F + tile * COLUMNS
        both = _multiply_rows(
            rows,
            exists,
            matrices,
            first_row,
            K,
            ROWS,
            COLUMNS,
            DEPTH,
            STAGES,
            IS_WHOLE,
            PRECISION,
        )
        gate, up = tl.split(tl.reshape(both, [ROWS, COLUMNS // 2, 2]))
        weight = tl.load(weights + pair, mask=exists, other=0.0)
        value = gate * tl.sigmoid(gate) * up * weight[:, None]
        column = tile * (COLUMNS // 2) + tl.arange(0, COLUMNS // 2)
        target = products + pair.to(tl.int64)[:, None] * F + column[None, :]
        mask = exists[:, None] & (column < F)[None, :]
        tl.store(target, value.to(products.dtype.element_ty), mask=mask)


@triton.jit
def _down_kernel(
    matrices,
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
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    tiles = tl.cdiv(N, COLUMNS)
    begins, ends, until = load_blocks(offsets, EXPERTS, EXPERTS_BLOCK, ROWS)
    expert, first, end = find_block(
        begins, ends, until, tl.program_id(0) // tiles, EXPERTS_BLOCK, ROWS
    )
    if expert < EXPERTS:
        tile = tl.program_id(0) % tiles
        place = first + tl.arange(0, ROWS)
        exists = place < end
        pair = tl.load(order + place, mask=exists, other=0)
        rows = inputs + pair.to(tl.int64)[:, None] * K + tl.arange(0, DEPTH)[None, :]
        first_row = expert * N + tile * COLUMNS
        total = _multiply_rows(
            rows,
            exists,
            matrices,
            first_row,
            K,
            ROWS,
            COLUMNS,
            DEPTH,
            STAGES,
            IS_WHOLE,
            PRECISION,
        )
        column = tile * COLUMNS + tl.arange(0, COLUMNS)
        token = (pair % CHOSEN).to(tl.int64) * num_tokens + pair // CHOSEN
        target = products + token[:, None] * N + column[None, :]
        mask = exists[:, None] & (column < N)[None, :]
        tl.store(target, total.to(products.dtype.element_ty), mask=mask)


def gated_many(
    inputs: torch.Tensor,
    matrices: torch.Tensor,
    weights: torch.Tensor,
    sorted_pairs: tuple[torch.Tensor, torch.Tensor],
    tile: Tile,
    launch: Mapping[str, Any],
) -> torch.Tensor:
    """As ``gated_few``."""
    experts, double, depth = matrices.shape
    num_tokens, num_chosen = weights.shape
    require_sizes(inputs, matrices, num_tokens)
    shape = (weights.numel(), double // 2)
    products = torch.empty(shape, dtype=inputs.dtype, device=inputs.device)
    if num_tokens:
        programs = max_blocks(weights.numel(), experts, tile) * triton.cdiv(double, tile.columns)
        _gated_kernel[(programs,)](
            TensorDescriptor.from_tensor(
                matrices.view(experts * double, depth), [tile.columns, tile.depth]
            ),
            inputs,
            *sorted_pairs,
            weights,
            products,
            double // 2,
            depth,
            CHOSEN=num_chosen,
            **_options(inputs, experts, tile, launch),
        )
    return products


def down_many(
    inputs: torch.Tensor,
    matrices: torch.Tensor,
    num_chosen: int,
    sorted_pairs: tuple[torch.Tensor, torch.Tensor],
    tile: Tile,
    launch: Mapping[str, Any],
) -> torch.Tensor:
    """As ``down_few``."""
    experts, outputs, depth = matrices.shape
    num_tokens = len(inputs) // num_chosen
    require_sizes(inputs, matrices, num_tokens * num_chosen)
    shape = (num_chosen, num_tokens, outputs)
    products = torch.empty(shape, dtype=inputs.dtype, device=inputs.device)
    if num_tokens:
        programs = max_blocks(len(inputs), experts, tile) * triton.cdiv(outputs, tile.columns)
        _down_kernel[(programs,)](
            TensorDescriptor.from_tensor(
                matrices.view(experts * outputs, depth), [tile.columns, tile.depth]
            ),
            inputs,
            *sorted_pairs,
            products,
            num_tokens,
            outputs,
            depth,
            CHOSEN=num_chosen,
            **_options(inputs, experts, tile, launch),
        )
    return products


def _options(
    inputs: torch.Tensor, experts: int, tile: Tile, launch: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "EXPERTS": experts,
        "EXPERTS_BLOCK": triton.next_power_of_2(experts),
        "ROWS": tile.rows,
        "COLUMNS": tile.columns,
        "DEPTH": tile.depth,
        "STAGES": tile.stages,
        "IS_WHOLE": inputs.shape[1] % tile.depth == 0,
        "PRECISION": "ieee" if inputs.dtype == torch.float32 else "tf32",
        "num_warps": tile.warps,
    } | dict(launch)
