"""Owns which configuration a product of few rows runs with; data and a lookup, launches nothing.

Keyed by the kind of product, the matrix and the bucket of rows. The winners were measured on an
H200 (SM 90, 132 multiprocessors); other matrices go by a rule, other devices by ``Tile.fitted``.
``None``: the library's product is faster.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, replace

from mizzen_worker.kernels.fp8_matrix import GROUP
from mizzen_worker.kernels.gpu.skinny_tile import Tile

BUCKETS = (16, 32, 64, 128, 160, 192, 240, 256)
"""Most rows of each bucket; above the last one products are the library's.

A tile costs as much for few of its rows as for all of them, the library's product rises with the
rows: so 240 is one of its own, where a tile that wins at 256 rows by little is not taken.
"""


class SkinnyProduct(enum.Enum):
    """What a product is followed by, which decides what a tile may do."""

    QKV = "qkv"
    """Sums of partial products by ``rotary_store``."""
    ADD = "add"
    """Sums of partial products by ``add_norm``."""
    GATE_UP = "gate_up"
    """SiLU and product, in the tile."""
    BEST = "best"
    """The best of each block, in the tile."""
    LOGITS = "logits"
    """Whole float32 rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """A matrix that a table knows: [outputs, inputs]."""

    product: SkinnyProduct
    outputs: int
    inputs: int


Choices = Mapping[int, Tile | None]
"""By bucket."""


_AHEAD = 1024
"""Bytes of each weight line asked of L2 before the wait, where that was measured to pay."""


def _tile(rows: int, columns: int, depth: int, stages: int, splits: int = 1) -> Tile:
    return Tile(rows=rows, columns=columns, depth=depth, stages=stages, splits=splits)


def _more(rows: int, more: int, columns: int, stages: int, splits: int = 1, warps: int = 4) -> Tile:
    """Rows that are no power of two, with 64 columns of K in a step."""
    return Tile(
        rows=rows, more=more, columns=columns, depth=64, stages=stages, splits=splits, warps=warps
    )


def _eager(rows: int, columns: int, depth: int, stages: int, splits: int = 1) -> Tile:
    return replace(_tile(rows, columns, depth, stages, splits), ahead=_AHEAD)


def _pair(rows: int, columns: int, depth: int, stages: int, warps: int = 4) -> Tile:
    """Gate and up in accumulators of their own, ``columns`` rows of each."""
    return Tile(
        rows=rows, columns=2 * columns, depth=depth, stages=stages, warps=warps, accumulators=2
    )


def _wide(rows: int, columns: int, depth: int, stages: int, splits: int = 1) -> Tile:
    """Eight warps for tiles that four cannot hold in registers."""
    return replace(_tile(rows, columns, depth, stages, splits), warps=8)


_LLAMA_8B: Mapping[Matrix, Choices] = {
    Matrix(product=SkinnyProduct.QKV, outputs=6144, inputs=4096): {
        16: _eager(16, 64, 256, 4),
        32: _eager(32, 64, 128, 6),
        64: _eager(64, 64, 128, 4),
        128: None,
        160: None,
        192: _more(128, 64, 64, 6),
        240: None,
        256: _wide(128, 128, 64, 6),
    },
    Matrix(product=SkinnyProduct.ADD, outputs=4096, inputs=4096): {
        16: _tile(16, 64, 256, 3, splits=2),
        32: _tile(32, 64, 256, 4, splits=2),
        64: _tile(64, 64, 128, 4, splits=2),
        128: _tile(128, 64, 64, 6, splits=2),
        160: _more(128, 32, 64, 6, splits=2),
        192: _more(128, 64, 64, 6, splits=2),
        240: None,
        256: _wide(256, 64, 64, 5, splits=2),
    },
    Matrix(product=SkinnyProduct.GATE_UP, outputs=28672, inputs=4096): {
        16: _pair(16, 64, 128, 4),
        32: _pair(32, 64, 128, 4),
        64: _pair(64, 64, 128, 4),
        128: _tile(128, 128, 64, 3),
        160: None,
        192: _more(128, 64, 128, 5),
        240: None,
        256: _pair(256, 64, 64, 4, warps=8),
    },
    Matrix(product=SkinnyProduct.ADD, outputs=4096, inputs=14336): {
        16: _tile(16, 64, 256, 3, splits=2),
        32: _tile(32, 64, 256, 4, splits=2),
        64: _tile(64, 64, 128, 4, splits=2),
        128: _tile(128, 64, 64, 6, splits=2),
        160: _more(128, 32, 64, 6, splits=2),
        192: _more(128, 64, 64, 6, splits=2),
        240: None,
        256: None,
    },
    Matrix(product=SkinnyProduct.BEST, outputs=128256, inputs=4096): {
        16: _tile(16, 128, 128, 3),
        32: _tile(32, 128, 128, 4),
        64: _tile(64, 128, 64, 4),
        128: _wide(128, 256, 64, 4),
        160: None,
        192: _more(128, 64, 128, 5),
        240: None,
        256: None,
    },
}

