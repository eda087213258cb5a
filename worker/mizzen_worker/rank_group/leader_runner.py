"""Owns that all ranks run the same steps: the leader's runner, which tells the others first.

The other ranks' side is ``follow``. Owns no plan: rank 0's scheduler makes it. A runner is changed
by ``launch`` only; a call that is added to ``Runner`` has to travel as well.
"""

import logging
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

from mizzen_worker.contracts.batch import (
    PendingStep,
    Runner,
    RunnerLimits,
    ScheduleBatch,
    StepResult,
)
from mizzen_worker.contracts.errors import DeviceError, StepError
from mizzen_worker.contracts.rank_messages import Begin, Farewell, Step
from mizzen_worker.rank_group.follower_link import FollowerLink
from mizzen_worker.rank_group.leader_link import LeaderLink
from mizzen_worker.rank_group.step_codec import batch_of, step_of

_EXPLAIN_S = 1.5
"""A collective fails at once where a rank is killed; which one it was is told a moment later."""

logger = logging.getLogger(__name__)


class LeaderRunner:
    """Implements ``Runner`` for rank 0's loop."""

    def __init__(self, runner: Runner, link: LeaderLink, num_pages: int) -> None:
        """``num_pages``: those that every rank has, for one plan names the pages of all."""
        self._runner = runner
        self._link = link
        self._limits = replace(runner.limits, num_pages=num_pages)
        self._num_settled = 0

    @property
    def limits(self) -> RunnerLimits:
        """See ``Runner``."""
        return self._limits

    def launch(self, batch: ScheduleBatch) -> PendingStep:
        """See ``Runner``; raises ``RankGroupError`` too.

        A batch that breaks its contract is refused by every rank's runner alike, unchanged.
        """
        self._link.send_step(step_of(batch, num_settled=self._num_settled))
        try:
            return _CountedStep(self._runner.launch(batch), self._note_settled)
        except DeviceError:
            self._link.explain(_EXPLAIN_S)
            raise

    def _note_settled(self) -> None:
        self._num_settled += 1


@dataclass(frozen=True, slots=True)
class _CountedStep:
    """A ``PendingStep`` that tells of its settling."""

    pending: PendingStep
    note: Callable[[], None]

    def settle(self) -> StepResult:
        """See ``PendingStep``."""
        result = self.pending.settle()
        self.note()
        return result


class OnTurn(Protocol):
    """Called after every order, and when none comes for a moment."""

    def __call__(self, *, has_begun: bool, num_steps: int) -> None:
        """``has_begun`` once all ranks are loaded; ``num_steps`` were launched so far."""
        ...


def follow(link: FollowerLink, runner: Runner, turn: OnTurn) -> None:
    """Replay what the leader launches, until its farewell.

    Raises ``RankGroupError`` or ``DeviceError``.
    """
    steps = _Replay(runner)
    has_begun = False
    while True:
        order = link.receive()
        match order:
            case Step():
                try:
                    steps.launch(order)
                except DeviceError:
                    link.explain(_EXPLAIN_S)
                    raise
                link.replayed()
            case Begin():
                has_begun = True
            case Farewell():
                steps.settle_all()
                return
            case None:
                steps.settle_all()
        turn(has_begun=has_begun, num_steps=link.num_replayed)


class _Replay:
    """Launches and settles in the leader's order; idle, it settles what the leader will have."""

    def __init__(self, runner: Runner) -> None:
        self._runner = runner
        self._in_flight: deque[PendingStep] = deque()
        self._num_settled = 0

    def launch(self, step: Step) -> None:
        while self._in_flight and self._num_settled < step.num_settled:
            self._settle()
        try:
            self._in_flight.append(self._runner.launch(batch_of(step)))
        except StepError as error:
            # The leader's runner refuses it too, and tells whom it concerns.
            logger.warning("step %s cannot run", step.step, extra={"reason": str(error)})

    def settle_all(self) -> None:
        while self._in_flight:
            self._settle()

    def _settle(self) -> None:
        self._in_flight.popleft().settle()
        self._num_settled += 1
