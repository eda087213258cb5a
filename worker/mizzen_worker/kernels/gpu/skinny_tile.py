"""Owns one tile of a skinny product: its sizes, and its sums inside a kernel; no epilogue."""

from dataclasses import dataclass, replace
from typing import Self

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait

from mizzen_worker.kernels.fp8_matrix import GROUP

_GROUP = tl.constexpr(GROUP)
LINE = 128
"""Bytes of one line of the L2 cache."""
_BARRIERS = 256
"""Bytes, rounded up."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tile:
    """One configuration of a product.

    ``rows`` of the batch and ``columns`` (rows of the matrix) of one program, ``depth``: columns of
    K in one step, ``stages`` of them in flight. ``more``: rows of the batch behind those, in sums
    of their own, because a block's sides are powers of two: 128 + 64 rows are multiplied with one
    reading of the matrix, and without 64 rows of padding. ``accumulators`` 2: gate and up are two
    tiles of half the columns. ``ahead``: bytes of each of its matrix's rows that a dependent launch
    asks L2 for before it waits.
    """

    rows: int
    columns: int
    depth: int
    stages: int
    warps: int = 4
    more: int = 0
    splits: int = 1
    accumulators: int = 1
    ahead: int = 0

    @property
    def all_rows(self) -> int:
        """Rows of the batch of one program."""
        return self.rows + self.more

    def shared_bytes(self, element_size: int = 2, matrix_size: int | None = None) -> int:
        """Shared memory of the operands and of the barriers of their copies.

        ``matrix_size``: bytes of an element of the matrix, where it has another type.
        """
        line = self.all_rows * element_size + self.columns * (matrix_size or element_size)
        return self.stages * line * self.depth + _BARRIERS

    def fitted(self, limit: int, element_size: int = 2, matrix_size: int | None = None) -> Self:
        """The same tile with as many stages, or as much depth, as ``limit`` bytes allow."""
        tile = self
        while tile.shared_bytes(element_size, matrix_size) > limit:
            if tile.stages > 2:
                tile = replace(tile, stages=tile.stages - 1)
            elif tile.depth > 16:
                tile = replace(tile, depth=tile.depth // 2)
            else:
                message = f"{self} does not fit into {limit} bytes of shared memory"
                raise ValueError(message)
        return tile


@triton.jit
def ask_ahead(matrix, first_row, first_column, N, K, COLUMNS: tl.constexpr, AHEAD: tl.constexpr):
    """Ask L2 for the first bytes of the program's rows; nothing waits for them."""
    size: tl.constexpr = matrix.dtype.element_ty.primitive_bitwidth // 8
    row = tl.minimum(first_row + tl.arange(0, COLUMNS), N - 1).to(tl.int64)
    column = first_column + tl.arange(0, AHEAD // 128) * (128 // size)
    column = tl.minimum(column, K - 1)
    address = (matrix + row[:, None] * K + column[None, :]).to(tl.int64)
    tl.inline_asm_elementwise(
        "prefetch.global.L2 [$1]; mov.u32 $0, 0;",
        "=r,l",
        [address],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )


@triton.jit
def begin_tile(
    matrix,
    first_row,
    first_column,
    N,
    K,
    COLUMNS: tl.constexpr,
    AHEAD: tl.constexpr,
    PDL: tl.constexpr,
):
    if PDL:
        gdc_launch_dependents()
        if AHEAD > 0:
            ask_ahead(matrix, first_row, first_column, N, K, COLUMNS, AHEAD)
        gdc_wait()


@triton.jit
def add_step(total, weights, batch, scales, k, N, GROUPS: tl.constexpr, PRECISION: tl.constexpr):
    """``total`` and one step of K; ``scales`` point to the first group's, of the tile's rows."""
    weights = weights.to(batch.dtype)
    if GROUPS > 1:
        part = tl.dot(weights, batch, input_precision=PRECISION)
        total += part * tl.load(scales + (k // _GROUP) * N)[:, None]
    else:
        total = tl.dot(weights, batch, total, input_precision=PRECISION)
    return total


@triton.jit
def accumulate(
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
    GROUPS: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    ROWS: tl.constexpr,
    MORE: tl.constexpr,
    COLUMNS: tl.constexpr,
    DEPTH: tl.constexpr,
    STAGES: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """[COLUMNS, ROWS] and [COLUMNS, MORE] float32: rows of the matrix times rows of the batch.

    Scaled, with the bias: rows of the last tile that do not exist have those of the last one.
    Without MORE the second is the first, and not to be used.
    """
    total = tl.zeros([COLUMNS, ROWS], tl.float32)
    row = tl.minimum(first_row + tl.arange(0, COLUMNS), N - 1)
    scales = scale + row
    if MORE > 0:
        more = tl.zeros([COLUMNS, MORE], tl.float32)
        for k in tl.range(begin, end, DEPTH, num_stages=STAGES):
            weights = left.load([first_row, k])
            batch = right.load([first_input, k])
            total = add_step(total, weights, batch.T, scales, k, N, GROUPS, PRECISION)
            others = right_more.load([first_input + ROWS, k])
            more = add_step(more, weights, others.T, scales, k, N, GROUPS, PRECISION)
        if GROUPS == 1:
            more *= tl.load(scales)[:, None]
    else:
        more = total
        for k in tl.range(begin, end, DEPTH, num_stages=STAGES):
            batch = right.load([first_input, k])
            weights = left.load([first_row, k])
            total = add_step(total, weights, batch.T, scales, k, N, GROUPS, PRECISION)
    if GROUPS == 1:
        total *= tl.load(scales)[:, None]
    if HAS_BIAS:
        added = tl.load(bias + row)[:, None]
        total += added
        more += added
    return total, more
