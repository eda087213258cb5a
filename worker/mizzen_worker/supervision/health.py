"""Owns what the processes of a pod add up to: alive, ready, started, or why not. Pure."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessView:
    """One process as its launcher sees it; ``silent_s`` is how long it has said nothing new."""

    name: str
    is_running: bool
    state: str
    silent_s: float
    is_restarted: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PodHealth:
    """Answers to the three probes; each reason is None when the answer is yes."""

    why_not_live: str | None
    why_not_ready: str | None
    why_not_started: str | None


UNSTARTED_STATES = frozenset({"starting", "loading", "failed"})
"""A process in one of these holds no work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SilenceLimits:
    """Seconds without a sign of life: of a loop that turned once, and of what starts or loads."""

    running_s: float
    loading_s: float

    def is_exceeded_by(self, process: ProcessView) -> bool:
        """Tell whether a process that runs has been silent for too long."""
        is_unstarted = process.state in UNSTARTED_STATES
        return process.silent_s > (self.loading_s if is_unstarted else self.running_s)


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
        if process.is_running and limits.is_exceeded_by(process):
            reason = f"{process.name} has been silent for {process.silent_s:.0f} s"
            why_not_live = why_not_live or reason
            why_not_ready = why_not_ready or reason
    return PodHealth(
        why_not_live=why_not_live,
        why_not_ready=why_not_ready,
        why_not_started=None if was_started else why_not_started,
    )


def stuck_processes(processes: Iterable[ProcessView], *, limits: SilenceLimits) -> tuple[str, ...]:
    """Name the running processes that have shown no sign of life for longer than their limit."""
    return tuple(
        process.name
        for process in processes
        if process.is_running and limits.is_exceeded_by(process)
    )
