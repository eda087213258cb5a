"""Owns what happened since somebody last looked: requests that ended, parts of steps; no totals.

For histograms and traces, which the loop does not make. Bounded: what nobody takes is overwritten.
"""

from collections import deque
from dataclasses import dataclass, field

from mizzen_worker.contracts.request import FinishKind

_MOST_ENDED = 8192
_MOST_STEPS = 8192


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedRequest:
    """One attempt; times are of the loop's clock, None where it never came so far.

    ``kind`` None is an attempt that was handed back.
    """

    log_id: str
    traceparent: str
    kind: FinishKind | None
    arrived_at: float
    started_at: float | None
    first_token_at: float | None
    ended_at: float
    num_prompt: int
    num_cached: int
    num_output: int


@dataclass(frozen=True, slots=True)
class StepParts:
    """Seconds that one step took the CPU: to plan, to launch, to wait for and settle results."""

    planning_s: float
    launch_s: float
    settle_s: float


@dataclass(slots=True, kw_only=True)
class Recent:
    """Written by the loop, emptied by who reports."""

    ended: deque[EndedRequest] = field(default_factory=lambda: deque(maxlen=_MOST_ENDED))
    steps: deque[StepParts] = field(default_factory=lambda: deque(maxlen=_MOST_STEPS))
