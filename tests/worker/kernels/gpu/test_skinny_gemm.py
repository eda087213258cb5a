"""Skinny products equal plain ones: sizes that divide no tile, splits, biases, ties and NaN."""

import dataclasses
import math

import pytest
import torch
from tests.worker.kernels.gpu.ahead_of_time import compile_elsewhere
from tests.worker.kernels.gpu.skinny_instances import shipped_tiles, warm_up

from mizzen_worker.kernels.gpu.claimed_driver import SHARED_MEMORY_BY_CAPABILITY
from mizzen_worker.kernels.gpu.launching import PLAIN, compute_capability, shared_memory
from mizzen_worker.kernels.gpu.skinny_best import best_of_blocks
from mizzen_worker.kernels.gpu.skinny_gemm import gated, multiply
from mizzen_worker.kernels.gpu.skinny_tile import Tile

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = [torch.float32, torch.bfloat16] if DEVICE.type == "cuda" else [torch.float32]
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
"""Sums in another order; bfloat16: one rounding of the result, and of a product behind SiLU."""

SMALL = Tile(rows=16, columns=32, depth=16, stages=2)
SHAPES = [(2, 32, 16), (16, 96, 48), (21, 70, 80), (5, 33, 112)]
"""Rows, outputs, depth."""


def operands(
    rows: int, outputs: int, depth: int, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(rows * outputs)
    inputs, matrix = torch.randn(rows, depth), torch.randn(outputs, depth) * depth**-0.5
    return inputs.to(DEVICE, dtype), matrix.to(DEVICE, dtype), torch.randn(outputs).to(DEVICE)


def plain(inputs: torch.Tensor, matrix: torch.Tensor) -> torch.Tensor:
    return inputs.double() @ matrix.double().t()


def assert_close(found: torch.Tensor, expected: torch.Tensor, dtype: torch.dtype) -> None:
    tolerance = TOLERANCE[dtype]
    torch.testing.assert_close(found.double(), expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "outputs", "depth"), SHAPES)
@pytest.mark.parametrize("splits", [1, 2, 4])
def test_partial_products_add_up(
    rows: int, outputs: int, depth: int, splits: int, dtype: torch.dtype
) -> None:
    inputs, matrix, bias = operands(rows, outputs, depth, dtype)
    tile = dataclasses.replace(SMALL, splits=splits)
    is_biased = splits == 1
    found = multiply(
        inputs,
        matrix,
        tile,
        dtype=torch.float32,
        launch=PLAIN,
        bias=bias if is_biased else None,
    )
    assert found.shape == (splits, rows, outputs)
    expected = plain(inputs, matrix) + (bias if is_biased else 0)
    assert_close(found.sum(0), expected, dtype)


MORE = dataclasses.replace(SMALL, more=32)
"""One tile of 48 rows."""


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [5, 48, 70])
def test_more_rows_have_sums_of_their_own(rows: int, dtype: torch.dtype) -> None:
    inputs, matrix, bias = operands(rows, 70, 80, dtype)
    expected = plain(inputs, matrix)
    split = dataclasses.replace(MORE, splits=2)
    partial = multiply(inputs, matrix, split, dtype=torch.float32, launch=PLAIN)
    assert_close(partial.sum(0), expected, dtype)
    whole = multiply(inputs, matrix, MORE, dtype=torch.float32, launch=PLAIN, bias=bias)
    assert_close(whole[0], expected + bias, dtype)
    both = expected + bias
    silu = torch.nn.functional.silu(both[:, ::2]) * both[:, 1::2]
    assert_close(gated(inputs, matrix, MORE, launch=PLAIN, bias=bias), silu, dtype)
    values, ids = best_of_blocks(inputs, matrix, MORE, launch=PLAIN, bias=bias)
    best = both.max(-1)
    assert_close(values.max(-1).values, best.values, dtype)
    found = ids.gather(1, values.argmax(-1, keepdim=True))[:, 0].long()
    assert_close(both.gather(1, found[:, None])[:, 0].float(), best.values, dtype)


def test_gate_and_up_apart_have_no_more_rows() -> None:
    inputs, matrix, _ = operands(40, 32, 16, torch.float32)
    tile = dataclasses.replace(MORE, accumulators=2)
    with pytest.raises(ValueError, match="not both"):
        gated(inputs, matrix, tile, launch=PLAIN)


def test_a_split_is_the_product_over_its_piece() -> None:
    inputs, matrix, _ = operands(3, 32, 80, torch.float32)
    tile = dataclasses.replace(SMALL, splits=2)
    found = multiply(inputs, matrix, tile, dtype=torch.float32, launch=PLAIN)
    assert_close(found[0], plain(inputs[:, :48], matrix[:, :48]), torch.float32)
    assert_close(found[1], plain(inputs[:, 48:], matrix[:, 48:]), torch.float32)


