"""Owns products of experts' matrices with the many rows that each was chosen for; sorts no pairs.

For prompts: an expert has some tens to hundreds of rows, which are the left operand. Arguments and
results are those of ``grouped_skinny_gemm.py``, but activations between the two products lie in the
order of the sorted pairs, so that the second finds an expert's rows side by side.

Grid: by what the host knows. ``pairs / rows of a tile + experts`` blocks of rows are the most that
there can be, each of several tiles; how many there are, and their experts and rows, a program finds
by the offsets on the device. Tiles of one expert are neighbours, so that its matrix is in L2.
"""

from collections.abc import Mapping
from dataclasses import dataclass
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
from mizzen_worker.kernels.gpu.launching import num_multiprocessors
from mizzen_worker.kernels.gpu.skinny_tile import Tile


@dataclass(frozen=True, slots=True, kw_only=True)
class ManyTile(Tile):
    """A tile with experts' rows as the left operand.

    ``programs`` of a multiprocessor stay and take tiles in turn, so that the end of one tile runs
    beside the products of the next; 0: a program for each tile.
    """

    programs: int = 0

    def shared_bytes(self, element_size: int = 2, matrix_size: int | None = None) -> int:
        """With what half a tile of results takes on its way out, beside the next one's operands."""
        stored = self.rows * self.columns * element_size // 2 if self.programs else 0
        return Tile.shared_bytes(self, element_size, matrix_size) + stored


@triton.jit
def _place_of(item, tiles, begins, ends, until, EXPERTS_BLOCK: tl.constexpr, ROWS: tl.constexpr):
    """Of the item: its expert, the tile of its matrix, its rows' places and which of them exist."""
    block = item // tiles
    expert, first, end = find_block(begins, ends, until, block, EXPERTS_BLOCK, ROWS)
    place = first + tl.arange(0, ROWS)
    return expert, item % tiles, first, place, place < end


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
    STAYS: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    tiles = tl.cdiv(2 * F, COLUMNS)
    begins, ends, until = load_blocks(offsets, EXPERTS, EXPERTS_BLOCK, ROWS)
    done = tl.program_id(0)
    step = tl.num_programs(0)
    for item in tl.range(done, tl.max(until, axis=0) * tiles, step, flatten=STAYS):
        expert, tile, _, place, exists = _place_of(
            item, tiles, begins, ends, until, EXPERTS_BLOCK, ROWS
        )
        pair = tl.load(order + place, mask=exists, other=0)
        rows = inputs + (pair // CHOSEN).to(tl.int64)[:, None] * K + tl.arange(0, DEPTH)[None, :]
        both = tl.zeros([ROWS, COLUMNS], tl.float32)
        for k in tl.range(0, K, DEPTH, num_stages=STAGES):
            if IS_WHOLE:
                batch = tl.load(rows + k)  # Those that do not exist are the first token's.
            else:
                batch = tl.load(rows + k, mask=(k + tl.arange(0, DEPTH) < K)[None, :], other=0.0)
            matrix = matrices.load([expert * 2 * F + tile * COLUMNS, k])
            both = tl.dot(batch, matrix.T, both, input_precision=PRECISION)
        if STAYS:
            expert, tile, _, place, exists = _place_of(
                done, tiles, begins, ends, until, EXPERTS_BLOCK, ROWS
            )
            pair = tl.load(order + place, mask=exists, other=0)
        done += step
        weight = tl.load(weights + pair, mask=exists, other=0.0)
        gate, up = tl.split(tl.reshape(both, [ROWS, COLUMNS // 2, 2]))
        value = gate * tl.sigmoid(gate) * up * weight[:, None]
        column = tile * (COLUMNS // 2) + tl.arange(0, COLUMNS // 2)
        target = products + place.to(tl.int64)[:, None] * F + column[None, :]
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
    STAYS: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_launch_dependents()
        gdc_wait()
    tiles = tl.cdiv(N, COLUMNS)
    begins, ends, until = load_blocks(offsets, EXPERTS, EXPERTS_BLOCK, ROWS)
    done = tl.program_id(0)
    step = tl.num_programs(0)
    for item in tl.range(done, tl.max(until, axis=0) * tiles, step, flatten=STAYS):
        expert, tile, first, place, exists = _place_of(
            item, tiles, begins, ends, until, EXPERTS_BLOCK, ROWS
        )
        total = tl.zeros([ROWS, COLUMNS], tl.float32)
        for k in tl.range(0, K, DEPTH, num_stages=STAGES):
            batch = inputs.load([first, k])
            matrix = matrices.load([expert * N + tile * COLUMNS, k])
            total = tl.dot(batch, matrix.T, total, input_precision=PRECISION)
        if STAYS:
            expert, tile, _, place, exists = _place_of(
                done, tiles, begins, ends, until, EXPERTS_BLOCK, ROWS
            )
        done += step
        pair = tl.load(order + place, mask=exists, other=0)
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
    tile: ManyTile,
    launch: Mapping[str, Any],
) -> torch.Tensor:
    """As ``gated_few``, but in the order of ``sorted_pairs``."""
    experts, double, depth = matrices.shape
    num_tokens, num_chosen = weights.shape
    require_sizes(inputs, matrices, num_tokens)
    shape = (weights.numel(), double // 2)
    products = torch.empty(shape, dtype=inputs.dtype, device=inputs.device)
    if num_tokens:
        items = max_blocks(weights.numel(), experts, tile) * triton.cdiv(double, tile.columns)
        _gated_kernel[(_num_programs(items, tile),)](
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
            IS_WHOLE=depth % tile.depth == 0,
            **_options(inputs, experts, tile, launch),
        )
    return products


def down_many(
    inputs: torch.Tensor,
    matrices: torch.Tensor,
    num_chosen: int,
    sorted_pairs: tuple[torch.Tensor, torch.Tensor],
    tile: ManyTile,
    launch: Mapping[str, Any],
) -> torch.Tensor:
    """As ``down_few``, of inputs in the order of ``sorted_pairs``."""
    experts, outputs, depth = matrices.shape
    num_tokens = len(inputs) // num_chosen
    require_sizes(inputs, matrices, num_tokens * num_chosen)
    shape = (num_chosen, num_tokens, outputs)
    products = torch.empty(shape, dtype=inputs.dtype, device=inputs.device)
    if num_tokens:
        items = max_blocks(len(inputs), experts, tile) * triton.cdiv(outputs, tile.columns)
        _down_kernel[(_num_programs(items, tile),)](
            TensorDescriptor.from_tensor(
                matrices.view(experts * outputs, depth), [tile.columns, tile.depth]
            ),
            TensorDescriptor.from_tensor(inputs, [tile.rows, tile.depth]),
            *sorted_pairs,
            products,
            num_tokens,
            outputs,
            depth,
            CHOSEN=num_chosen,
            **_options(inputs, experts, tile, launch),
        )
    return products


def _num_programs(items: int, tile: ManyTile) -> int:
    return min(items, num_multiprocessors() * tile.programs) if tile.programs else items


def _options(
    inputs: torch.Tensor, experts: int, tile: ManyTile, launch: Mapping[str, Any]
) -> dict[str, Any]:
    return {
        "EXPERTS": experts,
        "EXPERTS_BLOCK": triton.next_power_of_2(experts),
        "ROWS": tile.rows,
        "COLUMNS": tile.columns,
        "DEPTH": tile.depth,
        "STAGES": tile.stages,
        "STAYS": tile.programs > 0,
        "PRECISION": "ieee" if inputs.dtype == torch.float32 else "tf32",
        "num_warps": tile.warps,
    } | dict(launch)
