"""Owns the head's product of few rows with the best of each block in it; see ``skinny_gemm.py``.

``best_of_blocks``: largest product of each block of N and its row, as of ``HeadOutput``; ``bias``
[N] float32. The tile's columns are the block.
"""

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from mizzen_worker.kernels.gpu.block_best import best_along
from mizzen_worker.kernels.gpu.skinny_launch import batches, require_sizes, tile_options
from mizzen_worker.kernels.gpu.skinny_tile import Tile, accumulate, begin_tile


@triton.jit
def _store_best(
    best_values,
    best_ids,
    total,
    block,
    first_input,
    rows,
    N,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    column = block * COLUMNS + tl.arange(0, COLUMNS)
    # The matrix ends inside the last block: rows of zeros behind it must not win.
    best, index = best_along(tl.where((column < N)[:, None], total, -float("inf")), 0)
    row = first_input + tl.arange(0, ROWS)
    place = row * tl.cdiv(N, COLUMNS) + block
    tl.store(best_values + place, best, mask=row < rows)
    tl.store(best_ids + place, block * COLUMNS + index, mask=row < rows)


@triton.jit(do_not_specialize=["rows"])
def _best_kernel(
    left,
    right,
    right_more,
    matrix,
    bias,
    best_values,
    best_ids,
    rows,
    N,
    K,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    MORE: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    AHEAD: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    program = tl.program_id(0)
    batch_tiles = tl.cdiv(rows, ROWS + MORE)
    first_input = (program % batch_tiles) * (ROWS + MORE)
    block = program // batch_tiles
    first_row = block * COLUMNS
    begin_tile(matrix, first_row, 0, N, K, COLUMNS, AHEAD, PDL)
    total, more = accumulate(
        left,
        right,
        right_more,
        bias,
        bias,
        first_row,
        first_input,
        0,
        K,
        N,
        0,
        HAS_BIAS,
        ROWS,
        MORE,
        COLUMNS,
        DEPTH,
        STAGES,
        PRECISION,
    )
    _store_best(best_values, best_ids, total, block, first_input, rows, N, ROWS, COLUMNS)
    if MORE > 0:
        first_input += ROWS
        _store_best(best_values, best_ids, more, block, first_input, rows, N, MORE, COLUMNS)


def best_of_blocks(
    inputs: torch.Tensor,
    matrix: torch.Tensor,
    tile: Tile,
    *,
    launch: Mapping[str, Any],
    bias: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Best values [rows, blocks] float32 and rows of the matrix [rows, blocks] int32."""
    rows, outputs, depth = require_sizes(inputs, matrix)
    blocks = triton.cdiv(outputs, tile.columns)
    values = torch.empty((rows, blocks), dtype=torch.float32, device=inputs.device)
    ids = torch.empty((rows, blocks), dtype=torch.int32, device=inputs.device)
    _best_kernel[(triton.cdiv(rows, tile.all_rows) * blocks,)](
        TensorDescriptor.from_tensor(matrix, [tile.columns, tile.depth]),
        *batches(inputs, tile),
        matrix,
        matrix if bias is None else bias,
        values,
        ids,
        rows,
        outputs,
        depth,
        HAS_BIAS=bias is not None,
        **tile_options(inputs, tile, launch),
    )
    return values, ids
