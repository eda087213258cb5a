"""Owns which part of each weight a rank of a tensor-parallel group has; reads no weights. Pure.

Heads and the inner columns of gated MLPs (of every expert) are divided among ranks: their
projections by outputs, those behind them by inputs, whose results the ranks add up. Where there
are fewer KV heads than ranks, neighbours have the same one. Embedding and head are divided by
rows of the vocabulary. Norms and routers are whole on every rank.

Invariant: parts are ranges of neighbours in the order of ranks; they cover each axis once, KV heads
that are shared ``size / KV heads`` times.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace

from mizzen_worker.contracts.errors import ConfigError
from mizzen_worker.models.model_facts import ModelFacts, ModelShape

FLAG = "--tensor-parallel-size"
_FP8_BLOCK = 128
"""``GROUP`` of ``kernels/fp8_matrix.py``; who plans memory must not load torch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One side of a weight: its length, and what the rank has of it."""

    length: int
    own: range


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardPlan:
    """What one rank has; axes count values, not heads.

    ``facts`` is the model as the rank computes it: its own heads, inner columns and rows of the
    vocabulary. ``inner`` is of dense MLPs, ``expert_inner`` of experts.
    """

    rank: int
    size: int
    facts: ModelFacts
    queries: Axis
    keys: Axis
    inner: Axis
    expert_inner: Axis | None
    vocabulary: Axis


def plan_shard(facts: ModelFacts, *, rank: int, size: int) -> ShardPlan:
    """Divide a model; raises ``ConfigError`` naming what ``size`` cannot divide."""
    problem = next(_problems(facts, size), None)
    if problem is not None:
        fitting = [n for n in range(1, facts.shape.num_heads + 1) if not any(_problems(facts, n))]
        message = f"{FLAG}: {size} {problem}; use {' or '.join(map(str, fitting))}"
        raise ConfigError(message)
    shape, experts = facts.shape, facts.shape.experts
    head_dim = shape.head_dim
    expert_inner = None if experts is None else _even(experts.intermediate_size, rank, size)
    inner = _even(shape.intermediate_size, rank, size)
    queries = _even(shape.num_heads, rank, size)
    keys = _even(shape.num_kv_heads, rank, size)
    if shape.num_kv_heads < size:
        head = rank * shape.num_kv_heads // size
        keys = Axis(length=shape.num_kv_heads, own=range(head, head + 1))
    vocabulary = _vocabulary(shape.vocab_size, rank, size)
    own = replace(
        shape,
        num_heads=len(queries.own),
        num_kv_heads=len(keys.own),
        intermediate_size=len(inner.own),
        vocab_size=len(vocabulary.own),
        experts=None
        if experts is None or expert_inner is None
        else replace(experts, intermediate_size=len(expert_inner.own)),
    )
    return ShardPlan(
        rank=rank,
        size=size,
        facts=replace(facts, shape=own),
        queries=_times(queries, head_dim),
        keys=_times(keys, head_dim),
        inner=inner,
        expert_inner=expert_inner,
        vocabulary=vocabulary,
    )


def _problems(facts: ModelFacts, size: int) -> Iterator[str]:
    """Why a model cannot be divided among so many ranks."""
    shape = facts.shape
    if shape.num_heads % size:
        yield f"does not divide the model's {shape.num_heads} attention heads"
    if shape.num_kv_heads % size and size % shape.num_kv_heads:
        yield (
            f"neither divides the model's {shape.num_kv_heads} KV heads nor is a multiple of them"
        )
    for length, what in _inner_lengths(shape):
        if length % size:
            yield f"does not divide {what} of {length}"
    per_rank = -(-shape.vocab_size // size)
    if per_rank * (size - 1) >= shape.vocab_size:
        yield f"leaves a rank without rows of the model's vocabulary of {shape.vocab_size}"
    if facts.fp8_scales == "blocks":
        heads = (shape.num_heads * shape.head_dim, "the columns of attention's output projection")
        for length, what in (heads, *_inner_lengths(shape)):
            # A last block that is not whole makes the matrix a dense one.
            if length > _FP8_BLOCK and not length % _FP8_BLOCK and length // size % _FP8_BLOCK:
                yield f"cuts {what} of {length} inside an FP8 block of {_FP8_BLOCK}"


def _inner_lengths(shape: ModelShape) -> Iterator[tuple[int, str]]:
    experts = shape.experts
    if experts is not None:
        yield experts.intermediate_size, "the intermediate size of the model's experts"
    if experts is None or len(experts.layers) < shape.num_layers:
        yield shape.intermediate_size, "the model's intermediate size"


def _even(length: int, rank: int, size: int) -> Axis:
    per_rank = length // size
    return Axis(length=length, own=range(rank * per_rank, (rank + 1) * per_rank))


def _vocabulary(length: int, rank: int, size: int) -> Axis:
    """As many rows for every rank but the last, which has what is left."""
    per_rank = -(-length // size)
    return Axis(length=length, own=range(rank * per_rank, min(length, (rank + 1) * per_rank)))


def _times(axis: Axis, width: int) -> Axis:
    own = range(axis.own.start * width, axis.own.stop * width)
    return Axis(length=axis.length * width, own=own)
