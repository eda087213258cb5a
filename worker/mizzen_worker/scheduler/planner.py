"""Owns the choice of one step's rows and the pages they get; launches nothing and ends nothing.

Order: pages for decodes (retracting others where they run out), places for an urgent request
(preempting others), chunks of prefills in flight, then new requests. Decode rows come with these,
are passed over, or are the whole step (``step_mix.py``); their pages they have in any case.

Uses lengths and counts only, never the value of a token, so that a step can be planned while
another one has not settled. Where that is not enough it asks for the settling first: before
somebody is sent back, and before a row that needs its last token on the CPU. Invariant: a plan is
empty only when nothing runs, or everything that runs waits for a step in flight.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mizzen_worker.contracts.batch import DecodeRows, Int64Array
from mizzen_worker.contracts.errors import InvariantError
from mizzen_worker.contracts.ids import SlotIndex
from mizzen_worker.memory.sizing import pages_for_tokens
from mizzen_worker.scheduler.admission import chunk_length
from mizzen_worker.scheduler.admitter import Admitter, Urgent
from mizzen_worker.scheduler.policies import claim
from mizzen_worker.scheduler.prefix_groups import Arrangement
from mizzen_worker.scheduler.req import Req, ReqState
from mizzen_worker.scheduler.state import SchedulerState

_TOKENS_AHEAD = 16
"""Positions that a decode gets room for at once, where pages are small and plenty."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRow:
    """Known tokens of one request, computed in a step; its pages are in its lease already."""

    req: Req
    slot: SlotIndex
    start: int
    num_new: int
    is_sampled: bool
    """It ends at the newest known token, so the step gives the next one."""
    is_entering: bool
    target_start: int
    """Position whose successor is the first prompt token that the step scores."""
    num_targets: int

    @property
    def end(self) -> int:
        """Positions that have KV after the step."""
        return self.start + self.num_new


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Rows of one step, and how many had to leave for them.

    ``decoding`` are the requests of the decode rows, in their order (``prefix_groups.py``).
    """

    extends: tuple[PlannedRow, ...]
    decodes: DecodeRows
    decoding: Sequence[Req]
    num_retracted: int
    num_preempted: int

    @property
    def is_empty(self) -> bool:
        """Tell whether there is nothing to run."""
        return not self.extends and not self.decoding

    def reqs(self) -> list[Req]:
        """All requests of the step, extends first."""
        return [*(row.req for row in self.extends), *self.decoding]


class Planner:
    """Plans over the roster of one scheduler."""

    def __init__(self, state: SchedulerState) -> None:
        self._residency = state.residency
        self._cache = state.residency.cache
        self._book = state.residency.book
        self._page_size = state.limits.page_size
        self._roster = state.roster
        self._admitter = Admitter(state)
        self._max_chunk_tokens = state.settings.max_chunk_tokens
        self._mix = state.settings.mix

    def must_settle(self, now: float) -> bool:
        """Tell whether steps in flight must settle before the next one can be planned.

        So it is where somebody may be sent back (it would lose the token in flight), and where a
        row needs its last token on the CPU.
        """
        due = self._book.due()
        return (
            len(self._book.short(due)) > self._cache.num_available
            or self._book.has_unknown_input(due)
            or (
                not self._is_decode_turn(due, now)
                and (urgent := self._admitter.find_urgent(now)) is not None
                and bool(urgent.victims)
            )
        )

    def plan(self, now: float, *, is_settled: bool) -> Plan:
        """Choose the rows of the next step and give them their pages.

        ``is_settled``: no step is in flight. Otherwise ``must_settle`` was asked, and said no.
        """
        num_retracted = self._grow_decodes(now)
        is_decode_turn = self._is_decode_turn(self._book.due(), now)
        is_closed = is_decode_turn or num_retracted > 0
        urgent = None if is_closed else self._admitter.find_urgent(now)
        if urgent is not None and urgent.victims and not is_settled:
            urgent = None  # Only the growing made it so: the next plan will see it.
        if urgent is not None:
            self._preempt(urgent)
        due = self._book.due()
        extends = [] if is_decode_turn else self._continue_prefills(now, urgent)
        if not is_closed:
            num_left = self._max_chunk_tokens - _num_new(extends)
            first = None if urgent is None else urgent.req
            extends += [
                _row(req, num_new, is_entering=True)
                for req, num_new in self._admitter.admit(num_left, now, first)
            ]
        if is_settled and self._roster.running and not extends and not len(due):
            # Prompts are reserved whole at admission, and only decodes outgrow what they reserved.
            message = f"{len(self._roster.running)} requests run and no row can be planned"
            raise InvariantError([message])
        if self._mix.is_mixed(_num_new(extends)):
            arranged = self._residency.groups.arrange(due, self._book.num_kv)
        else:
            arranged = Arrangement(slots=due[:0], groups=())
        return Plan(
            extends=tuple(extends),
            decodes=DecodeRows(
                slots=arranged.slots.astype(np.int32),
                starts=self._book.num_kv[arranged.slots].astype(np.int32),
                groups=arranged.groups,
            ),
            decoding=self._book.reqs(arranged.slots),
            num_retracted=num_retracted,
            num_preempted=0 if urgent is None else len(urgent.victims),
        )

    def _is_decode_turn(self, due: Int64Array, now: float) -> bool:
        return self._mix.is_decode_turn(self._book.longest_wait_s(due, now))

    def _grow_decodes(self, now: float) -> int:
        """Give each decode the page its next position lies in; return how many were retracted."""
        num_retracted = 0
        while len(short := self._book.short(self._book.due())) > self._cache.num_available:
            self._retract(self._least_claim(now))
            num_retracted += 1
        if len(short):
            num_ahead = max(1, _TOKENS_AHEAD // self._page_size)
            if len(short) * num_ahead * 4 > self._cache.num_available:
                num_ahead = 1
            self._residency.grow(
                [(req, min(num_ahead, self._num_missing(req))) for req in self._book.reqs(short)]
            )
        return num_retracted

    def _num_missing(self, req: Req) -> int:
        """Count pages up to the longest that a request may become."""
        _, lease = req.held()
        return pages_for_tokens(req.max_tokens, page_size=self._page_size) - lease.num_pages

    def _preempt(self, urgent: Urgent) -> None:
        for victim in urgent.victims:
            victim.num_preempted += 1
            self._retract(victim)

    def _least_claim(self, now: float) -> Req:
        running = self._roster.running
        if len(running) < 2:
            message = "pages ran out with fewer than two requests running: one alone must fit"
            raise InvariantError([message])
        return min(running, key=lambda req: self._claim(req, now))

    def _claim(self, req: Req, now: float) -> tuple[bool, int, int]:
        return claim(req.standing, is_overdue=self._admitter.is_overdue(req, now))

    def _retract(self, victim: Req) -> None:
        self._residency.retract(victim)
        self._roster.retract(victim)

    def _continue_prefills(self, now: float, urgent: Urgent | None) -> list[PlannedRow]:
        """Cut chunks by claim; those less urgent than ``urgent`` leave it its own."""
        num_left = self._max_chunk_tokens
        num_kept = 0 if urgent is None else urgent.num_chunk
        rows = []
        prefilling = [req for req in self._roster.running if req.state is ReqState.PREFILLING]
        for req in sorted(prefilling, key=lambda req: self._claim(req, now), reverse=True):
            _, lease = req.held()
            room = (lease.num_pages + self._cache.num_available) * self._page_size - req.num_kv
            is_less = urgent is not None and self._is_less(req, urgent.req, now)
            num_new = chunk_length(
                num_remaining=req.num_tokens - req.num_kv,
                max_tokens=min(num_left - num_kept if is_less else num_left, room),
                page_size=self._page_size,
            )
            if num_new == 0:
                break
            end_page = pages_for_tokens(req.num_kv + num_new, page_size=self._page_size)
            self._residency.grow([(req, end_page - lease.num_pages)])
            rows.append(_row(req, num_new))
            num_left -= num_new
        return rows

    def _is_less(self, req: Req, urgent: Req, now: float) -> bool:
        is_lower = req.standing.priority < urgent.standing.priority
        return is_lower and not self._admitter.is_overdue(req, now)


def _num_new(rows: Sequence[PlannedRow]) -> int:
    return sum(row.num_new for row in rows)


def _row(req: Req, num_new: int, *, is_entering: bool = False) -> PlannedRow:
    slot, _ = req.held()
    start = req.num_kv
    target_start = max(start, req.next_score - 1)
    return PlannedRow(
        req=req,
        slot=slot,
        start=start,
        num_new=num_new,
        is_sampled=start + num_new == req.num_tokens,
        is_entering=is_entering,
        target_start=target_start,
        num_targets=max(0, min(start + num_new, req.num_prompt - 1) - target_start),
    )
