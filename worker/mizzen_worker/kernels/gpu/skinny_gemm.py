"""Owns products of few rows with a matrix: the matrix is the left operand, the rows its columns.

So a batch of 2 to 256 rows costs no padding to a tensor core's 64 rows, and the matrix is read
once. Knows no layer; what a tile is good for is in ``layers/gpu/skinny_tiles.py``.

``inputs`` [rows, K] and ``matrix`` [N, K]: the same dtype, contiguous, K a multiple of 16 bytes,
at aligned addresses (both are read through tensor descriptors, which give zeros outside). Any rows
and N. Products are summed in float32. ``bias`` [N] float32. The matrix may be FP8 with a ``scale``
(``fp8_matrix.py``): it is converted on its way from shared memory to the tensor core; where the
scale has groups, ``depth`` divides them.

- ``multiply``: [splits, rows, N], the partial products of ``splits`` pieces of K, each summed in
  order; the bias may be added where there is one split;
- ``gated``: ``silu(gate) * up`` [rows, N / 2] of a matrix whose rows alternate gate, up.

Grid: batch tiles next to each other (they share the matrix's tile through L2), then splits, then
tiles of N. ``matrix`` is read before the wait of a dependent launch: it is a constant.
"""

from collections.abc import Mapping
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from mizzen_worker.kernels.fp8_matrix import GROUP, require_scale
from mizzen_worker.kernels.gpu.skinny_launch import batches, require_sizes, tile_options
from mizzen_worker.kernels.gpu.skinny_tile import Tile, accumulate, add_step, begin_tile


