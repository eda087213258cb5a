"""Owns the scheduler loop: what comes in, one step, what goes out; owns neither model nor sockets.

One iteration, straight: receive, end what is over, plan and launch, settle, reply. ``_launch``
gives a ``Launched`` and ``_settle`` takes it, and nothing else passes between them: overlapping
steps is moving the settle of one step behind the launch of the next.

Failure classes: a bad request ends alone; a ``StepError`` ends the requests of its batch; a
``DeviceError`` or ``InvariantError`` leaves ``run_once``, and with it the process. Not thread safe.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from mizzen_worker.cache.controller import UnifiedRadixCache
from mizzen_worker.contracts.batch import PendingStep, Runner, StepResult
from mizzen_worker.contracts.errors import InvariantError, StepError
from mizzen_worker.contracts.messages import Control, HandBackCause, Reply
from mizzen_worker.contracts.request import FinishKind, FinishReason
from mizzen_worker.ipc.channel import WorkerEndpoint
from mizzen_worker.memory.allocator import PageAllocator
from mizzen_worker.memory.request_table import RequestTable
from mizzen_worker.memory.sizing import pages_for_tokens
from mizzen_worker.scheduler.batch_builder import build_batch
from mizzen_worker.scheduler.control import Drain
from mizzen_worker.scheduler.counters import SchedulerCounters
from mizzen_worker.scheduler.ending import Ending
from mizzen_worker.scheduler.memory_audit import audit, audit_counts
from mizzen_worker.scheduler.outbox import Outbox
from mizzen_worker.scheduler.output_prediction import OutputPrediction
from mizzen_worker.scheduler.planner import Plan, Planner
from mizzen_worker.scheduler.policies import STANDING_KEYS
from mizzen_worker.scheduler.reception import Reception
from mizzen_worker.scheduler.req import Req, ReqState
from mizzen_worker.scheduler.residency import Residency
from mizzen_worker.scheduler.roster import Roster
from mizzen_worker.scheduler.settings import SchedulerSettings
from mizzen_worker.scheduler.settle import finish_after_last_token
from mizzen_worker.scheduler.state import SchedulerState
from mizzen_worker.scheduler.wait_prediction import WaitPrediction
from mizzen_worker.scheduler.waiting_line import WaitingLine

logger = logging.getLogger(__name__)

_OVERDUE = FinishReason(kind=FinishKind.DEADLINE, message="the request's deadline passed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A step on its way: its plan, and the promise of its result."""

    step: int
    plan: Plan
    pending: PendingStep
    launched_at: float


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
        self._runner = runner
        self._clock = clock
        self._state = SchedulerState(
            settings=settings,
            limits=limits,
            roster=Roster(WaitingLine(STANDING_KEYS[settings.policy])),
            residency=_build_residency(runner),
            outbox=Outbox(endpoint),
            counters=SchedulerCounters(),
            prediction=OutputPrediction(),
            wait_prediction=WaitPrediction(),
        )
        self._ending = Ending(self._state)
        self._reception = Reception(
            self._state, endpoint=endpoint, ending=self._ending, clock=clock
        )
        self._planner = Planner(self._state)
        self._step = 0
        self._was_busy = False

    @property
    def counters(self) -> SchedulerCounters:
        """The numbers to export; read only, true as of the last ``run_once``."""
        return self._state.counters

    @property
    def is_drained(self) -> bool:
        """Tell whether an ordered drain is over: no live request is left."""
        return self._reception.drain is not None and len(self._state.roster) == 0

    def start_drain(self, drain: Drain) -> None:
        """Begin to drain, as the DRAIN control verb does; call between iterations.

        Hand-backs are with the endpoint when this returns.
        """
        self._reception.start_drain(drain)
        self._state.outbox.flush()

    def control(self, control: Control) -> Reply:
        """Do what the launcher asks, as for a peer; call between iterations."""
        reply = self._reception.control(control)
        self._state.outbox.flush()
        return reply

    def announce_restart(self) -> None:
        """Hand every live request back; for after ``run_once`` raised, before the process ends.

        The books are not trusted any more: no page is freed and no token is sent, so each peer
        goes on from the tokens that it has.
        """
        for req in self._state.roster.live():
            self._state.outbox.send_hand_back(req, HandBackCause.RESTARTING)

    def run_once(self) -> bool:
        """Do one iteration; tell whether it ran a step. Waits for messages when idle."""
        self._reception.receive()
        self._end_overdue()
        launched = self._launch()
        if launched is not None:
            self._settle(launched)
        self._state.refresh_gauges()
        self._state.outbox.flush()
        self._reception.beat()
        self._audit()
        return launched is not None

    def _end_overdue(self) -> None:
        now = self._clock()
        roster = self._state.roster
        for req in roster.take_expired(now):
            self._ending.finish(req, _OVERDUE)
        drain = self._reception.drain
        if drain is not None and drain.deadline is not None and now >= drain.deadline:
            for req in roster.live():
                self._ending.hand_back(req, HandBackCause.DRAINING)

    def _launch(self) -> Launched | None:
        plan = self._planner.plan(self._clock())
        self._state.counters.retractions += plan.num_retracted
        self._state.counters.preemptions += plan.num_preempted
        if not plan.rows():
            return None
        step = self._step + 1
        residency = self._state.residency
        batch = build_batch(
            plan,
            step=step,
            page_writes=[
                write for row in plan.rows() if (write := residency.sync(row.req)) is not None
            ],
            eos_token_ids=self._state.settings.eos_token_ids,
            page_size=self._state.limits.page_size,
        )
        launched_at = self._clock()
        try:
            pending = self._runner.launch(batch)
        except StepError as error:
            logger.exception("step %s of %s requests cannot run", step, batch.num_rows)
            self._end_batch(plan, error)
            return None
        self._step = step
        for row in plan.rows():
            row.req.num_kv += row.num_new
            if row.is_sampled and row.req.state is ReqState.PREFILLING:
                row.req.move(ReqState.DECODING)
        return Launched(step=step, plan=plan, pending=pending, launched_at=launched_at)

    def _settle(self, launched: Launched) -> None:
        """Take the result of a step: the only place where tokens enter requests."""
        result = launched.pending.settle()
        plan, counters = launched.plan, self._state.counters
        counters.steps += 1
        counters.step_seconds += self._clock() - launched.launched_at
        _require_complete(launched, result)
        sampled = iter(result.sampled_ids.tolist())
        for row in plan.extends:
            counters.prefilled_tokens += row.num_new
            if row.is_sampled:
                self._take_token(row.req, next(sampled))
            if row.req.is_running:
                self._state.residency.checkpoint(row.req)
        for row in plan.decodes:
            self._take_token(row.req, next(sampled))

    def _take_token(self, req: Req, token: int) -> None:
        """Add a sampled token; end the request where that ends it."""
        req.append(token)
        self._state.counters.generated_tokens += 1
        reason = finish_after_last_token(
            req,
            eos_token_ids=self._state.settings.eos_token_ids,
            vocab_size=self._state.limits.vocab_size,
        )
        if reason is not None:
            self._ending.finish(req, reason)
        else:
            self._state.outbox.report_tokens(req)

    def _end_batch(self, plan: Plan, error: StepError) -> None:
        reason = FinishReason(kind=FinishKind.ERROR, message=f"the step could not run: {error}")
        for row in plan.rows():
            self._ending.finish(row.req, reason)

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


def _build_residency(runner: Runner) -> Residency:
    limits = runner.limits
    allocator = PageAllocator(num_pages=limits.num_pages)
    return Residency(
        cache=UnifiedRadixCache(allocator=allocator, page_size=limits.page_size),
        table=RequestTable(
            max_slots=limits.max_slots,
            max_pages_per_slot=pages_for_tokens(limits.context_length, page_size=limits.page_size),
        ),
    )


def _require_complete(launched: Launched, result: StepResult) -> None:
    plan = launched.plan
    wanted = (launched.step, sum(row.is_sampled for row in plan.rows()))
    if (result.step, len(result.sampled_ids)) != wanted:
        message = f"step {result.step} gave {len(result.sampled_ids)} tokens; wanted {wanted}"
        raise InvariantError([message])
