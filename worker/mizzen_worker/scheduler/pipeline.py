"""Owns the steps in flight: launches plans, and settles results into requests, in order.

The only place where tokens enter requests. Owns neither when to launch nor when to settle (the
loop) nor what to launch (the planner).

Invariants: steps settle in the order of their launch, each once; a result reaches a request only
while that attempt runs (S6): what ended since, by whatever cause, is skipped, so a surplus token of
a request that had ended on the device goes nowhere.
"""

import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from mizzen_worker.contracts.batch import (
    INVALID_TOKEN,
    BoolArray,
    Int32Array,
    Int64Array,
    PendingStep,
    Runner,
    StepResult,
    TokenScores,
)
from mizzen_worker.contracts.errors import InvariantError, StepError
from mizzen_worker.contracts.request import FinishKind, FinishReason
from mizzen_worker.scheduler.batch_builder import build_batch
from mizzen_worker.scheduler.ending import Ending
from mizzen_worker.scheduler.planner import Plan, PlannedRow
from mizzen_worker.scheduler.req import Req
from mizzen_worker.scheduler.scores import token_logprobs
from mizzen_worker.scheduler.settle import finish_after_last_token
from mizzen_worker.scheduler.state import SchedulerState

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A step on its way: its plan, and the promise of its result."""

    step: int
    plan: Plan
    pending: PendingStep
    launched_at: float


class Pipeline:
    """Steps of one runner. ``clock`` gives monotonic seconds."""

    def __init__(
        self, state: SchedulerState, *, runner: Runner, ending: Ending, clock: Callable[[], float]
    ) -> None:
        self._state = state
        self._book = state.residency.book
        self._runner = runner
        self._ending = ending
        self._clock = clock
        self._in_flight: deque[Launched] = deque()
        self._step = 0
        self._settled_at = clock()

    @property
    def num_in_flight(self) -> int:
        """Count launched steps that have not settled."""
        return len(self._in_flight)

    def launch(self, plan: Plan) -> bool:
        """Queue a step; False when it cannot run, and then its requests have ended."""
        step = self._step + 1
        batch = build_batch(
            plan,
            step=step,
            page_writes=self._state.residency.sync(self._slots_of(plan)),
            eos_token_ids=self._state.settings.eos_token_ids,
            book=self._book,
        )
        launched_at = self._clock()
        try:
            pending = self._runner.launch(batch)
        except StepError as error:
            logger.exception("step %s of %s requests cannot run", step, batch.num_rows)
            self._end_batch(plan, error)
            return False
        self._step = step
        self._in_flight.append(
            Launched(step=step, plan=plan, pending=pending, launched_at=launched_at)
        )
        self._book.launched(plan.decodes.slots, 1, step=step, now=launched_at)
        for row in plan.extends:
            if row.req.started_at is None:
                row.req.started_at = launched_at
            slots = np.array([row.slot], dtype=np.int32)
            self._book.launched(slots, row.num_new, step=step, now=launched_at)
            if row.is_sampled:
                self._state.residency.start_decoding(row.req)
        return True

    def settle(self, *, max_in_flight: int) -> None:
        """Wait for the oldest steps and take their results, until so many are left."""
        while len(self._in_flight) > max_in_flight:
            launched = self._in_flight.popleft()
            result = launched.pending.settle()
            self._count(launched)
            self._take(launched, result)
            self._state.residency.settled(launched.step)

    def _slots_of(self, plan: Plan) -> BoolArray:
        is_in_batch = np.zeros(self._state.limits.max_slots + 1, dtype=np.bool_)
        is_in_batch[plan.decodes.slots] = True
        is_in_batch[[row.slot for row in plan.extends]] = True
        return is_in_batch

    def _end_batch(self, plan: Plan, error: StepError) -> None:
        """End the requests of a step that cannot run, but for those that a step in flight ends."""
        reason = FinishReason(kind=FinishKind.ERROR, message=f"the step could not run: {error}")
        self.settle(max_in_flight=0)
        for req in plan.reqs():
            if req.is_running:
                self._ending.finish(req, reason)

    def _count(self, launched: Launched) -> None:
        """Book the time of a step: from its launch or, where that is later, the end of the last."""
        now = self._clock()
        counters = self._state.counters
        counters.steps += 1
        counters.step_seconds += now - max(launched.launched_at, self._settled_at)
        self._settled_at = now

    def _take(self, launched: Launched, result: StepResult) -> None:
        plan = launched.plan
        num_first = sum(row.is_sampled for row in plan.extends)
        _require_complete(launched, result, num_sampled=num_first + len(plan.decoding))
        self._take_extends(plan.extends, result)
        scores = result.sampled_scores
        is_live = self._book.is_decoding(plan.decodes.slots)
        if is_live.all():
            rows = np.arange(num_first, num_first + len(plan.decoding))
            self._take_tokens(plan.decoding, rows, result, scores)
        else:
            live = np.flatnonzero(is_live)
            reqs = [plan.decoding[row] for row in live.tolist()]
            self._take_tokens(reqs, live + num_first, result, scores)

    def _take_extends(self, rows: Sequence[PlannedRow], result: StepResult) -> None:
        prompt_scores = iter(result.prompt_scores)
        sampled: list[tuple[Req, int]] = []
        num_sampled = 0
        for row in rows:
            self._state.counters.prefilled_tokens += row.num_new
            scores = next(prompt_scores) if row.num_targets else None
            if row.req.is_running:
                if scores is not None:
                    self._take_prompt_scores(row, scores)
                if row.is_sampled:
                    if row.req.first_token_at is None:
                        row.req.first_token_at = self._settled_at
                    sampled.append((row.req, num_sampled))
            num_sampled += row.is_sampled
        indices = np.array([index for _, index in sampled], dtype=np.int64)
        self._take_tokens([req for req, _ in sampled], indices, result, result.sampled_scores)
        # Behind the tokens: who ended with the first one has left its pages to the cache already.
        for row in rows:
            if row.req.is_running:
                self._state.residency.checkpoint(row.req, row.end)

    def _take_prompt_scores(self, row: PlannedRow, scores: TokenScores) -> None:
        wanted = row.req.sampling.logprobs
        if wanted is None:
            raise InvariantError([f"request {row.req.request_id} never asked for scores"])
        logprobs = token_logprobs(scores, 0, row.num_targets, num_top=wanted.num_top)
        row.req.next_score = row.target_start + 1 + row.num_targets
        self._state.output.report_prompt_logprobs(row.req, row.target_start + 1, logprobs)

    def _take_tokens(
        self, reqs: Sequence[Req], rows: Int64Array, result: StepResult, scores: TokenScores | None
    ) -> None:
        """Add the tokens of sampled rows ``rows`` to ``reqs``; end those that end with them."""
        ids = result.sampled_ids[rows]
        is_bad = (ids < 0) | (ids >= self._state.limits.vocab_size)
        if is_bad.any():
            self._end_bad(reqs, ids, is_bad)
            good = np.flatnonzero(~is_bad)
            reqs, rows = [reqs[row] for row in good.tolist()], rows[good]
            ids = ids[good]
        for req, token in zip(reqs, ids.tolist(), strict=True):
            req.append(token)
        self._state.counters.generated_tokens += len(reqs)
        if scores is not None:
            _add_scores(reqs, rows, scores)
        is_over = result.is_finished[rows]
        if self._state.settings.is_audited:
            self._require_agreement(reqs, is_over)
        for row in np.flatnonzero(is_over).tolist():
            self._end(reqs[row])
        for req in reqs:
            self._state.output.report_tokens(req)

    def _end(self, req: Req) -> None:
        reason = self._reason(req)
        if reason is None:
            raise InvariantError([f"the runner ended request {req.request_id}, which goes on"])
        self._ending.finish(req, reason)

    def _end_bad(self, reqs: Sequence[Req], ids: Int32Array, is_bad: BoolArray) -> None:
        """End requests with an error, without the token that is none."""
        for row in np.flatnonzero(is_bad).tolist():
            message = "the model gave no finite logits for this request"
            if ids[row] != INVALID_TOKEN:
                vocab_size = self._state.limits.vocab_size
                message = f"the model gave token {ids[row]}, outside its vocabulary of {vocab_size}"
            self._ending.finish(reqs[row], FinishReason(kind=FinishKind.ERROR, message=message))

    def _reason(self, req: Req) -> FinishReason | None:
        return finish_after_last_token(req, eos_token_ids=self._state.settings.eos_token_ids)

    def _require_agreement(self, reqs: Sequence[Req], is_over: BoolArray) -> None:
        """The device ends exactly the requests that the scheduler's own rule ends."""
        differ = [
            f"request {req.request_id}: the runner says {'ended' if is_device else 'goes on'}"
            for req, is_device in zip(reqs, is_over.tolist(), strict=True)
            if (self._reason(req) is not None) != is_device
        ]
        if differ:
            raise InvariantError(differ)


def _add_scores(reqs: Sequence[Req], rows: Int64Array, scores: TokenScores) -> None:
    for req, row in zip(reqs, rows.tolist(), strict=True):
        wanted = req.sampling.logprobs
        if wanted is not None:
            req.add_logprob(*token_logprobs(scores, row, row + 1, num_top=wanted.num_top))


def _require_complete(launched: Launched, result: StepResult, *, num_sampled: int) -> None:
    found = (result.step, len(result.sampled_ids), len(result.is_finished))
    wanted = (launched.step, num_sampled, num_sampled)
    if found != wanted:
        message = f"a result with step, tokens and finish flags {found}; wanted {wanted}"
        raise InvariantError([message])
