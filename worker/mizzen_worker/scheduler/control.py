"""Owns how a worker drains and what it says about itself; owns no request."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from mizzen_worker.contracts.drain import DRAIN_MODES, DrainMode
from mizzen_worker.contracts.messages import Control, Fact, Facts, Reply
from mizzen_worker.scheduler.state import SchedulerState


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainOrder:
    """An order to drain; it is never taken back. ``deadline`` is a time of the loop's clock."""

    mode: DrainMode
    deadline: float | None


def parse_drain(arguments: dict[str, str], now: float) -> DrainOrder | str:
    """Read the arguments of DRAIN; a sentence when they are wrong."""
    unknown = sorted(arguments.keys() - {"mode", "deadline_s"})
    if unknown:
        return f"drain: unknown argument {unknown[0]!r}; use mode and deadline_s"
    mode = arguments.get("mode", DrainMode.HANDBACK.value)
    if mode not in DRAIN_MODES:
        return f"mode: {mode!r} is not known; use {' or '.join(DRAIN_MODES)}"
    text = arguments.get("deadline_s")
    if text is None:
        return DrainOrder(mode=DrainMode(mode), deadline=None)
    try:
        deadline_s = msgspec.convert(text, float, strict=False)
    except msgspec.ValidationError:
        deadline_s = -1.0
    if not 0 <= deadline_s < float("inf"):
        return f"deadline_s: {text!r}; give seconds from now, 0 or more"
    return DrainOrder(mode=DrainMode(mode), deadline=now + deadline_s)


def describe(state: SchedulerState, now: float) -> Facts:
    """Tell identity, sizes, queue, predictions and counters."""
    settings = state.settings
    facts: Facts = {"instance_id": settings.instance_id}
    facts.update(msgspec.structs.asdict(settings.identity))
    facts.update((*_sizes(state), *_queue(state, now)))
    for name, value in msgspec.to_builtins(state.counters).items():
        if isinstance(value, dict):
            facts.update({f"{name}.{key}": count for key, count in value.items()})
        else:
            facts[name] = value
    return facts


def _sizes(state: SchedulerState) -> Iterator[tuple[str, Fact]]:
    """What was decided at the start."""
    settings, limits = state.settings, state.limits
    yield "schedule_policy", settings.policy.value
    yield "queue_ageing_s", settings.ageing_s
    yield "priority_preemption", settings.is_preemptive
    yield "max_running_requests", state.max_running
    yield "max_queued_requests", settings.max_queued
    yield "max_chunk_tokens", settings.max_chunk_tokens
    yield "decode_patience_s", settings.mix.patience_s
    yield "kv_tokens_total", state.capacity().kv_tokens
    yield "page_size", limits.page_size
    yield "context_length", limits.context_length
    yield "vocab_size", limits.vocab_size


def _queue(state: SchedulerState, now: float) -> Iterator[tuple[str, Fact]]:
    """What is true now, apart from the counters."""
    waiting = state.roster.waiting
    wait_s = state.wait_prediction.seconds(num_ahead=len(waiting), now=now)
    yield "running_requests", len(state.roster.running)
    yield "queued_requests", len(waiting)
    yield "live_requests", len(state.roster)
    yield "queued_tokens", state.roster.num_tokens_to_prefill()
    yield "oldest_wait_s", round(state.oldest_wait_s(now), 3)
    yield "predicted_wait_s", round(wait_s, 3)
    yield (
        "predicted_output_tokens",
        state.prediction.remaining(num_output=0, max_remaining=state.limits.context_length),
    )
    yield "kv_tokens_used", state.kv_tokens_used()
    yield "kv_tokens_cached", state.kv_tokens_cached()
    yield "kv_tokens_available", state.residency.cache.num_available * state.limits.page_size
    counts = Counter(req.standing.priority for req in waiting)
    for priority in sorted(counts, reverse=True):
        yield f"queued_requests.{priority}", counts[priority]


def accepted(control: Control, message: str, facts: Facts) -> Reply:
    """Build the answer to a verb that was done."""
    return Reply(control_id=control.control_id, is_ok=True, message=message, facts=facts)


def refused(control: Control, message: str) -> Reply:
    """Build the answer to a verb that was not done."""
    return Reply(control_id=control.control_id, is_ok=False, message=message)
