"""The operator's formula of a rank's memory is the worker's, for every shape, type and division."""

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.benchmark_models import facts_of

import mizzen_operator.worker_contract as operator_side
from mizzen_operator.planner.fetch_report import report_of
from mizzen_operator.planner.memory_formula import (
    EngineSizes,
    division_problem,
    facts_of_rank,
    kv_token_bytes,
    need_on_gpu,
    weights_bytes,
)
from mizzen_operator.spec.shape_facts import ShapeFacts, as_told, shape_facts_of
from mizzen_worker.config.options import OPTIONS
from mizzen_worker.contracts.errors import ConfigError
from mizzen_worker.fetch.manifest import ExpertFacts as ToldExperts
from mizzen_worker.fetch.manifest import ShapeFacts as ToldFacts
from mizzen_worker.fetch.manifest import Termination, encode_termination
from mizzen_worker.fetch.shape_facts import facts_told
from mizzen_worker.model_executor import memory_estimate
from mizzen_worker.models.model_facts import ExpertShape, ModelFacts, ModelShape
from mizzen_worker.models.shard_plan import plan_shard

BASE = facts_of("llama8b")
BY_FLAG = {option.flag: option for option in OPTIONS}
sizes = st.integers(1, 300).map(lambda number: number * 64) | st.integers(1, 20_000)


@st.composite
def models(draw: st.DrawFn) -> ModelFacts:
    """Models whose sizes are not always possible, but always reckonable."""
    num_layers = draw(st.integers(1, 100))
    num_kv_heads = draw(st.sampled_from([1, 2, 3, 4, 8, 16]))
    experts = None
    if draw(st.booleans()):
        with_experts = frozenset(range(draw(st.integers(1, num_layers))))
        experts = ExpertShape(
            num_experts=draw(st.integers(1, 256)),
            num_chosen=draw(st.integers(1, 16)),
            intermediate_size=draw(sizes),
            is_normalised=True,
            layers=with_experts,
        )
    shape = ModelShape(
        num_layers=num_layers,
        hidden_size=draw(sizes),
        intermediate_size=draw(sizes),
        num_heads=num_kv_heads * draw(st.sampled_from([1, 2, 4, 5, 8])),
        num_kv_heads=num_kv_heads,
        head_dim=draw(st.sampled_from([16, 64, 80, 128, 256])),
        vocab_size=draw(st.integers(1, 300_000)),
        experts=experts,
    )
    return replace(
        BASE,
        shape=shape,
        context_length=draw(st.integers(1, 1 << 20)),
        tie_embeddings=draw(st.booleans()),
        fp8_scales=draw(st.sampled_from([None, "rows", "blocks"])),
    )


engines = st.builds(
    EngineSizes,
    max_chunk_tokens=st.integers(16, 1 << 17),
    max_rows=st.integers(1, 4096),
    value_bytes=st.sampled_from([2, 4]),
    is_packed=st.booleans(),
    uses_graphs=st.just(value=True),
    context_length=st.integers(1, 1 << 18),
)


def told(facts: ModelFacts) -> ShapeFacts:
    """What the operator reads in the last words of the Job that fetched the model."""
    ended = Termination(reason="Done", message="all there", facts=facts_told(facts))
    found = report_of(encode_termination(ended).decode()).facts
    assert found is not None
    return found


