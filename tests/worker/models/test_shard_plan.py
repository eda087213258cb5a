"""Ranks together have every part of a model once, and what cannot be divided is one sentence."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.benchmark_models import facts_of

from mizzen_worker.contracts.errors import ConfigError
from mizzen_worker.kernels.fp8_matrix import GROUP
from mizzen_worker.models.model_facts import ExpertShape, ModelFacts
from mizzen_worker.models.shard_plan import _FP8_BLOCK, Axis, ShardPlan, plan_shard

LLAMA = facts_of("llama8b")
MIXTURE = facts_of("qwen30b-a3b")


def facts(**changes: object) -> ModelFacts:
    return dataclasses.replace(LLAMA, shape=dataclasses.replace(LLAMA.shape, **changes))


@st.composite
def models(draw: st.DrawFn) -> tuple[ModelFacts, int]:
    """A model that so many ranks can divide."""
    size = draw(st.sampled_from([1, 2, 3, 4, 8]))
    divisors = [n for n in range(1, size + 1) if size % n == 0]
    multiples = [size * n for n in (1, 2, 5)]
    num_kv_heads = draw(st.sampled_from([*divisors, *multiples]))
    least = max(size, num_kv_heads)
    num_experts = draw(st.sampled_from([None, 4]))
    shape = {
        "num_kv_heads": num_kv_heads,
        "num_heads": least * draw(st.integers(1, 4)),
        "head_dim": draw(st.sampled_from([16, 24, 128])),
        "intermediate_size": size * draw(st.integers(1, 300)),
        "vocab_size": draw(st.integers(size * size, 500)),
        "experts": None
        if num_experts is None
        else ExpertShape(
            num_experts=num_experts,
            num_chosen=2,
            intermediate_size=size * draw(st.integers(1, 300)),
            is_normalised=True,
            layers=frozenset(range(0, 32, 2)),
        ),
    }
    return facts(**shape), size


@given(models())
def test_every_axis_is_covered_once(case: tuple[ModelFacts, int]) -> None:
    model, size = case
    plans = [plan_shard(model, rank=rank, size=size) for rank in range(size)]
    shape = model.shape

    def covered(axes: list[Axis | None]) -> list[int]:
        return [index for axis in axes if axis is not None for index in axis.own]

    heads = shape.num_heads * shape.head_dim
    assert covered([plan.queries for plan in plans]) == list(range(heads))
    assert covered([plan.inner for plan in plans]) == list(range(shape.intermediate_size))
    assert covered([plan.vocabulary for plan in plans]) == list(range(shape.vocab_size))
    if shape.experts is not None:
        inner = range(shape.experts.intermediate_size)
        assert covered([plan.expert_inner for plan in plans]) == list(inner)
    copies = max(1, size // shape.num_kv_heads)
    once = covered([plan.keys for plan in plans[::copies]])
    assert once == list(range(shape.num_kv_heads * shape.head_dim))
    for plan in plans:
        require_own_kv_heads(plan, model)
        require_equal_vocabularies(plan, plans[0])


def require_own_kv_heads(plan: ShardPlan, model: ModelFacts) -> None:
    """The KV head of each query head is the rank's, at the place where attention looks for it."""
    head_dim, whole, own = model.shape.head_dim, model.shape, plan.facts.shape
    assert own.num_heads * head_dim == len(plan.queries.own)
    assert own.num_kv_heads * head_dim == len(plan.keys.own)
    for place in range(own.num_heads):
        head = plan.queries.own.start // head_dim + place
        kv_head = head // (whole.num_heads // whole.num_kv_heads)
        kv_place = place // (own.num_heads // own.num_kv_heads)
        assert plan.keys.own.start // head_dim + kv_place == kv_head


def require_equal_vocabularies(plan: ShardPlan, first: ShardPlan) -> None:
    """But for the last ranks, which may have less: so logits can be padded and gathered."""
    assert 0 < len(plan.vocabulary.own) <= len(first.vocabulary.own)
    assert plan.vocabulary.own.start == plan.rank * len(first.vocabulary.own)
    assert plan.facts.shape.vocab_size == len(plan.vocabulary.own)


@pytest.mark.parametrize("model", [LLAMA, MIXTURE])
def test_one_rank_has_the_whole_model(model: ModelFacts) -> None:
    assert plan_shard(model, rank=0, size=1).facts == model


@pytest.mark.parametrize(
    ("model", "size", "sentence"),
    [
        (LLAMA, 3, "3 does not divide the model's 32 attention heads; use 1 or 2 or 4 or 8 or 16"),
        (
            facts(num_heads=24, num_kv_heads=8, intermediate_size=2400),
            12,
            "12 neither divides the model's 8 KV heads nor is a multiple of them; use 1 or 2 or 4",
        ),
        (facts(intermediate_size=4099), 2, "2 does not divide the model's intermediate size of 4"),
        (facts(vocab_size=5), 4, "4 leaves a rank without rows of the model's vocabulary of 5"),
        (
            dataclasses.replace(facts(intermediate_size=384), fp8_scales="blocks"),
            2,
            "2 cuts the model's intermediate size of 384 inside an FP8 block of 128; use 1",
        ),
        (
            dataclasses.replace(facts(num_heads=3, num_kv_heads=3), fp8_scales="blocks"),
            2,
            "2 does not divide the model's 3 attention heads; use 1",
        ),
        (
            dataclasses.replace(
                facts(num_heads=6, num_kv_heads=6, head_dim=64, intermediate_size=512),
                fp8_scales="blocks",
            ),
            2,
            "2 cuts the columns of attention's output projection of 384 inside an FP8 block of 128",
        ),
        (
            dataclasses.replace(
                MIXTURE,
                shape=dataclasses.replace(
                    MIXTURE.shape,
                    experts=dataclasses.replace(MIXTURE.shape.experts, intermediate_size=769),
                ),
            ),
            2,
            "2 does not divide the intermediate size of the model's experts of 769; use 1",
        ),
    ],
)
def test_what_cannot_be_divided_is_said(model: ModelFacts, size: int, sentence: str) -> None:
    with pytest.raises(ConfigError) as raised:
        plan_shard(model, rank=0, size=size)
    assert str(raised.value).startswith(f"--tensor-parallel-size: {sentence}")


def test_the_block_of_fp8_is_that_of_its_matrices() -> None:
    assert _FP8_BLOCK == GROUP


def test_a_dense_size_that_no_layer_has_need_not_be_divided() -> None:
    assert MIXTURE.shape.experts is not None
    odd = dataclasses.replace(MIXTURE.shape, intermediate_size=6145)
    every = dataclasses.replace(
        odd.experts or MIXTURE.shape.experts, layers=frozenset(range(odd.num_layers))
    )
    model = dataclasses.replace(MIXTURE, shape=dataclasses.replace(odd, experts=every))
    plan_shard(model, rank=1, size=2)
