"""Owns what a pod waits for, in words, from what holds it up, the Events about it and the time.

Does not own what holds it up nor what that means for the service (``status``). Pure: the clock is
an argument.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from mizzen_operator.observed import PodFacts
from mizzen_operator.report.events import EventFacts
from mizzen_operator.report.wording import age
from mizzen_operator.spec.wording import moment_text
from mizzen_operator.status.holdups import (
    WAIT_CREATING,
    WAIT_ENDING,
    WAIT_READINESS,
    WAIT_STARTUP,
    HoldUp,
    hold_up_of,
)

_PROBE_EVENT = "Unhealthy"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """The one thing that a pod waits for now."""

    reason: str
    """Key of the table of remedies."""
    text: str
    until: datetime | None = None
    """When it ends at the latest, where that is known."""


def wait_of(pod: PodFacts, events: Sequence[EventFacts], now: datetime) -> Wait | None:
    """What this pod waits for; None if it is ready. ``events`` are those about it, newest first."""
    held = hold_up_of(pod)
    if held is None:
        return None
    if held.reason == WAIT_ENDING:
        return _ending(pod, held, now)
    if held.reason == WAIT_CREATING:
        return _creating(held, events)
    if held.reason in (WAIT_STARTUP, WAIT_READINESS) and pod.started_at is not None:
        return _probe(pod.started_at, held, events, now)
    return Wait(reason=held.reason, text=held.text)


def _creating(held: HoldUp, events: Sequence[EventFacts]) -> Wait:
    warning = next((event for event in events if event.is_warning), None)
    found = f": {warning.reason}: {warning.message}" if warning else ""
    return Wait(reason=held.reason, text=f"{held.text}{found}")


def _ending(pod: PodFacts, held: HoldUp, now: datetime) -> Wait:
    until, text = pod.child.ends_at, held.text
    if until is not None and until >= now:
        left = age(until - now)
        text = f"{text}: it drains until {moment_text(until)} at the latest (in {left})"
    elif until is not None:
        text = f"{text}, which was due {age(now - until)} ago: is node {pod.node_name} well?"
    return Wait(reason=held.reason, text=text, until=until)


def _probe(started_at: datetime, held: HoldUp, events: Sequence[EventFacts], now: datetime) -> Wait:
    probe = "readiness" if held.reason == WAIT_READINESS else "startup"
    answer = next(
        (
            event.message
            for event in events
            if event.reason == _PROBE_EVENT and event.message.lower().startswith(probe)
        ),
        "",
    )
    # The kubelet's sentence begins with the name of the probe.
    last = f"; {answer}" if answer else ""
    return Wait(reason=held.reason, text=f"{held.text}, for {age(now - started_at)} now{last}")
