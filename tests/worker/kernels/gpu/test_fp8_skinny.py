"""Skinny products of FP8 matrices equal those of the numbers they hold; rows and groups."""

import dataclasses

import pytest
import torch
from tests import benchmark_models
from tests.benchmark_models import qkv_size
from tests.worker.kernels.gpu.ahead_of_time import compile_elsewhere, empty

from mizzen_worker.kernels.fp8_matrix import (
    FP8,
    GROUP,
    dequantise,
    quantise_blocks,
    quantise_rows,
)
from mizzen_worker.kernels.gpu.launching import PLAIN, dependent, shared_memory
from mizzen_worker.kernels.gpu.skinny_gemm import gated, multiply
from mizzen_worker.kernels.gpu.skinny_tile import Tile
from mizzen_worker.layers.gpu.skinny_tiles import BUCKETS, Matrix, SkinnyProduct, choose_fp8

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPE = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32
TOLERANCE = 2e-2 if torch.bfloat16 == DTYPE else 1e-4
SMALL = Tile(rows=16, columns=32, depth=32, stages=2)
FORMS = pytest.mark.parametrize(
    ("quantise", "depth"),
    [(quantise_rows, 80), (quantise_blocks, 128), (quantise_blocks, 384)],
)


def matrix(outputs: int, depth: int, quantise: object) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(outputs + depth)
    values = torch.randn(outputs, depth) * depth**-0.5
    values *= 2.0 ** torch.randint(-2, 3, (outputs, 1)) * 2.0 ** torch.randint(-2, 2, (depth,))
    found, scale = quantise(values)  # type: ignore[operator]
    return found.to(DEVICE), scale.to(DEVICE)


def require_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    error = (found.float() - expected).norm() / expected.norm()
    assert float(error) < TOLERANCE


@FORMS
@pytest.mark.parametrize("splits", [1, 2])
@pytest.mark.parametrize(("rows", "outputs"), [(2, 150), (21, 70)])
def test_partial_products(
    quantise: object, depth: int, splits: int, rows: int, outputs: int
) -> None:
    stored, scale = matrix(outputs, depth, quantise)
    inputs, bias = torch.randn(rows, depth).to(DEVICE, DTYPE), torch.randn(outputs, device=DEVICE)
    found = multiply(
        inputs,
        stored,
        dataclasses.replace(SMALL, splits=splits),
        dtype=torch.float32,
        launch=PLAIN,
        bias=bias if splits == 1 else None,
        scale=scale,
    ).sum(0)
    expected = inputs.float() @ dequantise(stored, scale, torch.float32).t()
    require_close(found, expected + (bias if splits == 1 else 0))


@FORMS
@pytest.mark.parametrize("accumulators", [1, 2])
def test_gate_and_up(quantise: object, depth: int, accumulators: int) -> None:
    stored, scale = matrix(2 * 75, depth, quantise)
    inputs, bias = torch.randn(19, depth).to(DEVICE, DTYPE), torch.randn(150, device=DEVICE)
    tile = dataclasses.replace(SMALL, accumulators=accumulators)
    found = gated(inputs, stored, tile, launch=PLAIN, bias=bias, scale=scale)
    both = inputs.float() @ dequantise(stored, scale, torch.float32).t() + bias
    require_close(found, torch.nn.functional.silu(both[:, ::2]) * both[:, 1::2])


def test_a_step_of_two_groups_is_refused() -> None:
    stored, scale = matrix(32, 256, quantise_blocks)
    inputs = torch.randn(2, 256).to(DEVICE, DTYPE)
    tile = dataclasses.replace(SMALL, depth=256)
    with pytest.raises(ValueError, match="256 columns is not part of one group of 128"):
        multiply(inputs, stored, tile, dtype=DTYPE, launch=PLAIN, scale=scale)


def launch_all() -> None:
    """Llama-3.1-8B and Qwen3-0.6B: every configuration."""
    launch = dependent()
    shared = shared_memory()

    for shape in benchmark_models.DENSE:
        hidden, inner = shape.hidden_size, shape.intermediate_size
        for product, outputs, inputs in (
            (SkinnyProduct.QKV, qkv_size(shape), hidden),
            (SkinnyProduct.ADD, hidden, inner),
            (SkinnyProduct.GATE_UP, 2 * inner, hidden),
        ):
            for is_grouped in (False, True):
                kind = Matrix(product=product, outputs=outputs, inputs=inputs)
                groups = inputs // GROUP if is_grouped else 1
                stored = empty(outputs, inputs, dtype=FP8)
                scale = empty(groups, outputs, dtype=torch.float32)
                for rows in BUCKETS:
                    tile = choose_fp8(kind, rows, is_grouped=is_grouped)
                    if tile is None:
                        continue
                    fitted = tile.fitted(shared, 2, 1)
                    batch = empty(rows, inputs)
                    if product is SkinnyProduct.GATE_UP:
                        gated(batch, stored, fitted, launch=launch, scale=scale)
                    else:
                        dtype = torch.float32 if tile.splits > 1 else torch.bfloat16
                        multiply(batch, stored, fitted, dtype=dtype, launch=launch, scale=scale)


@pytest.mark.slow
def test_compiles_without_spilling() -> None:
    """SM 90 alone: before it there are no tensor maps, and matrices are dequantised."""
    for record in compile_elsewhere(__name__, 90):
        assert record["stack"] == 0, record
