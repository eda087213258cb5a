"""SiLU gate over alternating columns equals its meaning: widths, biases, dtypes."""

import pytest
import torch
from tests import benchmark_models
from tests.worker.kernels.gpu.ahead_of_time import compile_elsewhere, empty

from mizzen_worker.kernels.gpu.launching import PLAIN, dependent
from mizzen_worker.kernels.gpu.silu_multiply import silu_multiply

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [1, 24, 1025])
@pytest.mark.parametrize("has_bias", [False, True])
def test_gate_and_up_alternate(width: int, *, has_bias: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(width)
    gate_up = torch.randn(3, 2 * width).to(DEVICE, dtype)
    bias = torch.randn(2 * width).to(DEVICE) if has_bias else None
    found = silu_multiply(gate_up, bias, PLAIN)
    both = gate_up.float() + (0 if bias is None else bias)
    expected = torch.nn.functional.silu(both[:, ::2]) * both[:, 1::2]
    tolerance = 1e-5 if dtype == torch.float32 else 1e-2
    assert found.dtype == dtype
    torch.testing.assert_close(found.float(), expected, rtol=tolerance, atol=tolerance)


def test_half_a_pair_is_refused() -> None:
    with pytest.raises(ValueError, match="not 3 columns"):
        silu_multiply(torch.zeros(1, 3, device=DEVICE), None, PLAIN)


def launch_all() -> None:
    for shape in benchmark_models.DENSE:
        silu_multiply(empty(8, 2 * shape.intermediate_size), None, dependent())


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 89, 90])
def test_compiles_for_every_capability(capability: int) -> None:
    records = compile_elsewhere(__name__, capability)
    assert all(record["stack"] == 0 for record in records)