@given(facts=models(), engine=engines, ranks=st.sampled_from([1, 1, 2, 3, 4, 8, 16, 64]))
def test_both_reckon_the_same(facts: ModelFacts, engine: EngineSizes, ranks: int) -> None:
    mine = told(facts)
    try:
        own = plan_shard(facts, rank=0, size=ranks).facts
    except ConfigError:
        assert division_problem(mine, ranks)
        return
    assert division_problem(mine, ranks) == ""
    my_own = facts_of_rank(mine, ranks)
    at_work = replace(own, context_length=engine.context_length)
    their_sizes = memory_estimate.EngineSizes(
        max_chunk_tokens=engine.max_chunk_tokens,
        max_rows=engine.max_rows,
        value_bytes=engine.value_bytes,
        is_packed=engine.is_packed,
        vocab_size=facts.shape.vocab_size,
    )
    theirs = memory_estimate.estimated_use(at_work, their_sizes, total_bytes=1 << 36, fraction=0.9)
    need = need_on_gpu(my_own, engine, vocab_size=facts.shape.vocab_size)
    assert (need.weights_bytes, need.cuda_bytes, need.step_bytes, need.graphs_bytes) == (
        theirs.weights_bytes,
        theirs.other_bytes,
        theirs.step_bytes,
        theirs.graphs_bytes,
    )
    for kv_bytes in (1, 2, 4):
        assert kv_token_bytes(my_own, kv_bytes) == memory_estimate.model_kv_token_bytes(
            own, value_bytes=kv_bytes
        )


@pytest.mark.parametrize("name", ["llama8b", "qwen06b", "qwen30b-a3b"])
def test_weights_of_known_models_are_the_same(name: str) -> None:
    facts = facts_of(name)
    theirs = memory_estimate.weights_bytes(facts, 2, is_packed=False)
    assert weights_bytes(told(facts), 2, is_packed=False) == theirs


@pytest.mark.parametrize("experts", [None, (64, 8, 1408, 47)])
@pytest.mark.parametrize("scales", [None, "blocks"])
def test_the_downloaders_facts_arrive_and_are_kept(
    experts: tuple[int, ...] | None, scales: str | None
) -> None:
    names = ("num_experts", "num_chosen", "intermediate_size", "num_layers")
    given_facts = ToldFacts(
        architecture="LlamaForCausalLM",
        file_format="safetensors",
        context_length=8192,
        num_layers=48,
        hidden_size=2048,
        intermediate_size=10_944,
        num_heads=32,
        num_kv_heads=4,
        head_dim=128,
        vocab_size=151_936,
        tie_embeddings=False,
        fp8_scales=scales,
        has_fp8_kv=scales is not None,
        experts=ToldExperts(**dict(zip(names, experts, strict=True))) if experts else None,
    )
    ended = Termination(reason="Done", message="all there", num_bytes=7, facts=given_facts)
    report = report_of(encode_termination(ended).decode())
    assert report.facts is not None
    for name in given_facts.__struct_fields__:
        if name != "experts":
            assert getattr(report.facts, name) == getattr(given_facts, name), name
    mine = report.facts.experts
    assert (mine and tuple(getattr(mine, name) for name in names)) == experts
    assert shape_facts_of(json.loads(json.dumps(as_told(report.facts)))) == report.facts


def test_names_and_defaults_are_those_of_the_engine() -> None:
    flags = [value for name, value in vars(operator_side).items() if name.startswith("ENGINE_ARG_")]
    unforeseen = set(operator_side.ENGINE_ARGS_UNFORESEEN) - {"--config"}
    assert {*flags, *unforeseen} <= set(BY_FLAG)
    fraction = BY_FLAG[operator_side.ENGINE_ARG_MEMORY_FRACTION]
    assert fraction.default == operator_side.DEFAULT_MEMORY_FRACTION
    for flag, cpu, gpu in (
        (operator_side.FLAG_PAGE_SIZE, operator_side.DEFAULT_CPU_PAGE_SIZE, "64"),
        (operator_side.FLAG_KV_TOKENS, operator_side.DEFAULT_CPU_KV_TOKENS, None),
    ):
        assert BY_FLAG[flag].by_device is not None
        assert (BY_FLAG[flag].by_device.cpu, BY_FLAG[flag].by_device.cuda) == (str(cpu), gpu)
    assert operator_side.DEFAULT_GPU_PAGE_SIZE == 64
    for flag, gpu in (
        (operator_side.ENGINE_ARG_MAX_CHUNK, operator_side.DEFAULT_GPU_MAX_CHUNK),
        (operator_side.FLAG_MAX_RUNNING, operator_side.DEFAULT_GPU_MAX_RUNNING),
    ):
        assert BY_FLAG[flag].by_device.cuda == gpu
