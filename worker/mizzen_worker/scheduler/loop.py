"""Owns the scheduler loop: what comes in, one step, what goes out; owns neither model nor sockets.

One iteration, straight: receive, end what is over, plan and launch, settle, reply. ``overlapped``
means that one step stays in flight when the iteration ends: the next one is planned, launched and
queued on the device before its result is looked at. That is the only difference.

Overlap rule. While a step is planned at most one has not settled. Planning uses settled tokens,
counts and bounds, never the value of a token in flight. The step in flight settles *before* what
has to know its tokens: a retraction (for pages or for a more urgent request), a row that needs its
last token on the CPU, a hand-back, a flush. What ends a request needs no token and does not wait:
its slot and pages stay behind until the step has settled (``residency.py``), its result is skipped
(``pipeline.py``).

Failure classes: a bad request ends alone; a ``StepError`` ends the requests of its batch; a
``DeviceError`` or ``InvariantError`` leaves ``run_once``, and with it the process. Not thread safe.
"""

import logging
from collections.abc import Callable

from mizzen_worker.cache.controller import UnifiedRadixCache
from mizzen_worker.cache.events import EventLog
from mizzen_worker.contracts.batch import Runner
from mizzen_worker.contracts.errors import InvariantError
from mizzen_worker.contracts.messages import Capacity, Control, HandBackCause, Load, Reply
from mizzen_worker.contracts.request import FinishKind, FinishReason
from mizzen_worker.ipc.channel import WorkerEndpoint
from mizzen_worker.memory.allocator import PageAllocator
from mizzen_worker.memory.request_table import RequestTable
from mizzen_worker.memory.sizing import pages_for_tokens
from mizzen_worker.scheduler.control import DrainOrder
from mizzen_worker.scheduler.counters import SchedulerCounters
from mizzen_worker.scheduler.ending import Ending
from mizzen_worker.scheduler.memory_audit import audit, audit_counts
from mizzen_worker.scheduler.output_prediction import OutputPrediction
from mizzen_worker.scheduler.pipeline import Pipeline
from mizzen_worker.scheduler.planner import Planner
from mizzen_worker.scheduler.policies import STANDING_KEYS
from mizzen_worker.scheduler.prefix_groups import PrefixGroups
from mizzen_worker.scheduler.recent import Recent, StepParts
from mizzen_worker.scheduler.reception import Reception
from mizzen_worker.scheduler.residency import Residency
from mizzen_worker.scheduler.roster import Roster
from mizzen_worker.scheduler.settings import SchedulerSettings
from mizzen_worker.scheduler.slot_book import SlotBook
from mizzen_worker.scheduler.state import SchedulerState
from mizzen_worker.scheduler.step_output import StepOutput
from mizzen_worker.scheduler.wait_prediction import WaitPrediction
from mizzen_worker.scheduler.waiting_queue import WaitingQueue

logger = logging.getLogger(__name__)

_OVERDUE = FinishReason(kind=FinishKind.DEADLINE, message="the request's deadline passed")


