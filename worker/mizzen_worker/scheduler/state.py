"""Owns the bundle of everything one scheduler works on; owns no rule about any of it.

Each part has its one writer (see the package README); the bundle only saves passing each.
"""

from dataclasses import dataclass

from mizzen_worker.contracts.batch import RunnerLimits
from mizzen_worker.contracts.messages import Capacity, Load
from mizzen_worker.scheduler.counters import SchedulerCounters
from mizzen_worker.scheduler.intake import max_request_tokens
from mizzen_worker.scheduler.output_prediction import OutputPrediction
from mizzen_worker.scheduler.recent import Recent
from mizzen_worker.scheduler.residency import Residency
from mizzen_worker.scheduler.roster import Roster
from mizzen_worker.scheduler.settings import SchedulerSettings
from mizzen_worker.scheduler.step_output import StepOutput
from mizzen_worker.scheduler.wait_prediction import WaitPrediction


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerState:
    """The parts of one scheduler."""

    settings: SchedulerSettings
    limits: RunnerLimits
    roster: Roster
    residency: Residency
    output: StepOutput
    counters: SchedulerCounters
    prediction: OutputPrediction
    wait_prediction: WaitPrediction
    recent: Recent

    @property
    def max_running(self) -> int:
        """Count requests that may run at once."""
        return min(self.settings.max_running, self.limits.max_slots)

    def capacity(self) -> Capacity:
        """Say what this worker can take."""
        return Capacity(
            max_running_requests=self.max_running,
            max_queued_requests=self.settings.max_queued,
            kv_tokens=self.limits.num_pages * self.limits.page_size,
            context_length=max_request_tokens(self.limits),
        )

    def load(self, *, is_draining: bool) -> Load:
        """Say how busy it is."""
        return Load(
            running_requests=len(self.roster.running),
            queued_requests=len(self.roster.waiting),
            kv_tokens_used=self.kv_tokens_used(),
            is_draining=is_draining,
            queued_tokens=self.roster.num_tokens_to_prefill(),
        )

    def oldest_wait_s(self, now: float) -> float:
        """Say how long the oldest waiting request has waited; 0 when none waits."""
        oldest = next(self.roster.waiting.oldest(1), None)
        return 0.0 if oldest is None else now - oldest.arrived_at

    def kv_tokens_used(self) -> int:
        """Count KV positions that requests hold, the prefixes they share once."""
        cache = self.residency.cache
        return (cache.num_pages - cache.num_available) * self.limits.page_size

    def kv_tokens_cached(self) -> int:
        """Count KV positions in the prefix cache, in use or not."""
        return self.residency.cache.num_cached * self.limits.page_size
