"""Owns the benchmarks: which workloads each runs, and what its rows say; prints nothing."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from mizzen_worker.bench.device_use import use_columns
from mizzen_worker.bench.engine import BenchEngine, RunResult
from mizzen_worker.bench.workloads import (
    BenchRequest,
    PrefixSizes,
    equal_requests,
    mixed_requests,
    prefix_requests,
)

Row = Mapping[str, str | int | float]


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchSizes:
    """Sizes of the workloads; the defaults are those that published numbers were taken with.

    ``num_requests`` of the mixed workload; ``batches``, ``num_prompt`` and ``num_new`` of the
    decode steps; ``num_prefills`` prompts of ``prefill_length`` ids; ``rounds`` is how often each
    is measured after one run that warms up, medians are told.
    """

    num_requests: int = 256
    temperature: float = 0.0
    batches: tuple[int, ...] = (1, 32, 128)
    num_prompt: int = 1024
    num_new: int = 256
    num_prefills: int = 16
    prefill_length: int = 4096
    prefix: PrefixSizes = field(default_factory=PrefixSizes)
    rounds: int = 3


def measure_offline(engine: BenchEngine, sizes: BenchSizes) -> list[Row]:
    """Mixed prompts and outputs, all submitted at once: output tokens per second."""
    engine.run(mixed_requests(min(16, sizes.num_requests)), temperature=sizes.temperature)
    requests = mixed_requests(sizes.num_requests)
    results = [
        engine.run(requests, temperature=sizes.temperature, title="offline")
        for _ in range(sizes.rounds)
    ]
    result = _median(results)
    return [
        {
            "requests": sizes.num_requests,
            "temperature": sizes.temperature,
            "input tokens": result.num_prompt,
            "output tokens": result.num_generated,
            "wall s": result.wall_s,
            "output tok/s": result.num_generated / result.wall_s,
            "steps": result.num_steps,
            "retractions": result.num_retractions,
            **_used(results),
        }
    ]


def measure_decode(engine: BenchEngine, sizes: BenchSizes) -> list[Row]:
    """Fixed batches of fresh prompts: time to first token, and what each further token adds."""
    return [_measure_batch(engine, sizes, batch) for batch in sizes.batches]


def _measure_batch(engine: BenchEngine, sizes: BenchSizes, batch: int) -> Row:
    fresh = _fresh_prompts(batch, sizes.num_prompt)
    engine.run(fresh(min(8, sizes.num_new)))
    firsts = [engine.run(fresh(1)) for _ in range(sizes.rounds)]
    wholes = [
        engine.run(fresh(sizes.num_new), title=f"decode, batch {batch}")
        for _ in range(sizes.rounds)
    ]
    first_s, whole_s = _median(firsts).wall_s, _median(wholes).wall_s
    step_s = (whole_s - first_s) / max(1, sizes.num_new - 1)
    if step_s <= 0:
        step_s = math.nan  # So few tokens say nothing.
    return {
        "batch": batch,
        "prompt": sizes.num_prompt,
        "new": sizes.num_new,
        "TTFT ms": first_s * 1e3,
        "step ms": step_s * 1e3,
        "decode tok/s": batch / step_s,
        **_used(wholes),
    }


def measure_prefill(engine: BenchEngine, sizes: BenchSizes) -> list[Row]:
    """Long prompts with one output token each: input tokens per second."""
    fresh = _fresh_prompts(sizes.num_prefills, sizes.prefill_length)
    engine.run(fresh(1))
    results = [engine.run(fresh(1), title="prefill") for _ in range(sizes.rounds)]
    result = _median(results)
    return [
        {
            "prompts": sizes.num_prefills,
            "length": sizes.prefill_length,
            "wall s": result.wall_s,
            "input tok/s": result.num_prompt / result.wall_s,
            **_used(results),
        }
    ]


def measure_prefix(engine: BenchEngine, sizes: BenchSizes) -> list[Row]:
    """Groups of requests that begin alike, cold cache: wall time and hit rate, in both orders."""
    rows: list[Row] = []
    for is_shuffled in (False, True):
        requests = prefix_requests(sizes.prefix, is_shuffled=is_shuffled)
        engine.run(requests)
        order = "shuffled" if is_shuffled else "groups"
        results = [engine.run(requests, title=f"prefix, {order}") for _ in range(sizes.rounds)]
        result = _median(results)
        rows.append(
            {
                "order": order,
                "requests": len(requests),
                "wall s": result.wall_s,
                "hit rate": result.num_cached / result.num_prompt,
                "best hit rate": sizes.prefix.best_hit_rate,
                **_used(results),
            }
        )
    return rows


MEASURES: Mapping[str, Callable[[BenchEngine, BenchSizes], list[Row]]] = {
    "offline": measure_offline,
    "decode": measure_decode,
    "prefill": measure_prefill,
    "prefix": measure_prefix,
}
"""By the word that ``mizzen bench`` takes."""


def _fresh_prompts(count: int, num_prompt: int) -> Callable[[int], Sequence[BenchRequest]]:
    """Other prompts at each call, so that none is found in any cache."""
    num_calls = 0

    def fresh(num_new: int) -> Sequence[BenchRequest]:
        nonlocal num_calls
        num_calls += 1
        return equal_requests(count, num_prompt=num_prompt, num_new=num_new, seed=num_calls)

    return fresh


def _median(results: Sequence[RunResult]) -> RunResult:
    """The run of median wall time (the lower one of an even count)."""
    return sorted(results, key=lambda result: result.wall_s)[(len(results) - 1) // 2]


def _used(results: Sequence[RunResult]) -> Row:
    return use_columns([result.use for result in results])
