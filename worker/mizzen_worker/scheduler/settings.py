"""Owns what a scheduler is told once, at its start; owns no default of the command line."""

from collections.abc import Callable
from dataclasses import dataclass, field

from mizzen_worker.contracts.cache_eviction import CacheEviction
from mizzen_worker.contracts.errors import ConfigError
from mizzen_worker.contracts.ids import InstanceId, TokenId
from mizzen_worker.contracts.messages import ModelIdentity, Submit
from mizzen_worker.contracts.schedule_policy import SchedulePolicy
from mizzen_worker.scheduler.prefix_groups import GroupRule
from mizzen_worker.scheduler.step_mix import MixRule


def _nobody(_: Submit) -> bool:
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """Fixed for the life of a loop.

    ``max_chunk_tokens`` bounds the prompt tokens computed in one step. ``max_running`` is cut to
    the runner's slots. ``ageing_s`` is the wait after which age counts, whatever the policy;
    ``is_preemptive`` matters to the policy ``priority`` only. ``is_overlapped`` plans and launches
    a step while the one before it runs; a request that ``needs_cpu_token`` picks is never planned
    while a token of it is in flight. The newest ``num_kept_cache_events`` are kept for who missed
    them; with 0 none are recorded. ``group_rule`` says which decode rows are worth telling the
    runner that they share pages, ``mix`` when decode rows and prompts share a step. ``is_audited``
    recomputes every invariant after every step: for tests. While nothing runs, only
    ``max_messages_when_idle`` of what has arrived are taken before the first step: the device would
    wait for the others to be read (40 us each), and a step looks at no more of the queue.
    """

    instance_id: InstanceId
    identity: ModelIdentity
    eos_token_ids: tuple[TokenId, ...]
    max_running: int
    max_queued: int
    max_chunk_tokens: int
    policy: SchedulePolicy = SchedulePolicy.FCFS
    cache_eviction: CacheEviction = CacheEviction.LRU
    num_kept_cache_events: int = 0
    is_preemptive: bool = True
    ageing_s: float = 30.0
    is_overlapped: bool = False
    needs_cpu_token: Callable[[Submit], bool] = _nobody
    heartbeat_interval_s: float = 1.0
    max_idle_wait_s: float = 0.5
    max_messages_per_step: int = 1024
    max_messages_when_idle: int = 64
    is_audited: bool = False
    group_rule: GroupRule = field(default_factory=GroupRule)
    mix: MixRule = field(default_factory=MixRule)

    def require_fit(self, page_size: int) -> None:
        """Refuse sizes that could never make progress."""
        if self.max_chunk_tokens < page_size:
            message = (
                f"--max-chunk-tokens: {self.max_chunk_tokens} is smaller than a page; "
                f"give at least the page size, {page_size}"
            )
            raise ConfigError(message)
        for name, value in (("max_running", self.max_running), ("max_queued", self.max_queued)):
            if value < 1:
                message = f"{name}: {value} lets nothing run; give at least 1"
                raise ConfigError(message)
