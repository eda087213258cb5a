"""Choosing and sorting experts equal the reference: sizes, ties, NaN, infinities, one expert."""

import pytest
import torch
from tests import benchmark_models
from tests.worker.kernels.gpu.ahead_of_time import compile_elsewhere, empty

from mizzen_worker.kernels.gpu.expert_routing import Padding, choose_experts, sort_by_expert
from mizzen_worker.kernels.gpu.launching import PLAIN, dependent
from mizzen_worker.kernels.reference import moe as reference
from mizzen_worker.layers.gpu.expert_tally import ExpertTally

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("splits", "tokens", "experts", "chosen"),
    [(1, 1, 128, 8), (3, 5, 128, 8), (2, 7, 8, 2), (1, 3, 1, 1), (4, 2, 60, 60), (1, 3, 5, 4)],
)
@pytest.mark.parametrize("is_normalised", [True, False])
def test_choice_is_the_references(
    splits: int, tokens: int, experts: int, chosen: int, *, is_normalised: bool
) -> None:
    logits = torch.randn(splits, tokens, experts, device=DEVICE) * 3
    expected = reference.choose_experts(logits.sum(0), chosen, is_normalised=is_normalised)
    slots = torch.full((experts, tokens), 99, dtype=torch.uint8, device=DEVICE)
    found = choose_experts(logits, chosen, is_normalised=is_normalised, launch=PLAIN, slots=slots)
    assert torch.equal(found[0].long(), expected[0])
    torch.testing.assert_close(found[1], expected[1], rtol=1e-5, atol=1e-6)
    places = torch.arange(1, chosen + 1, dtype=torch.uint8, device=DEVICE).expand(tokens, -1)
    wanted = torch.zeros(tokens, experts, dtype=torch.uint8, device=DEVICE)
    assert torch.equal(slots, wanted.scatter_(1, expected[0], places).t())


@pytest.mark.parametrize(
    "row",
    [
        [1.0, 2.0, 2.0, 2.0, 0.0, 2.0],
        [0.0, -0.0, 0.0, -0.0, 0.0, 0.0],
        [NAN, 1.0, NAN, 0.0, 2.0, -1.0],
        [NAN] * 6,
        [-INF, 1.0, -INF, -INF, -INF, -INF],
        [-INF, NAN, 1.0, -INF, NAN, -INF],
        [1.0, INF, 0.0, INF, 2.0, 3.0],
    ],
)
@pytest.mark.parametrize("is_normalised", [True, False])
def test_ties_and_what_is_no_number(row: list[float], *, is_normalised: bool) -> None:
    logits = torch.tensor([[row, [5.0, 4.0, 3.0, 2.0, 1.0, 0.0]]], device=DEVICE)
    expected = reference.choose_experts(logits[0], 3, is_normalised=is_normalised)
    found = choose_experts(logits, 3, is_normalised=is_normalised, launch=PLAIN)
    assert torch.equal(found[0].long(), expected[0])
    torch.testing.assert_close(found[1], expected[1], rtol=1e-5, atol=1e-6, equal_nan=True)
    assert len(set(found[0][0].tolist())) == 3


@pytest.mark.parametrize(
    ("tokens", "experts", "chosen"),
    [(1, 4, 2), (9, 5, 3), (40, 7, 2), (3, 1, 1), (1500, 3, 3), (0, 3, 2)],
)
def test_sorting_is_the_references(tokens: int, experts: int, chosen: int) -> None:
    ids = torch.stack(
        [torch.randperm(experts)[:chosen] for _ in range(tokens)] or [torch.zeros(chosen)]
    )
    ids = ids[:tokens].int().to(DEVICE)
    expected = reference.sort_by_expert(ids.long(), experts)
    found = sort_by_expert(ids, experts, PLAIN)
    assert torch.equal(found[0], expected[0])
    assert torch.equal(found[1], expected[1])


def test_tokens_that_fill_up_a_step_choose_what_the_first_did() -> None:
    torch.manual_seed(1)
    logits = torch.randn(2, 40, 9, device=DEVICE)
    locations = torch.randint(0, 64, (40,), device=DEVICE)
    locations[0] = 70
    padding = Padding(locations=locations, first=16)
    found = choose_experts(logits, 3, is_normalised=True, launch=PLAIN, padding=padding)
    plain = choose_experts(logits, 3, is_normalised=True, launch=PLAIN)
    is_padding = (locations < 16)[:, None]
    assert is_padding.any()
    for filled, own in zip(found, plain, strict=True):
        assert torch.equal(filled, torch.where(is_padding, own[:1], own))


def test_experts_that_were_chosen_are_counted() -> None:
    tally = ExpertTally()
    assert tally.take() is None
    counts = tally.begin(DEVICE)
    for ids in ([[0, 3], [3, 1], [0, 1]], [[2, 0], [0, 2], [2, 0]], [[4, 0]]):
        sort_by_expert(torch.tensor(ids, dtype=torch.int32, device=DEVICE), 5, PLAIN, counts)
    assert counts.tolist() == [3 + 2 + 2, 3]
    assert tally.take() == (7, 3)
    assert tally.take() == (0, 0)


def test_no_tokens_choose_nothing() -> None:
    found = choose_experts(torch.zeros(1, 0, 8, device=DEVICE), 2, is_normalised=True, launch=PLAIN)
    assert [tuple(part.shape) for part in found] == [(0, 2), (0, 2)]


def test_what_cannot_be_chosen_is_refused() -> None:
    with pytest.raises(ValueError, match="9 of 8 experts"):
        choose_experts(torch.zeros(1, 2, 8), 9, is_normalised=True, launch=PLAIN)


def launch_all() -> None:
    launch = dependent()
    for experts, chosen, _, _ in benchmark_models.EXPERT_SIZES:
        for tokens, splits in ((1, 1), (64, 4), (8192, 1)):
            logits = empty(splits, tokens, experts, dtype=torch.float32)
            ids, _ = choose_experts(logits, chosen, is_normalised=True, launch=launch)
            slots = empty(experts, tokens, dtype=torch.uint8)
            choose_experts(logits, chosen, is_normalised=True, launch=launch, slots=slots)
            sort_by_expert(ids, experts, launch)


@pytest.mark.slow
@pytest.mark.parametrize("capability", [80, 89, 90])
def test_it_compiles_without_spills(capability: int) -> None:
    for record in compile_elsewhere(__name__, capability):
        assert record["stack"] == 0, record
