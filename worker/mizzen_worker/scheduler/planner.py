"""Owns the choice of one step's rows and the pages they get; launches nothing and ends nothing.

Order: pages for decodes (retracting others where they run out), places for an urgent request
(preempting others), chunks of prefills in flight, then new requests. Uses lengths and counts only,
never the value of a token, so that a step can be planned before the last one has settled.
Invariant: a plan is empty only when nothing runs.
"""

from dataclasses import dataclass

from mizzen_worker.contracts.errors import InvariantError
from mizzen_worker.contracts.ids import SlotIndex
from mizzen_worker.memory.sizing import pages_for_tokens
from mizzen_worker.scheduler.admission import chunk_length
from mizzen_worker.scheduler.boarding import Boarding
from mizzen_worker.scheduler.req import Req, ReqState
from mizzen_worker.scheduler.retraction import choose_victim
from mizzen_worker.scheduler.state import SchedulerState


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedRow:
    """One request's part of a step; its pages are in its lease already."""

    req: Req
    slot: SlotIndex
    num_new: int
    is_sampled: bool
    """It ends at the newest known token, so the step gives the next one."""
    is_entering: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Rows of one step, each kind in the order of age, and who had to leave for them."""

    extends: tuple[PlannedRow, ...]
    decodes: tuple[PlannedRow, ...]
    num_retracted: int
    num_preempted: int

    def rows(self) -> tuple[PlannedRow, ...]:
        """All rows, extends first."""
        return self.extends + self.decodes


class Planner:
    """Plans over the roster of one scheduler."""

    def __init__(self, state: SchedulerState) -> None:
        self._residency = state.residency
        self._cache = state.residency.cache
        self._page_size = state.limits.page_size
        self._roster = state.roster
        self._boarding = Boarding(state)
        self._max_chunk_tokens = state.settings.max_chunk_tokens

    def plan(self, now: float) -> Plan:
        """Choose the rows of the next step and give them their pages."""
        num_retracted = self._grow_decodes(now)
        urgent, num_preempted = None, 0
        if num_retracted == 0:
            urgent, num_preempted = self._preempt(now)
        decodes = [req for req in self._roster.running if req.state is ReqState.DECODING]
        extends = self._continue_prefills()
        if self._roster.running and not extends and not decodes:
            # Prompts are reserved whole at admission, and only decodes outgrow what they reserved.
            message = f"{len(self._roster.running)} requests run and no row can be planned"
            raise InvariantError([message])
        if num_retracted == 0:
            num_left = self._max_chunk_tokens - sum(row.num_new for row in extends)
            extends += [
                _row(boarded.req, boarded.num_new, is_entering=True)
                for boarded in self._boarding.board(num_left, now, urgent)
            ]
        return Plan(
            extends=tuple(extends),
            decodes=tuple(_row(req, 1) for req in decodes),
            num_retracted=num_retracted,
            num_preempted=num_preempted,
        )

    def _grow_decodes(self, now: float) -> int:
        """Give each decode the page its next position lies in; return how many were retracted."""
        num_retracted = 0
        while True:
            short = [
                req.lease
                for req in self._roster.running
                if req.state is ReqState.DECODING
                and req.lease is not None
                and req.num_kv >= req.lease.num_pages * self._page_size
            ]
            if len(short) <= self._cache.num_available:
                break
            overdue_before = self._boarding.overdue_before(now)
            self._retract(choose_victim(self._roster.running, overdue_before=overdue_before))
            num_retracted += 1
        if short:
            self._cache.grow([(lease, 1) for lease in short])
        return num_retracted

    def _preempt(self, now: float) -> tuple[Req | None, int]:
        """Send back whom an urgent request needs gone; return that request and how many left."""
        choice = self._boarding.choose_to_preempt(now)
        if choice is None:
            return None, 0
        urgent, victims = choice
        for victim in victims:
            victim.num_preempted += 1
            self._retract(victim)
        return urgent, len(victims)

    def _retract(self, victim: Req) -> None:
        self._residency.retract(victim)
        self._roster.retract(victim)

    def _continue_prefills(self) -> list[PlannedRow]:
        num_left = self._max_chunk_tokens
        rows = []
        for req in self._roster.running:
            if req.state is not ReqState.PREFILLING:
                continue
            _, lease = req.held()
            room = (lease.num_pages + self._cache.num_available) * self._page_size - req.num_kv
            num_new = chunk_length(
                num_remaining=req.num_tokens - req.num_kv,
                max_tokens=min(num_left, room),
                page_size=self._page_size,
            )
            if num_new == 0:
                break
            end_page = pages_for_tokens(req.num_kv + num_new, page_size=self._page_size)
            self._cache.grow([(lease, end_page - lease.num_pages)])
            rows.append(_row(req, num_new))
            num_left -= num_new
        return rows


def _row(req: Req, num_new: int, *, is_entering: bool = False) -> PlannedRow:
    slot, _ = req.held()
    return PlannedRow(
        req=req,
        slot=slot,
        num_new=num_new,
        is_sampled=req.state is ReqState.DECODING or req.num_kv + num_new == req.num_tokens,
        is_entering=is_entering,
    )
