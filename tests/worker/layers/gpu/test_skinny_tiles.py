"""The table of tiles: known matrices, the rule for others, limits of the hardware."""

import pytest

from mizzen_worker.layers.gpu.skinny_tiles import (
    BUCKETS,
    Matrix,
    SkinnyProduct,
    bucket_of,
    by_rule,
    choose,
)

MATRICES = [
    Matrix(product=product, outputs=outputs, inputs=inputs)
    for product in SkinnyProduct
    for outputs, inputs in ((6144, 4096), (1024, 2048), (28672, 4096), (101, 48), (2048, 6144))
]


def test_buckets_hold_their_rows() -> None:
    rows_of_each = (1, 16, 17, 129, 161, 193, 241, 256, 257)
    buckets = [16, 16, 32, 160, 192, 240, 256, 256, None]
    assert [bucket_of(rows) for rows in rows_of_each] == buckets


def test_above_the_buckets_the_library_multiplies() -> None:
    assert all(choose(matrix, 257) is None for matrix in MATRICES)


def test_a_measured_winner_is_taken() -> None:
    tile = choose(Matrix(product=SkinnyProduct.ADD, outputs=1024, inputs=2048), 9)
    assert tile is not None
    assert (tile.rows, tile.columns, tile.splits) == (16, 64, 4)


@pytest.mark.parametrize("matrix", MATRICES, ids=str)
@pytest.mark.parametrize("bucket", BUCKETS)
def test_a_tile_is_one_that_its_kernel_can_be(matrix: Matrix, bucket: int) -> None:
    for tile in (choose(matrix, bucket), by_rule(matrix, bucket)):
        if tile is None:
            continue
        # Boxes of tensor descriptors have at most 256 rows; sides are powers of two.
        assert all(side & (side - 1) == 0 for side in (tile.rows, tile.columns, tile.depth))
        assert tile.columns // tile.accumulators <= 256
        assert tile.rows <= 256
        assert tile.splits == 1 or matrix.product in (SkinnyProduct.QKV, SkinnyProduct.ADD)
        assert tile.accumulators == 1 or matrix.product is SkinnyProduct.GATE_UP
        assert tile.fitted(232_448).rows == tile.rows


def test_a_small_matrix_is_split_until_there_are_programs_enough() -> None:
    small = by_rule(Matrix(product=SkinnyProduct.ADD, outputs=2048, inputs=4096), 16)
    large = by_rule(Matrix(product=SkinnyProduct.ADD, outputs=16384, inputs=4096), 16)
    short = by_rule(Matrix(product=SkinnyProduct.ADD, outputs=512, inputs=256), 16)
    assert [tile.splits for tile in (small, large, short) if tile] == [4, 1, 1]