@triton.jit
def _store_products(
    products,
    total,
    split,
    first_input,
    first_row,
    rows,
    N,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    column = first_row + tl.arange(0, COLUMNS)
    row = first_input + tl.arange(0, ROWS)
    place = (split * rows + row).to(tl.int64)[:, None] * N + column[None, :]
    exists = (row < rows)[:, None] & (column < N)[None, :]
    tl.store(products + place, tl.trans(total).to(products.dtype.element_ty), mask=exists)


@triton.jit(do_not_specialize=["rows"])
def _multiply_kernel(
    left,
    right,
    right_more,
    matrix,
    scale,
    bias,
    products,
    rows,
    N,
    K,
    split_depth,
    SPLITS: tl.constexpr,
    GROUPS: tl.constexpr,
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
    split = (program // batch_tiles) % SPLITS
    first_row = program // batch_tiles // SPLITS * COLUMNS
    begin = split * split_depth
    begin_tile(matrix, first_row, begin, N, K, COLUMNS, AHEAD, PDL)
    end = tl.minimum(begin + split_depth, K)
    total, more = accumulate(
        left,
        right,
        right_more,
        scale,
        bias,
        first_row,
        first_input,
        begin,
        end,
        N,
        GROUPS,
        HAS_BIAS,
        ROWS,
        MORE,
        COLUMNS,
        DEPTH,
        STAGES,
        PRECISION,
    )
    _store_products(products, total, split, first_input, first_row, rows, N, ROWS, COLUMNS)
    if MORE > 0:
        first_input += ROWS
        _store_products(products, more, split, first_input, first_row, rows, N, MORE, COLUMNS)


@triton.jit
def _alternating_gated(both, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """[ROWS, COLUMNS / 2] of sums [COLUMNS, ROWS] whose gates and ups take turns."""
    gate, up = tl.split(tl.reshape(tl.trans(both), [ROWS, COLUMNS // 2, 2]))
    return gate * tl.sigmoid(gate) * up


@triton.jit
def _store_gated(
    products, value, first_input, first_row, rows, N, ROWS: tl.constexpr, COLUMNS: tl.constexpr
):
    column = first_row // 2 + tl.arange(0, COLUMNS // 2)
    row = first_input + tl.arange(0, ROWS)
    place = row.to(tl.int64)[:, None] * (N // 2) + column[None, :]
    exists = (row < rows)[:, None] & (column < N // 2)[None, :]
    tl.store(products + place, value.to(products.dtype.element_ty), mask=exists)


@triton.jit(do_not_specialize=["rows"])
def _gated_kernel(
    left,
    left_up,
    right,
    right_more,
    matrix,
    scale,
    bias,
    products,
    rows,
    N,
    K,
    GROUPS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ACCUMULATORS: tl.constexpr,
    ROWS: tl.constexpr,
    MORE: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    AHEAD: tl.constexpr,
    PRECISION: tl.constexpr,
    PDL: tl.constexpr,
):
    """With 2 accumulators ``left``/``left_up`` see the even and the odd rows of the matrix."""
    HALF: tl.constexpr = COLUMNS // 2
    program = tl.program_id(0)
    batch_tiles = tl.cdiv(rows, ROWS + MORE)
    first_input = (program % batch_tiles) * (ROWS + MORE)
    first_row = program // batch_tiles * COLUMNS
    begin_tile(matrix, first_row, 0, N, K, COLUMNS, AHEAD, PDL)
    column = first_row // 2 + tl.arange(0, HALF)
    if ACCUMULATORS == 2:
        gate = tl.zeros([HALF, ROWS], tl.float32)
        up = tl.zeros([HALF, ROWS], tl.float32)
        gate_scales = scale + 2 * tl.minimum(column, N // 2 - 1)
        for k in tl.range(0, K, DEPTH, num_stages=STAGES):
            batch = right.load([first_input, k]).T
            gate_rows = left.load([first_row // 2, k])
            gate = add_step(gate, gate_rows, batch, gate_scales, k, N, GROUPS, PRECISION)
            up_rows = left_up.load([first_row // 2, k])
            up = add_step(up, up_rows, batch, gate_scales + 1, k, N, GROUPS, PRECISION)
        if GROUPS == 1:
            gate *= tl.load(gate_scales)[:, None]
            up *= tl.load(gate_scales + 1)[:, None]
        if HAS_BIAS:
            is_there = column < N // 2
            gate += tl.load(bias + 2 * column, mask=is_there, other=0.0)[:, None]
            up += tl.load(bias + 2 * column + 1, mask=is_there, other=0.0)[:, None]
        value = tl.trans(gate * tl.sigmoid(gate) * up)
    else:
        both, more = accumulate(
            left,
            right,
            right_more,
            scale,
            bias,
            first_row,
            first_input,
            0,
            K,
            N,
            GROUPS,
            HAS_BIAS,
            ROWS,
            MORE,
            COLUMNS,
            DEPTH,
            STAGES,
            PRECISION,
        )
        value = _alternating_gated(both, ROWS, COLUMNS)
        if MORE > 0:
            others = _alternating_gated(more, MORE, COLUMNS)
            _store_gated(products, others, first_input + ROWS, first_row, rows, N, MORE, COLUMNS)
    _store_gated(products, value, first_input, first_row, rows, N, ROWS, COLUMNS)


def multiply(
    inputs: torch.Tensor,
    matrix: torch.Tensor,
    tile: Tile,
    *,
    dtype: torch.dtype,
    launch: Mapping[str, Any],
    bias: torch.Tensor | None = None,
    scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """Partial products [splits, rows, N] in ``dtype``; ``bias`` only with one split."""
    rows, outputs, depth = require_sizes(inputs, matrix)
    if bias is not None and tile.splits > 1:
        message = f"a bias cannot be added to {tile.splits} partial products; add it to their sum"
        raise ValueError(message)
    products = torch.empty((tile.splits, rows, outputs), dtype=dtype, device=inputs.device)
    # Whole steps of K in every split; the last may have fewer, or none.
    steps = triton.cdiv(triton.cdiv(depth, tile.depth), tile.splits)
    grid = triton.cdiv(rows, tile.all_rows) * tile.splits * triton.cdiv(outputs, tile.columns)
    _multiply_kernel[(grid,)](
        TensorDescriptor.from_tensor(matrix, [tile.columns, tile.depth]),
        *batches(inputs, tile),
        matrix,
        inputs if scale is None else scale,
        matrix if bias is None else bias,
        products,
        rows,
        outputs,
        depth,
        steps * tile.depth,
        SPLITS=tile.splits,
        GROUPS=_num_groups(matrix, scale, tile),
        HAS_BIAS=bias is not None,
        **tile_options(inputs, tile, launch),
    )
    return products


def gated(
    inputs: torch.Tensor,
    matrix: torch.Tensor,
    tile: Tile,
    *,
    launch: Mapping[str, Any],
    bias: torch.Tensor | None = None,
    scale: torch.Tensor | None = None,
) -> torch.Tensor:
    """``silu(gate) * up`` [rows, N / 2] in the dtype of ``inputs``."""
    rows, outputs, depth = require_sizes(inputs, matrix)
    if outputs % 2 or tile.splits > 1:
        message = f"{outputs} alternating rows in {tile.splits} splits: even and unsplit only"
        raise ValueError(message)
    if tile.accumulators > 1 and tile.more:
        message = f"{tile} has four sums: gate and up apart, or more rows, not both"
        raise ValueError(message)
    products = torch.empty((rows, outputs // 2), dtype=inputs.dtype, device=inputs.device)
    pairs = matrix.view(outputs // 2, 2, depth)
    sides = [pairs[:, 0], pairs[:, 1]] if tile.accumulators == 2 else [matrix, matrix]
    box = [tile.columns // tile.accumulators, tile.depth]
    grid = triton.cdiv(rows, tile.all_rows) * triton.cdiv(outputs, tile.columns)
    _gated_kernel[(grid,)](
        *(TensorDescriptor.from_tensor(side, box) for side in sides),
        *batches(inputs, tile),
        matrix,
        inputs if scale is None else scale,
        matrix if bias is None else bias,
        products,
        rows,
        outputs,
        depth,
        GROUPS=_num_groups(matrix, scale, tile),
        HAS_BIAS=bias is not None,
        ACCUMULATORS=tile.accumulators,
        **tile_options(inputs, tile, launch),
    )
    return products


def _num_groups(matrix: torch.Tensor, scale: torch.Tensor | None, tile: Tile) -> int:
    groups = require_scale(matrix, scale)
    if groups > 1 and GROUP % tile.depth:
        message = f"a step of {tile.depth} columns is not part of one group of {GROUP}"
        raise ValueError(message)
    return groups
