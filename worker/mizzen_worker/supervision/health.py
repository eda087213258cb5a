"""Owns what the processes of a pod add up to: alive, ready, started, or why not. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessView:
    """One process as its launcher sees it; ``silent_s`` is how long it has said nothing new.

    ``lifeless_s`` is how long a process that shows life in a thread has not; 0 for others.
    """

    name: str
    is_running: bool
    state: str
    silent_s: float
    is_restarted: bool
    lifeless_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PodHealth:
    """Answers to the three probes; each reason is None when the answer is yes."""

    why_not_live: str | None
    why_not_ready: str | None
    why_not_started: str | None


UNSTARTED_STATES = frozenset({"starting", "loading", "failed"})
"""A process in one of these holds no work."""


_FAILED = "failed"
_FAILED_S = 5.0
"""A process that has told its failure has nothing left to do but to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceLimits:
    """Seconds without a sign of life: of a loop that turned once, and of what starts or loads.

    ``lifeless_s`` is for processes that show life in a thread whatever their loop does.
    """

    running_s: float
    loading_s: float
    lifeless_s: float = float("inf")

    def excess(self, process: ProcessView) -> str | None:
        """Say for what a process that runs has been silent for too long, None when it has not."""
        limit_s = self.running_s
        if process.state in UNSTARTED_STATES:
            limit_s = _FAILED_S if process.state == _FAILED else self.loading_s
        if process.silent_s > limit_s:
            return f"has been silent for {process.silent_s:.0f} s"
        if process.lifeless_s > self.lifeless_s:
            return f"has shown no life for {process.lifeless_s:.0f} s"
        return None


def pod_health(
    processes: Iterable[ProcessView],
    *,
    limits: SilenceLimits,
    is_draining: bool,
    was_started: bool,
) -> PodHealth:
    """Judge a pod. A process that is starting or being started again is not ready, but alive."""
    why_not_live: str | None = None
    why_not_ready: str | None = "the pod is draining" if is_draining else None
    why_not_started: str | None = None
    for process in processes:
        if not process.is_running:
            reason = f"{process.name} is not running"
            why_not_ready = why_not_ready or reason
            why_not_started = why_not_started or reason
            if not process.is_restarted and not is_draining:
                why_not_live = why_not_live or reason
        elif process.state in UNSTARTED_STATES:
            reason = f"{process.name} is {process.state}"
            why_not_ready = why_not_ready or reason
            why_not_started = why_not_started or reason
        elif process.state != "ready":
            why_not_ready = why_not_ready or f"{process.name} is {process.state}"
        excess = limits.excess(process) if process.is_running else None
        if excess is not None:
            reason = f"{process.name} {excess}"
            why_not_live = why_not_live or reason
            why_not_ready = why_not_ready or reason
    return PodHealth(
        why_not_live=why_not_live,
        why_not_ready=why_not_ready,
        why_not_started=None if was_started else why_not_started,
    )


def stuck_processes(
    processes: Iterable[ProcessView], *, limits: SilenceLimits
) -> Mapping[str, str]:
    """Say of the running processes without a sign of life for longer than their limit which."""
    return {
        process.name: excess
        for process in processes
        if process.is_running and (excess := limits.excess(process)) is not None
    }
