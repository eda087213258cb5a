"""Experts' products equal the reference: empty experts, crowded ones, sizes that divide no tile."""

from dataclasses import replace

import pytest
import torch
from tests import benchmark_models
from tests.worker.kernels.gpu.ahead_of_time import compile_elsewhere, empty

from mizzen_worker.kernels.gpu.grouped_gemm import ManyTile, down_many, gated_many
from mizzen_worker.kernels.gpu.grouped_skinny_gemm import down_few, gated_few
from mizzen_worker.kernels.gpu.launching import PLAIN, dependent, has_tensor_copies, shared_memory
from mizzen_worker.kernels.gpu.row_tiles import RowTiles
from mizzen_worker.kernels.gpu.skinny_tile import Tile
from mizzen_worker.kernels.reference import moe as reference
from mizzen_worker.layers.gpu.expert_tiles import FewRows, tiles_of

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPES = [torch.float32, torch.bfloat16] if DEVICE.type == "cuda" else [torch.float32]
TOLERANCE = {torch.float32: 1e-4, torch.bfloat16: 2e-2}
"""Sums in another order; bfloat16: activations are rounded between the two products."""

FEW = (
    gated_few,
    down_few,
    RowTiles(
        narrow=Tile(rows=16, columns=32, depth=32, stages=2, accumulators=2),
        wide=Tile(rows=32, columns=32, depth=16, stages=2, accumulators=2),
    ),
)
MANY = (gated_many, down_many, ManyTile(rows=16, columns=32, depth=16, stages=2))
STAYING = (gated_many, down_many, replace(MANY[2], programs=1))
FORMS = pytest.mark.parametrize("form", [FEW, MANY, STAYING], ids=["few", "many", "staying"])


def slots_of(ids: torch.Tensor, experts: int) -> torch.Tensor:
    """1 + the slot in which a token chose an expert, 0 where it did not: [experts, tokens]."""
    slots = torch.zeros(len(ids), experts, dtype=torch.uint8, device=ids.device)
    places = torch.arange(1, ids.shape[1] + 1, dtype=torch.uint8, device=ids.device)
    return slots.scatter_(1, ids, places.expand_as(ids)).t().contiguous()


def check(form, dtype: torch.dtype, ids: torch.Tensor, experts: int, size: int, inner: int) -> None:
    gated, down_product, tile = form
    num_tokens, chosen = ids.shape
    inputs = torch.randn(num_tokens, size, device=DEVICE).to(dtype)
    gate = (torch.randn(experts, inner, size, device=DEVICE) / size**0.5).to(dtype)
    up = (torch.randn(experts, inner, size, device=DEVICE) / size**0.5).to(dtype)
    down = (torch.randn(experts, size, inner, device=DEVICE) / inner**0.5).to(dtype)
    weights = torch.rand(num_tokens, chosen, device=DEVICE)
    ids = ids.to(DEVICE)
    is_few = isinstance(tile, RowTiles)
    pairs = slots_of(ids, experts) if is_few else reference.sort_by_expert(ids, experts)
    gate_up = torch.stack([gate, up], dim=2).flatten(1, 2)
    activations = gated(inputs, gate_up, weights, pairs, tile, PLAIN)
    products = down_product(activations, down, chosen, pairs, tile, PLAIN)
    assert products.shape == (chosen, num_tokens, size)
    wide = torch.cat([gate, up], dim=1).float()
    expected = reference.mix_experts(inputs.float(), wide, down.float(), ids, weights)
    torch.testing.assert_close(
        products.float().sum(0), expected, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype]
    )


@pytest.mark.parametrize("dtype", DTYPES)
@FORMS
@pytest.mark.parametrize(
    ("tokens", "experts", "chosen", "sizes"),
    [(2, 6, 2, (32, 16)), (21, 3, 2, (48, 40)), (150, 3, 2, (16, 16)), (5, 4, 1, (16, 64))],
)
def test_chosen_at_random(
    form, dtype: torch.dtype, tokens: int, experts: int, chosen: int, sizes: tuple[int, int]
) -> None:
    ids = torch.stack([torch.randperm(experts)[:chosen] for _ in range(tokens)])
    check(form, dtype, ids, experts, *sizes)


