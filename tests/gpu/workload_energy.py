"""Owns the least energy that the benchmarks' workloads take, from what a byte and a product take.

Pure. Every engine has to read the weights at each step and each row's keys and values for each new
token, and to multiply each token with each matrix: ``Work`` counts just that. The time is energy
over the watts that the power limit leaves beside idle ones: an estimate, for what a byte or an
operation costs falls a little with the clock.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mizzen_worker.bench.workloads import BenchRequest
from mizzen_worker.models.model_facts import ModelShape

_BYTES = 2
"""Of a bfloat16."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """Terabytes read, and tera-operations (a multiplication and an addition are two)."""

    terabytes: float
    teraoperations: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Of one GPU: joules beyond ``idle_w``, and the watts that it may draw."""

    joules_per_terabyte: float
    joules_per_teraoperation: float
    idle_w: float
    limit_w: float

    def least_seconds(self, work: Work) -> float:
        """The time that ``work`` takes at the power limit, were everything done side by side."""
        joules = (
            work.terabytes * self.joules_per_terabyte
            + work.teraoperations * self.joules_per_teraoperation
        )
        return joules / (self.limit_w - self.idle_w)


def layer_values(shape: ModelShape) -> int:
    """Numbers in the matrices of one dense layer."""
    queries, keys = shape.num_heads * shape.head_dim, shape.num_kv_heads * shape.head_dim
    return shape.hidden_size * (2 * queries + 2 * keys + 3 * shape.intermediate_size)


def prefill_work(shape: ModelShape, lengths: Sequence[int]) -> Work:
    """Whole prompts, causal attention, one output each; their weights are read hardly ever."""
    values = shape.num_layers * layer_values(shape)
    width = shape.num_layers * shape.num_heads * shape.head_dim
    head = shape.hidden_size * shape.vocab_size
    operations = sum(2 * values * n + 4 * width * n * (n + 1) / 2 + 2 * head for n in lengths)
    return Work(terabytes=0.0, teraoperations=operations * 1e-12)


def decode_work(shape: ModelShape, requests: Sequence[tuple[int, int]]) -> Work:
    """Steps after the prompts, all requests side by side: (prompt, new tokens) of each.

    The first new token comes with the prompt, so there is a step less than new tokens.
    """
    values = shape.num_layers * layer_values(shape) + shape.hidden_size * shape.vocab_size
    position = 2 * shape.num_layers * shape.num_kv_heads * shape.head_dim
    width = shape.num_layers * shape.num_heads * shape.head_dim
    num_steps = max((new - 1 for _, new in requests), default=0)
    num_tokens = sum(new - 1 for _, new in requests)
    # Step i reads the prompt and the i tokens before the one it makes.
    num_positions = sum((new - 1) * prompt + (new - 1) * new // 2 for prompt, new in requests)
    return Work(
        terabytes=_BYTES * (num_steps * values + num_positions * position) * 1e-12,
        teraoperations=(2 * num_tokens * values + 4 * num_positions * width) * 1e-12,
    )


def offline_work(shape: ModelShape, requests: Sequence[BenchRequest]) -> Work:
    """Prompts, then decoding, of requests that are all there from the beginning."""
    prompts = prefill_work(shape, [len(request.prompt_ids) for request in requests])
    decoding = decode_work(
        shape, [(len(request.prompt_ids), request.num_new) for request in requests]
    )
    return Work(
        terabytes=prompts.terabytes + decoding.terabytes,
        teraoperations=prompts.teraoperations + decoding.teraoperations,
    )
