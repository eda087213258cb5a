"""Owns how a worker drains and what it says about itself; owns no request."""

from dataclasses import dataclass

import msgspec

from mizzen_worker.contracts.drain import DRAIN_MODES, DrainMode
from mizzen_worker.contracts.messages import Control, Reply
from mizzen_worker.scheduler.counters import SchedulerCounters
from mizzen_worker.scheduler.settings import SchedulerSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """An order to drain; it is never taken back. ``deadline`` is a time of the loop's clock."""

    mode: DrainMode
    deadline: float | None


def parse_drain(arguments: dict[str, str], now: float) -> Drain | str:
    """Read the arguments of DRAIN; a sentence when they are wrong."""
    unknown = sorted(arguments.keys() - {"mode", "deadline_s"})
    if unknown:
        return f"drain: unknown argument {unknown[0]!r}; use mode and deadline_s"
    mode = arguments.get("mode", DrainMode.HANDBACK.value)
    if mode not in DRAIN_MODES:
        return f"mode: {mode!r} is not known; use {' or '.join(DRAIN_MODES)}"
    text = arguments.get("deadline_s")
    if text is None:
        return Drain(mode=DrainMode(mode), deadline=None)
    try:
        deadline_s = msgspec.convert(text, float, strict=False)
    except msgspec.ValidationError:
        deadline_s = -1.0
    if not 0 <= deadline_s < float("inf"):
        return f"deadline_s: {text!r}; give seconds from now, 0 or more"
    return Drain(mode=DrainMode(mode), deadline=now + deadline_s)


def describe(settings: SchedulerSettings, counters: SchedulerCounters) -> dict[str, str]:
    """Tell identity and counters as text facts."""
    facts: dict[str, str] = {"instance_id": settings.instance_id}
    facts.update(msgspec.structs.asdict(settings.identity))
    for name, value in msgspec.to_builtins(counters).items():
        if isinstance(value, dict):
            facts.update({f"{name}.{key}": str(count) for key, count in value.items()})
        else:
            facts[name] = str(value)
    return facts


def accepted(control: Control, message: str, facts: dict[str, str]) -> Reply:
    """Build the answer to a verb that was done."""
    return Reply(control_id=control.control_id, is_ok=True, message=message, facts=facts)


def refused(control: Control, message: str) -> Reply:
    """Build the answer to a verb that was not done."""
    return Reply(control_id=control.control_id, is_ok=False, message=message)