@FORMS
@pytest.mark.parametrize("expert", [0, 2, 4])
def test_all_tokens_choose_one_expert(form, expert: int) -> None:
    check(form, torch.float32, torch.full((49, 1), expert), 5, 32, 24)


def test_experts_that_few_tokens_chose_are_counted() -> None:
    counts = torch.zeros(2, dtype=torch.int32, device=DEVICE)
    for ids in ([[0, 3], [3, 1], [0, 1]], [[2, 0], [0, 2], [2, 0]]):
        slots = slots_of(torch.tensor(ids, device=DEVICE), 5)
        inputs, weights = torch.ones(3, 16, device=DEVICE), torch.ones(3, 2, device=DEVICE)
        gated_few(
            inputs, torch.ones(5, 80, 16, device=DEVICE), weights, slots, FEW[2], PLAIN, counts
        )
    assert counts.tolist() == [3 + 2, 2]


def test_slots_of_other_tokens_are_refused() -> None:
    slots = torch.zeros(2, 3, dtype=torch.uint8)
    with pytest.raises(ValueError, match="are not those of 2 experts and 2 tokens"):
        gated_few(
            torch.zeros(2, 32), torch.zeros(2, 32, 32), torch.ones(2, 2), slots, FEW[2], PLAIN
        )


def test_tiles_of_two_kernels_are_refused() -> None:
    narrow = Tile(rows=16, columns=32, depth=32, stages=2)
    for wide in (
        Tile(rows=32, columns=64, depth=32, stages=2),
        Tile(rows=8, columns=32, depth=32, stages=2),
    ):
        with pytest.raises(ValueError, match="are not of one kernel"):
            RowTiles(narrow=narrow, wide=wide)


@FORMS
def test_other_sizes_are_refused(form) -> None:
    gated, down_product, tile = form
    pairs = (torch.zeros(4, dtype=torch.int32), torch.zeros(3, dtype=torch.int32))
    if isinstance(tile, RowTiles):
        pairs = torch.zeros(2, 2, dtype=torch.uint8)
    weights = torch.ones(2, 2)
    with pytest.raises(ValueError, match="one depth that is a"):
        gated(torch.zeros(2, 32), torch.zeros(2, 32, 48), weights, pairs, tile, PLAIN)
    with pytest.raises(ValueError, match="must be contiguous"):
        down_product(torch.zeros(16, 4).t(), torch.zeros(2, 32, 16), 2, pairs, tile, PLAIN)


def launch_all() -> None:
    launch = dependent()
    for experts, chosen, size, inner in benchmark_models.EXPERT_SIZES:
        gate_up = empty(experts, 2 * inner, size)
        down = empty(experts, size, inner)
        order = empty(16, dtype=torch.int32)
        offsets = empty(experts + 1, dtype=torch.int32)
        for tokens in (2, 16, 64, 128, 256, 512, 1024, 8192):
            choice = tiles_of(experts, size, inner).of(
                tokens * chosen / experts, has_tensor_copies=has_tensor_copies()
            )
            choice = choice.fitted(shared_memory())
            is_few = isinstance(choice, FewRows)
            gated, down_product = FEW[:2] if is_few else MANY[:2]
            slots = empty(experts, tokens, dtype=torch.uint8)
            pairs = slots if is_few else (order, offsets)
            activations = gated(
                empty(tokens, size),
                gate_up,
                empty(tokens, chosen, dtype=torch.float32),
                pairs,
                choice.gated,
                launch,
            )
            down_product(activations, down, chosen, pairs, choice.down, launch)


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 89, 90])
def test_it_compiles_without_spills(capability: int) -> None:
    for record in compile_elsewhere(__name__, capability):
        assert record["stack"] == 0, record
