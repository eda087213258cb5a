"""Owns the numbers a scheduler counts; exports none of them (observability does)."""

from dataclasses import dataclass, field

from mizzen_worker.contracts.request import FinishKind


@dataclass(slots=True, kw_only=True)
class SchedulerCounters:
    """They only grow. The loop alone writes."""

    steps: int = 0
    step_seconds: float = 0.0
    """Time from launch to settled, summed."""
    prompt_tokens: int = 0
    """Prompt tokens of requests admitted for the first time."""
    cached_tokens: int = 0
    """Of those, the ones whose KV was found in the prefix cache."""
    prefilled_tokens: int = 0
    """Tokens computed by extend rows, those computed again after a retraction included."""
    generated_tokens: int = 0
    retractions: int = 0
    """Requests sent back to the queue for lack of pages."""
    preemptions: int = 0
    """Requests sent back to the queue for one of higher priority."""
    handed_back_requests: int = 0
    finished_requests: dict[FinishKind, int] = field(
        default_factory=lambda: dict.fromkeys(FinishKind, 0)
    )
