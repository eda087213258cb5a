"""Whole steps with experts equal plain torch in every regime: dense layers between, both norms."""

import dataclasses
from collections.abc import Callable

import pytest
import torch
from tests.scale import slow_case
from tests.worker.attention.test_backends import (
    CONTEXT,
    EPS,
    Heads,
    RandomSource,
    batch_of,
    facts_of,
    on,
    pool_of,
)

from mizzen_worker.attention.torch_native import TorchNativeAttention
from mizzen_worker.layers.gpu.expert_tiles import QWEN_30B_A3B, router_tile, tiles_of
from mizzen_worker.layers.gpu.experts import reason_against
from mizzen_worker.layers.gpu.gemv_operations import GemvOperations
from mizzen_worker.layers.gpu.large_operations import LargeOperations
from mizzen_worker.layers.gpu.skinny_operations import SkinnyOperations
from mizzen_worker.layers.gpu.step import GpuSettings, GpuStep, HeadOutput
from mizzen_worker.layers.gpu.weights import GpuWeightPreparer
from mizzen_worker.layers.rotary import rotary_table
from mizzen_worker.layers.torch_operations import TorchOperations, TorchWeightPreparer
from mizzen_worker.memory.forward_batch import ForwardBatch
from mizzen_worker.models.architecture import Architecture
from mizzen_worker.models.dense_decoder import DenseDecoder
from mizzen_worker.models.mixtral import MIXTRAL
from mizzen_worker.models.model_facts import ExpertShape, ModelFacts
from mizzen_worker.models.qwen3_moe import QWEN3_MOE

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPE = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32
"""Interpreted products are right in float32 only."""
LIMIT = 8e-2 if torch.bfloat16 == DTYPE else 1e-4
"""Relative error of logits: bfloat16 activations through two layers."""
HEADS = Heads(4, 2, 32, 16)
DEPENDENCE = [False, True] if DEVICE.type == "cuda" else [False]

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


def facts_with(architecture: Architecture, experts: ExpertShape) -> ModelFacts:
    facts = facts_of(HEADS, architecture)
    return dataclasses.replace(facts, shape=dataclasses.replace(facts.shape, experts=experts))


def expected_of(architecture: Architecture, facts: ModelFacts, batch: ForwardBatch) -> torch.Tensor:
    pool = pool_of(HEADS, torch.float32, DEVICE)
    prepare = TorchWeightPreparer(torch.float32, DEVICE)
    model = DenseDecoder(architecture, facts, RandomSource(), prepare)
    attend = TorchNativeAttention(pool).begin(batch).attend
    table = rotary_table(facts.rotary, CONTEXT).to(DEVICE)
    return model.forward(TorchOperations(batch, pool, attend, table, EPS))


def check(
    operations: Callable[[GpuStep], object],
    architecture: Architecture,
    experts: ExpertShape,
    batch: ForwardBatch,
    *,
    is_dependent: bool,
) -> None:
    facts = facts_with(architecture, experts)
    pool = pool_of(HEADS, DTYPE, DEVICE)
    model = DenseDecoder(architecture, facts, RandomSource(), GpuWeightPreparer(DTYPE, DEVICE))
    step = GpuStep(
        batch=batch,
        pool=pool,
        attend=TorchNativeAttention(pool).begin(batch).attend,
        settings=GpuSettings(
            num_heads=HEADS.num_heads,
            num_kv_heads=HEADS.num_kv_heads,
            head_dim=HEADS.head_dim,
            eps=EPS,
            table=rotary_table(facts.rotary, CONTEXT).to(DEVICE),
        ),
        is_dependent=is_dependent,
    )
    found = model.forward(operations(step))
    assert isinstance(found, HeadOutput)
    assert found.logits is not None
    expected = expected_of(architecture, facts, batch)
    assert found.logits.shape == expected.shape
    difference = (found.logits.double() - expected.double()).norm()
    assert float(difference / expected.double().norm().clamp(min=1e-6)) < LIMIT


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
    assert [choice.gated.narrow.rows for choice in few] == [16, 16, 32, 32]
    many = [tiles_of(8, 64, 32).of(tokens) for tokens in (30, 600)]
    assert [choice.gated.columns for choice in many] == [128, 256]
    assert router_tile(2).splits == router_tile(1024).splits == 8
    assert router_tile(1025).splits == 4