def test_the_result_is_rounded_once_to_the_dtype_asked_for() -> None:
    inputs, matrix, _ = operands(4, 64, 32, torch.float32)
    found = multiply(inputs, matrix, SMALL, dtype=torch.bfloat16, launch=PLAIN)
    assert found.dtype == torch.bfloat16
    assert_close(found[0], plain(inputs, matrix), torch.bfloat16)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "outputs", "depth"), SHAPES[:3])
@pytest.mark.parametrize("accumulators", [1, 2])
@pytest.mark.parametrize("has_bias", [False, True])
def test_gate_and_up_alternate(
    rows: int, outputs: int, depth: int, accumulators: int, *, has_bias: bool, dtype: torch.dtype
) -> None:
    inputs, matrix, bias = operands(rows, outputs, depth, dtype)
    tile = dataclasses.replace(SMALL, accumulators=accumulators)
    found = gated(inputs, matrix, tile, launch=PLAIN, bias=bias if has_bias else None)
    both = plain(inputs, matrix) + (bias if has_bias else 0)
    expected = torch.nn.functional.silu(both[:, ::2]) * both[:, 1::2]
    assert found.dtype == dtype
    assert_close(found, expected, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "outputs", "depth"), SHAPES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_the_best_of_each_block(
    rows: int, outputs: int, depth: int, *, has_bias: bool, dtype: torch.dtype
) -> None:
    inputs, matrix, bias = operands(rows, outputs, depth, dtype)
    values, ids = best_of_blocks(
        inputs, matrix, SMALL, launch=PLAIN, bias=bias if has_bias else None
    )
    logits = plain(inputs, matrix) + (bias if has_bias else 0)
    blocks = math.ceil(outputs / SMALL.columns)
    assert values.shape == ids.shape == (rows, blocks)
    padded = torch.full((rows, blocks * SMALL.columns), -torch.inf).double().to(DEVICE)
    padded[:, :outputs] = logits
    expected = padded.view(rows, blocks, -1).max(-1)
    assert_close(values, expected.values, dtype)
    offsets = torch.arange(blocks, device=DEVICE) * SMALL.columns
    assert torch.equal(ids.long(), expected.indices + offsets)


def test_a_nan_shows_in_its_block_only_and_ties_go_to_the_lowest_row() -> None:
    inputs = torch.zeros(2, 16, device=DEVICE)
    inputs[0, 0] = 1
    matrix = torch.zeros(64, 16, device=DEVICE)
    matrix[40, 0], matrix[50, 0], matrix[3, 0] = 5, 5, torch.nan
    values, ids = best_of_blocks(inputs, matrix, SMALL, launch=PLAIN)
    assert values[0, 0].isnan()
    assert values[0, 1] == 5
    assert ids[0, 1] == 40
    assert ids[1, 1] == 32


def test_what_does_not_fit_together_is_refused() -> None:
    inputs, matrix, bias = operands(2, 32, 16, torch.float32)
    with pytest.raises(ValueError, match="cannot be multiplied"):
        multiply(inputs[:, :8], matrix, SMALL, dtype=torch.float32, launch=PLAIN)
    with pytest.raises(ValueError, match="multiple of 16 bytes"):
        multiply(
            inputs[:, :9].contiguous(),
            matrix[:, :9].contiguous(),
            SMALL,
            dtype=torch.float32,
            launch=PLAIN,
        )
    split = dataclasses.replace(SMALL, splits=2)
    with pytest.raises(ValueError, match="add it to their sum"):
        multiply(inputs, matrix, split, dtype=torch.float32, launch=PLAIN, bias=bias)
    with pytest.raises(ValueError, match="even and unsplit"):
        gated(inputs, matrix, split, launch=PLAIN)


@pytest.mark.parametrize("limit", SHARED_MEMORY_BY_CAPABILITY.values())
def test_a_fitted_tile_keeps_its_shape_and_fits(limit: int) -> None:
    tile = Tile(rows=256, columns=128, depth=64, stages=5)
    fitted = tile.fitted(limit)
    assert fitted.shared_bytes() <= limit
    assert (fitted.rows, fitted.columns) == (256, 128)
    small = Tile(rows=16, columns=64, depth=64, stages=3)
    assert small.fitted(limit) == small


def test_a_tile_that_fits_nowhere_is_refused() -> None:
    with pytest.raises(ValueError, match="does not fit into 1000 bytes"):
        Tile(rows=256, columns=256, depth=16, stages=2).fitted(1000)


def launch_all() -> None:
    """Every configuration that the tables give for the models of the benchmarks."""
    for product, tile in sorted(shipped_tiles(shared_memory()), key=str):
        warm_up(product, tile, compute_capability())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_compiles_without_spills() -> None:
    """For SM 90 only: before it the library multiplies, see ``has_tensor_copies``.

    The head's search of 192 rows has a few words on the stack (48 bytes with Triton 3.6, 136 with
    3.9), and was measured to be the fastest.
    """
    records = compile_elsewhere(__name__, 90)
    most = {"_best_kernel": 136}
    assert all(record["stack"] <= most.get(record["kernel"], 0) for record in records)