_QWEN_06B: Mapping[Matrix, Choices] = {
    Matrix(product=SkinnyProduct.QKV, outputs=4096, inputs=1024): {
        16: _eager(16, 64, 256, 3, splits=2),
        32: _eager(32, 64, 256, 3, splits=2),
        64: _eager(32, 64, 128, 4),
        128: _tile(64, 64, 128, 4),
        160: _more(128, 32, 64, 6, splits=2),
        192: _more(64, 32, 64, 6),
        240: _tile(128, 64, 64, 6),
        256: _tile(128, 64, 64, 6),
    },
    Matrix(product=SkinnyProduct.ADD, outputs=1024, inputs=2048): {
        16: _tile(16, 64, 256, 3, splits=4),
        32: _tile(32, 64, 256, 3, splits=4),
        64: _tile(32, 64, 256, 3, splits=4),
        128: _tile(64, 64, 128, 4, splits=4),
        160: _more(64, 16, 64, 6, splits=4),
        192: _more(64, 32, 64, 6, splits=4),
        240: _tile(128, 64, 64, 6, splits=4),
        256: _tile(128, 64, 64, 6, splits=4),
    },
    Matrix(product=SkinnyProduct.GATE_UP, outputs=6144, inputs=1024): {
        16: _eager(16, 64, 128, 6),
        32: _eager(32, 64, 128, 6),
        64: _eager(64, 64, 128, 4),
        128: _tile(128, 64, 64, 6),
        160: _more(128, 32, 64, 6),
        192: _more(128, 64, 64, 6),
        240: _wide(128, 128, 64, 5),
        256: _wide(128, 128, 64, 5),
    },
    Matrix(product=SkinnyProduct.ADD, outputs=1024, inputs=3072): {
        16: _eager(16, 64, 256, 3, splits=6),
        32: _eager(32, 64, 256, 3, splits=6),
        64: _tile(32, 64, 256, 3, splits=4),
        128: _tile(64, 64, 128, 4, splits=4),
        160: _more(64, 16, 64, 6, splits=4),
        192: _more(64, 32, 64, 6, splits=4),
        240: _tile(128, 64, 64, 6, splits=4),
        256: _tile(128, 64, 64, 6, splits=4),
    },
    Matrix(product=SkinnyProduct.BEST, outputs=151936, inputs=1024): {
        16: _tile(16, 128, 128, 3),
        32: _tile(32, 128, 64, 4),
        64: _tile(64, 128, 64, 4),
        128: _tile(128, 128, 64, 3),
        160: _more(128, 32, 256, 4, warps=8),
        192: _more(128, 64, 128, 5),
        240: _tile(128, 128, 64, 3),
        256: _tile(128, 128, 64, 3),
    },
}

_QWEN_30B_A3B: Mapping[Matrix, Choices] = {
    Matrix(product=SkinnyProduct.QKV, outputs=5120, inputs=2048): {
        16: _tile(16, 64, 128, 6),
        32: _tile(32, 64, 128, 6),
        64: _tile(64, 64, 128, 4),
        128: _tile(128, 64, 64, 6),
    },
    Matrix(product=SkinnyProduct.ADD, outputs=2048, inputs=4096): {
        16: _eager(16, 64, 128, 6, splits=2),
        32: _eager(32, 64, 128, 6, splits=2),
    },
}
"""Its attention; other sizes, and its head, go by the rule."""

_TABLE: Mapping[Matrix, Choices] = {**_LLAMA_8B, **_QWEN_06B, **_QWEN_30B_A3B}

_PROGRAMS = 132
"""Programs that a product should have at least: one for each multiprocessor."""

_LEAST_SPLIT_DEPTH = 512
"""Columns of K below which a piece is too short to fill its pipeline."""


def bucket_of(rows: int) -> int | None:
    """The smallest bucket that holds ``rows``; None above all of them."""
    return next((bucket for bucket in BUCKETS if rows <= bucket), None)


def choose(matrix: Matrix, rows: int) -> Tile | None:
    """The configuration for ``rows`` rows on an H200, or None for the library's product."""
    bucket = bucket_of(rows)
    if bucket is None:
        return None
    known = _TABLE.get(matrix, {})
    return known[bucket] if bucket in known else by_rule(matrix, bucket)


def choose_fp8(matrix: Matrix, rows: int, *, is_grouped: bool) -> Tile | None:
    """For an FP8 matrix, which has no library's product beside activations of bfloat16.

    ``is_grouped``: its scales are of groups of columns.
    """
    bucket = bucket_of(rows)
    if bucket is None:
        return None
    # More rows go in several tiles of the batch: their matrix comes from L2 but for the first. Two
    # accumulators with a sum of one group each beside them have registers for 64.
    most = 64 if is_grouped and matrix.product is SkinnyProduct.GATE_UP else 128
    tile = by_rule(matrix, min(bucket, most))
    if tile is None or not is_grouped:
        return tile
    return replace(tile, depth=min(tile.depth, GROUP))


def by_rule(matrix: Matrix, bucket: int) -> Tile | None:
    """What the measured winners have in common."""
    if bucket > 128 or (
        bucket == 128 and matrix.product in (SkinnyProduct.BEST, SkinnyProduct.LOGITS)
    ):
        return None
    depth, stages = {16: (256, 3), 32: (128, 4), 64: (128, 4), 128: (64, 5)}[bucket]
    tile = _tile(bucket, 64, depth, stages)
    match matrix.product:
        case SkinnyProduct.QKV | SkinnyProduct.ADD:
            return replace(tile, splits=_splits(matrix))
        case SkinnyProduct.GATE_UP if matrix.outputs // 128 >= _PROGRAMS // 2:
            return replace(tile, columns=128, depth=min(depth, 128), accumulators=2)
        case SkinnyProduct.BEST | SkinnyProduct.LOGITS:
            return replace(tile, columns=128, depth=64, stages=4)
        case _:
            return tile


def _splits(matrix: Matrix) -> int:
    """1, 2 or 4 pieces of K, until there are enough programs or the pieces get short."""
    splits = 1
    programs = -(-matrix.outputs // 64)
    while (
        splits < 4
        and programs * splits < _PROGRAMS
        and matrix.inputs // (2 * splits) >= _LEAST_SPLIT_DEPTH
    ):
        splits *= 2
    return splits
