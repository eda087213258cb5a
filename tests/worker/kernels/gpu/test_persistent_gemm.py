"""The persistent SwiGLU product against plain torch: tiles that divide nothing, biases."""

import pytest
import torch
from tests import benchmark_models
from tests.worker.kernels.gpu.ahead_of_time import compile_elsewhere, empty

from mizzen_worker.kernels.gpu import persistent_gemm as module
from mizzen_worker.kernels.gpu.persistent_gemm import GemmTile, choose_tile, swiglu_gemm
from mizzen_worker.kernels.reference.swiglu import swiglu

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = [torch.float32, torch.bfloat16] if torch.cuda.is_available() else [torch.float32]
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
"""Sums in another order; bfloat16 is rounded once."""
SMALL = GemmTile(rows=64, columns=32, depth=16, num_stages=2, num_warps=4, group=2)


def made(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).to(DEVICE, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize(
    ("tokens", "inner", "size"), [(1, 8, 16), (65, 24, 48), (130, 40, 80), (300, 104, 32)]
)
def test_equals_the_reference(
    tokens: int, inner: int, size: int, *, has_bias: bool, dtype: torch.dtype
) -> None:
    inputs, weight = made(dtype, tokens, size), made(dtype, 2 * inner, size)
    bias = made(torch.float32, 2 * inner) if has_bias else None
    scales = made(torch.float32, tokens).sigmoid()
    for tile in (None, SMALL):
        for given in (None, scales):
            scaled = inputs if given is None else inputs.float() * given[:, None]
            expected = swiglu(scaled, weight, bias)
            found = swiglu_gemm(inputs, weight, bias, tile, given)
            torch.testing.assert_close(
                found.float(), expected.float(), rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
            )


def test_no_tokens_give_no_rows() -> None:
    assert swiglu_gemm(made(DTYPES[-1], 0, 16), made(DTYPES[-1], 16, 16)).shape == (0, 8)


def test_rows_that_no_tensor_map_can_hold_are_refused() -> None:
    with pytest.raises(ValueError, match="16 bytes"):
        swiglu_gemm(made(torch.float32, 3, 10), made(torch.float32, 16, 10))
    with pytest.raises(ValueError, match="16 bytes"):
        swiglu_gemm(made(torch.float32, 3, 16), made(torch.float32, 6, 16))


def test_scales_of_other_tokens_are_refused() -> None:
    inputs, weight = made(DTYPES[-1], 3, 16), made(DTYPES[-1], 16, 16)
    with pytest.raises(ValueError, match=r"\(2,\) scales are not one of each of 3 tokens"):
        swiglu_gemm(inputs, weight, scales=torch.zeros(2, device=DEVICE))


def test_tile_follows_the_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "num_multiprocessors", lambda: 132)
    assert choose_tile(8192, 28672, torch.bfloat16) is module.WIDE
    # 192 wide tiles would take two rounds of 132; 384 narrow ones take three half as long.
    assert choose_tile(1024, 6144, torch.bfloat16) is module.NARROW


def launch_all() -> None:
    for shape in benchmark_models.DENSE:
        inputs = empty(1024, shape.hidden_size)
        weight = empty(2 * shape.intermediate_size, shape.hidden_size)
        for tile in (module.WIDE, module.NARROW):
            swiglu_gemm(inputs, weight, None, tile, empty(1024, dtype=torch.float32))


@pytest.mark.slow
def test_shipped_configurations_compile() -> None:
    for record in compile_elsewhere(__name__, 90):
        assert record["stack"] == 0, record
