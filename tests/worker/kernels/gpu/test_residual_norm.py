"""Lookup, sum and RMS norm of rows equal their meaning: widths, splits, biases, weights, dtypes."""

import pytest
import torch
from tests import benchmark_models
from tests.worker.kernels.gpu.ahead_of_time import compile_elsewhere, empty

from mizzen_worker.kernels.gpu.launching import PLAIN, dependent
from mizzen_worker.kernels.gpu.residual_norm import (
    add_norm,
    embed_norm,
    rms_norm,
    row_scales,
)
from mizzen_worker.kernels.reference import rms_norm as reference

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = [torch.float32, torch.bfloat16]
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2}
"""Sums in another order; bfloat16: one rounding of the hidden row, one of its norm."""
EPS = 1e-6
WIDTHS = [16, 48, 1000, 1024]


def normed_of(hidden: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    ones = torch.ones(hidden.shape[-1], device=DEVICE)
    return reference.rms_norm(hidden.float(), ones if weight is None else weight.float(), EPS)


def assert_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    tolerance = TOLERANCE[found.dtype]
    torch.testing.assert_close(found.float(), expected.float(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_rows_of_the_embedding_come_with_their_norm(width: int, dtype: torch.dtype) -> None:
    torch.manual_seed(width)
    embedding = torch.randn(11, width).to(DEVICE, dtype)
    token_ids = torch.tensor([10, 0, 3, 3], device=DEVICE)
    hidden, normed = embed_norm(embedding, token_ids, EPS, PLAIN)
    assert torch.equal(hidden, embedding[token_ids])
    assert_close(normed, normed_of(hidden, None))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("splits", [1, 3])
@pytest.mark.parametrize("has_bias", [False, True])
def test_partial_products_are_added_to_the_residual(
    width: int, splits: int, *, has_bias: bool, dtype: torch.dtype
) -> None:
    torch.manual_seed(width)
    residual = torch.randn(5, width).to(DEVICE, dtype)
    partials = torch.randn(splits, 5, width).to(DEVICE, torch.float32 if splits > 1 else dtype)
    bias = torch.randn(width).to(DEVICE) if has_bias else None
    weight = torch.rand(width).to(DEVICE, dtype) if has_bias else None
    expected = residual.float() + partials.float().sum(0) + (0 if bias is None else bias)
    normed = add_norm(residual, partials, EPS, PLAIN, bias=bias, weight=weight)
    assert_close(residual, expected)
    assert_close(normed, normed_of(residual, weight))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("has_weight", [False, True])
def test_rows_are_normed_as_they_are(*, has_weight: bool, dtype: torch.dtype) -> None:
    rows = torch.randn(3, 80).to(DEVICE, dtype)
    before = rows.clone()
    weight = torch.rand(80).to(DEVICE, dtype) if has_weight else None
    assert_close(rms_norm(rows, EPS, PLAIN, weight=weight), normed_of(before, weight))
    assert torch.equal(rows, before)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", WIDTHS)
def test_factors_of_rows_are_those_of_their_norms(width: int, dtype: torch.dtype) -> None:
    rows = torch.randn(7, width).to(DEVICE, dtype) * torch.arange(7, device=DEVICE)[:, None]
    found = row_scales(rows.to(dtype), EPS, PLAIN)
    torch.testing.assert_close(found, reference.row_scales(rows.to(dtype), EPS))


def test_no_rows_are_no_work() -> None:
    assert row_scales(torch.zeros(0, 16, device=DEVICE), EPS, PLAIN).shape == (0,)
    assert rms_norm(torch.zeros(0, 16, device=DEVICE), EPS, PLAIN).shape == (0, 16)


def test_partial_products_of_other_rows_are_refused() -> None:
    rows = torch.zeros(2, 16, device=DEVICE)
    with pytest.raises(ValueError, match=r"\(1, 3, 16\) must be contiguous"):
        add_norm(rows, torch.zeros(1, 3, 16, device=DEVICE), EPS, PLAIN)


def launch_all() -> None:
    """Every instance that the models of the benchmarks launch."""
    ids, launch = empty(32, dtype=torch.int64), dependent()
    for shape in benchmark_models.ALL:
        hidden, weight = empty(32, shape.hidden_size), empty(shape.hidden_size)
        embed_norm(empty(shape.vocab_size, shape.hidden_size), ids, EPS, PLAIN)
        rms_norm(hidden, EPS, launch, weight=weight)
        add_norm(hidden, empty(1, *hidden.shape), EPS, launch)
        for splits, given in ((2, None), (4, None), (4, weight)):
            partials = empty(splits, *hidden.shape, dtype=torch.float32)
            add_norm(hidden, partials, EPS, launch, weight=given)
        row_scales(empty(1024, shape.hidden_size), EPS, PLAIN)


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 89, 90])
def test_compiles_for_every_capability(capability: int) -> None:
    records = compile_elsewhere(__name__, capability)
    assert all(record["stack"] == 0 for record in records)
