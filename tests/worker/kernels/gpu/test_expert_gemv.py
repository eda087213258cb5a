"""One token's experts equal the reference: sizes that divide no chunk, rests, one or all chosen."""

import pytest
import torch
from tests import benchmark_models
from tests.scale import slow_case
from tests.worker.kernels.gpu.ahead_of_time import compile_elsewhere, empty

from mizzen_worker.kernels.gpu.expert_gemv import DownTile, down_chosen_add, gated_chosen
from mizzen_worker.kernels.gpu.gemv import GemvTile
from mizzen_worker.kernels.gpu.launching import PLAIN, dependent
from mizzen_worker.layers.gpu.expert_tiles import tiles_of

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = [torch.float32, torch.bfloat16] if DEVICE.type == "cuda" else [torch.float32]
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
"""Sums in another order; bfloat16: activations are rounded between the two products."""
EPS = 1e-5


def random(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(shape, device=DEVICE).to(dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("experts", "chosen", "size", "inner", "ahead"),
    [
        (4, [2, 0, 3], 48, 32, 24),
        (3, [1], 272, 304, 24),
        (2, [1], 48, 544, 1),
        slow_case(5, [4, 1], 512, 544, 2),
        slow_case(2, [1, 0], 256, 256, 1),
    ],
)
def test_one_token(
    dtype: torch.dtype, experts: int, chosen: list[int], size: int, inner: int, ahead: int
) -> None:
    x, residual = random(1, size, dtype=dtype), random(1, size, dtype=dtype)
    gate_up = random(experts, 2 * inner, size, dtype=dtype) / size**0.5
    down = random(experts, size, inner, dtype=dtype) / inner**0.5
    ids = torch.tensor(chosen, dtype=torch.int32, device=DEVICE)
    weights = torch.rand(len(chosen), device=DEVICE)
    activations = gated_chosen(
        x, gate_up, ids, weights, eps=EPS, tile=GemvTile(warps=4, rows=4, ahead=2), launch=PLAIN
    )
    wide = x[0].float()
    normed = wide * torch.rsqrt((wide * wide).mean() + EPS)
    expected = residual[0].float()
    for slot, expert in enumerate(chosen):
        gate, up = (gate_up[expert].float() @ normed).view(inner, 2).unbind(1)
        part = torch.nn.functional.silu(gate) * up * weights[slot]
        torch.testing.assert_close(
            activations[slot].float(), part, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
        )
        expected = expected + down[expert].float() @ part
    found = down_chosen_add(
        activations, down, ids, residual, tile=DownTile(warps=4, ahead=ahead), launch=PLAIN
    )
    assert found.shape == residual.shape
    torch.testing.assert_close(
        found[0].float(), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
    )


def test_other_sizes_are_refused() -> None:
    matrices = torch.zeros(2, 32, 48, device=DEVICE)
    ids, weights = torch.zeros(1, dtype=torch.int32), torch.ones(1)
    tile = GemvTile(warps=4, rows=2, ahead=2)
    with pytest.raises(ValueError, match="47 inputs"):
        gated_chosen(torch.zeros(1, 47), matrices, ids, weights, eps=EPS, tile=tile, launch=PLAIN)
    odd = GemvTile(warps=4, rows=1, ahead=2)
    with pytest.raises(ValueError, match="come in pairs"):
        gated_chosen(torch.zeros(1, 48), matrices, ids, weights, eps=EPS, tile=odd, launch=PLAIN)
    with pytest.raises(ValueError, match="the residual has 31"):
        down_chosen_add(
            torch.zeros(1, 48),
            matrices,
            ids,
            torch.zeros(31),
            tile=DownTile(warps=4, ahead=2),
            launch=PLAIN,
        )


def launch_all() -> None:
    launch = dependent()
    for experts, chosen, size, inner in benchmark_models.EXPERT_SIZES:
        tiles = tiles_of(experts, size, inner)
        x, ids = empty(1, size), empty(chosen, dtype=torch.int32)
        weights = empty(chosen, dtype=torch.float32)
        activations = gated_chosen(
            x,
            empty(experts, 2 * inner, size),
            ids,
            weights,
            eps=EPS,
            tile=tiles.gated_one,
            launch=launch,
        )
        down_chosen_add(
            activations,
            empty(experts, size, inner),
            ids,
            x,
            tile=tiles.down_one,
            launch=launch,
        )


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 89, 90])
def test_it_compiles_without_spills(capability: int) -> None:
    for record in compile_elsewhere(__name__, capability):
        assert record["stack"] == 0, record
