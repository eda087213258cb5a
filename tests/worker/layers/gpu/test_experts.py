"""Whole steps with experts equal plain torch in every regime: dense layers between, both norms."""

import dataclasses

import pytest
import torch
from tests.scale import slow_case
from tests.worker.attention.small_decoder import (
    batch_of,
    on,
)
from tests.worker.layers.gpu.small_steps import (
    DEPENDENCE,
    DEVICE,
    DTYPE,
    HEADS,
    MakeOperations,
    expected_of,
    found_of,
    require_logits,
)

from mizzen_worker.layers.gpu.expert_tiles import QWEN_30B_A3B, router_tile, tiles_of
from mizzen_worker.layers.gpu.experts import reason_against
from mizzen_worker.layers.gpu.gemv_operations import GemvOperations
from mizzen_worker.layers.gpu.large_operations import LargeOperations
from mizzen_worker.layers.gpu.skinny_operations import SkinnyOperations
from mizzen_worker.memory.forward_batch import ForwardBatch
from mizzen_worker.models.architecture import Architecture
from mizzen_worker.models.mixtral import MIXTRAL
from mizzen_worker.models.model_facts import ExpertShape
from mizzen_worker.models.qwen3_moe import QWEN3_MOE

LIMIT = 8e-2 if torch.bfloat16 == DTYPE else 1e-4
"""As of dense models, but for what rounding makes of the experts' shares."""

ALL_CHOSEN = ExpertShape(
    num_experts=3,
    num_chosen=3,
    intermediate_size=32,
    is_normalised=False,
    layers=frozenset({0, 1}),
)
"""No choice that rounding could make otherwise, which bfloat16 needs to be compared at all."""
SOME_CHOSEN = ExpertShape(
    num_experts=5,
    num_chosen=2,
    intermediate_size=48,
    is_normalised=True,
    layers=frozenset({1}),
)
SHAPES = [ALL_CHOSEN] if torch.bfloat16 == DTYPE else [ALL_CHOSEN, SOME_CHOSEN]


def check(
    operations: MakeOperations,
    architecture: Architecture,
    experts: ExpertShape,
    batch: ForwardBatch,
    *,
    is_dependent: bool,
) -> None:
    found, _ = found_of(operations, HEADS, architecture, batch, experts, is_dependent=is_dependent)
    expected, _ = expected_of(HEADS, architecture, batch, experts)
    require_logits(found, expected, LIMIT)


EVERY_MODEL = pytest.mark.parametrize(
    ("architecture", "experts"),
    [
        (QWEN3_MOE, SHAPES[0]),
        (MIXTRAL, SHAPES[-1]),
        slow_case(QWEN3_MOE, SHAPES[-1]),
        slow_case(MIXTRAL, SHAPES[0]),
    ],
)


@EVERY_MODEL
@pytest.mark.parametrize("is_dependent", DEPENDENCE)
def test_one_token(architecture: Architecture, experts: ExpertShape, *, is_dependent: bool) -> None:
    batch = on(DEVICE, batch_of(HEADS, [(37, 1)]))
    check(GemvOperations, architecture, experts, batch, is_dependent=is_dependent)


def test_one_token_that_nobody_samples() -> None:
    batch = on(DEVICE, batch_of(HEADS, [(37, 1)]))
    batch = dataclasses.replace(batch, sampled_tokens=batch.sampled_tokens[:0])
    check(GemvOperations, QWEN3_MOE, ALL_CHOSEN, batch, is_dependent=False)


@EVERY_MODEL
@pytest.mark.parametrize("is_dependent", DEPENDENCE)
@pytest.mark.parametrize("rows", [[(5, 1), (70, 1)], [(0, 12), (64, 1), (12, 4)]])
def test_few_tokens(
    architecture: Architecture,
    experts: ExpertShape,
    rows: list[tuple[int, int]],
    *,
    is_dependent: bool,
) -> None:
    batch = on(DEVICE, batch_of(HEADS, rows))
    check(SkinnyOperations, architecture, experts, batch, is_dependent=is_dependent)


@EVERY_MODEL
@pytest.mark.parametrize("sampled", [[], [8, 9, 16]])
def test_many_tokens(architecture: Architecture, experts: ExpertShape, sampled: list[int]) -> None:
    batch = on(DEVICE, batch_of(HEADS, [(0, 9), (64, 1), (12, 7)]))
    tokens = torch.tensor(sampled, dtype=torch.int64, device=DEVICE)
    batch = dataclasses.replace(batch, sampled_tokens=tokens)
    check(LargeOperations, architecture, experts, batch, is_dependent=False)


def test_sizes_beyond_the_kernels_are_named() -> None:
    assert reason_against(128, 2048, 768) is None
    assert reason_against(8, 4096, 14336) is None
    assert reason_against(1024, 2048, 768) == "1024 experts are more than 512"
    wanted = "hidden size 2048 and expert size 760 are not both multiples of 16"
    assert reason_against(8, 2048, 760) == wanted


def test_more_tokens_per_expert_take_higher_tiles() -> None:
    assert tiles_of(128, 2048, 768) is QWEN_30B_A3B
    few = [tiles_of(128, 2048, 768).of(tokens) for tokens in (0.1, 4, 9, 20)]
    assert [choice.gated.narrow.rows for choice in few] == [16, 16, 16, 32]
    many = [tiles_of(8, 64, 32).of(tokens) for tokens in (30, 600)]
    assert [choice.gated.rows for choice in many] == [64, 128]
    assert router_tile(2).splits == router_tile(1024).splits == 8
    assert router_tile(1025).splits == 4