class SchedulerLoop:
    """Runs one worker. ``clock`` gives monotonic seconds."""

    def __init__(
        self,
        *,
        runner: Runner,
        endpoint: WorkerEndpoint,
        clock: Callable[[], float],
        settings: SchedulerSettings,
    ) -> None:
        limits = runner.limits
        settings.require_fit(limits.page_size)
        self._clock = clock
        self._state = SchedulerState(
            settings=settings,
            limits=limits,
            roster=Roster(WaitingQueue(STANDING_KEYS[settings.policy])),
            residency=_build_residency(runner, settings),
            output=StepOutput(endpoint),
            counters=SchedulerCounters(),
            prediction=OutputPrediction(),
            wait_prediction=WaitPrediction(),
            recent=Recent(),
        )
        self._ending = Ending(self._state, clock=clock)
        self._pipeline = Pipeline(self._state, runner=runner, ending=self._ending, clock=clock)
        self._reception = Reception(
            self._state,
            endpoint=endpoint,
            ending=self._ending,
            settle=self._settle_all,
            clock=clock,
        )
        self._planner = Planner(self._state)
        self._was_busy = False

    @property
    def counters(self) -> SchedulerCounters:
        """The numbers to export; read only, true as of the last ``run_once``."""
        return self._state.counters

    @property
    def recent(self) -> Recent:
        """What happened since it was last emptied, for histograms and traces."""
        return self._state.recent

    @property
    def load(self) -> Load:
        """How busy it is, as peers are told."""
        return self._state.load(is_draining=self._reception.drain is not None)

    @property
    def num_live(self) -> int:
        """Count live requests."""
        return len(self._state.roster)

    @property
    def capacity(self) -> Capacity:
        """What it can take, as peers are told."""
        return self._state.capacity()

    @property
    def kv_tokens_cached(self) -> int:
        """KV positions in the prefix cache, in use or not."""
        return self._state.kv_tokens_cached()

    @property
    def oldest_wait_s(self) -> float:
        """How long the oldest waiting request has waited; 0 when none waits."""
        return self._state.oldest_wait_s(self._clock())

    @property
    def cache(self) -> UnifiedRadixCache:
        """What is cached, for who tells others about it; read only, between iterations."""
        return self._state.residency.cache

    @property
    def is_drained(self) -> bool:
        """Tell whether an ordered drain is over: no live request is left."""
        return self._reception.drain is not None and len(self._state.roster) == 0

    def start_drain(self, drain: DrainOrder) -> None:
        """Begin to drain, as the DRAIN control verb does; call between iterations.

        Hand-backs are with the endpoint when this returns.
        """
        self._reception.start_drain(drain)
        self._state.output.flush()

    def control(self, control: Control) -> Reply:
        """Do what the launcher asks, as for a peer; call between iterations."""
        reply = self._reception.control(control)
        self._state.output.flush()
        return reply

    def announce_restart(self) -> None:
        """Hand every live request back; for after ``run_once`` raised, before the process ends.

        The books are not trusted any more: no page is freed and no token is sent, so each peer
        goes on from the tokens that it has.
        """
        self._state.output.send_hand_backs(self._state.roster.live(), HandBackCause.RESTARTING)

    def run_once(self) -> bool:
        """Do one iteration; tell whether there was a step in it. Waits for messages when idle."""
        self._reception.receive()
        self._end_overdue()
        was_busy = self._pipeline.num_in_flight > 0
        launch_parts = self._launch()
        did_launch = launch_parts is not None
        may_stay = self._state.settings.is_overlapped and did_launch
        settles_at = self._clock()
        self._pipeline.settle(max_in_flight=1 if may_stay else 0)
        if launch_parts is not None:
            settle_s = self._clock() - settles_at
            self._state.recent.steps.append(StepParts(*launch_parts, settle_s))
        if not self._state.roster.running:
            self._settle_all()  # There is nothing that could overlap with it.
        self._state.output.flush()
        self._reception.beat()
        self._audit()
        return was_busy or did_launch

    def _settle_all(self) -> None:
        self._pipeline.settle(max_in_flight=0)

    def _end_overdue(self) -> None:
        now = self._clock()
        roster = self._state.roster
        for req in roster.take_expired(now):
            self._ending.finish(req, _OVERDUE)
        drain = self._reception.drain
        if drain is not None and drain.deadline is not None and now >= drain.deadline:
            self._settle_all()
            for req in roster.live():
                self._ending.hand_back(req, HandBackCause.DRAINING)

    def _launch(self) -> tuple[float, float] | None:
        """Plan and launch a step: the seconds that each of these took, None without a step."""
        now = self._clock()
        if self._pipeline.num_in_flight and self._planner.must_settle(now):
            self._settle_all()
        is_settled = self._pipeline.num_in_flight == 0
        plan = self._planner.plan(now, is_settled=is_settled)
        self._state.counters.retractions += plan.num_retracted
        self._state.counters.preemptions += plan.num_preempted
        planned_at = self._clock()
        if plan.is_empty or not self._pipeline.launch(plan):
            return None
        return planned_at - now, self._clock() - planned_at

    def _audit(self) -> None:
        """Compare the books: all of them where settings say so, counts when falling idle."""
        is_busy = bool(self._state.roster.running)
        violations: list[str] = []
        if self._state.settings.is_audited:
            violations = audit(self._state.roster, self._state.residency)
        elif self._was_busy and not is_busy:
            violations = audit_counts(self._state.roster, self._state.residency)
        self._was_busy = is_busy
        if violations:
            raise InvariantError(violations)


def _build_residency(runner: Runner, settings: SchedulerSettings) -> Residency:
    limits = runner.limits
    num_events = settings.num_kept_cache_events
    table = RequestTable(
        max_slots=limits.max_slots,
        max_pages_per_slot=pages_for_tokens(limits.context_length, page_size=limits.page_size),
    )
    return Residency(
        cache=UnifiedRadixCache(
            allocator=PageAllocator(num_pages=limits.num_pages),
            page_size=limits.page_size,
            eviction=settings.cache_eviction,
            event_log=EventLog(capacity=num_events) if num_events else None,
        ),
        table=table,
        book=SlotBook(max_slots=limits.max_slots),
        groups=PrefixGroups(table=table, page_size=limits.page_size, rule=settings.group_rule),
    )
