"""Owns the choice of one step's rows and the pages they get; launches nothing and ends nothing.

Order: pages for decodes (retracting the youngest where they run out), chunks of prefills in flight,
then new requests. Uses lengths and counts only, never the value of a token, so that a step can be
planned before the last one has settled. Invariant: a plan is empty only when nothing runs.
"""

from dataclasses import dataclass

from mizzen_worker.cache.results import Match
from mizzen_worker.contracts.errors import InvariantError
from mizzen_worker.contracts.ids import SlotIndex
from mizzen_worker.memory.sizing import pages_for_tokens
from mizzen_worker.scheduler.admission import Admitted, Budget, Candidate, chunk_length, decide
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
        self._prediction = state.prediction
        self._wait_prediction = state.wait_prediction
        self._counters = state.counters
        self._max_chunk_tokens = state.settings.max_chunk_tokens
        self._max_running = state.max_running

    def plan(self, now: float) -> Plan:
        """Choose the rows of the next step and give them their pages."""
        num_retracted = self._grow_decodes()
        decodes = [req for req in self._roster.running if req.state is ReqState.DECODING]
        extends = self._continue_prefills()
        if self._roster.running and not extends and not decodes:
            # Prompts are reserved whole at admission, and only decodes outgrow what they reserved.
            message = f"{len(self._roster.running)} requests run and no row can be planned"
            raise InvariantError([message])
        if num_retracted == 0:
            num_left = self._max_chunk_tokens - sum(row.num_new for row in extends)
            extends += self._admit(num_left, now)
        return Plan(
            extends=tuple(extends),
            decodes=tuple(_row(req, 1) for req in decodes),
            num_retracted=num_retracted,
        )

    def _grow_decodes(self) -> int:
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
            self._retract_youngest()
            num_retracted += 1
        if short:
            self._cache.grow([(lease, 1) for lease in short])
        return num_retracted

    def _retract_youngest(self) -> None:
        victim = choose_victim(self._roster.running)
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

    def _admit(self, num_left: int, now: float) -> list[PlannedRow]:
        rows: list[PlannedRow] = []
        roster = self._roster
        if roster.waiting.first() is None or num_left < 1:
            return rows
        num_reserved = sum(self._reserved_pages(req) for req in roster.running)
        while (req := roster.waiting.first()) is not None:
            match = self._residency.match(req)
            budget = Budget(
                page_size=self._page_size,
                slots=self._max_running - len(roster.running),
                chunk_tokens=num_left,
                pages_now=self._cache.num_available,
                pages_reserved=num_reserved,
                is_idle=not roster.running,
            )
            candidate = Candidate(
                num_tokens=req.num_tokens,
                num_cached=match.num_pages * self._page_size,
                num_newly_protected=self._cache.num_newly_protected(match),
                num_predicted=self._predicted(req),
            )
            decision = decide(budget, candidate)
            if not isinstance(decision, Admitted):
                break
            roster.admit(req)
            self._wait_prediction.observe(now, num_waiting=len(roster.waiting))
            self._enter(req, match)
            _, lease = req.held()
            self._cache.grow([(lease, decision.num_new_pages)])
            rows.append(_row(req, decision.num_new, is_entering=True))
            num_left -= decision.num_new
            num_reserved += self._reserved_pages(req)
        return rows

    def _enter(self, req: Req, match: Match) -> None:
        is_first_time = req.num_cached is None
        self._residency.enter(req, match)
        if is_first_time:
            self._counters.prompt_tokens += req.num_prompt
            self._counters.cached_tokens += req.num_cached or 0

    def _predicted(self, req: Req) -> int:
        return self._prediction.remaining(
            num_output=req.num_output, max_remaining=req.max_tokens - req.num_tokens
        )

    def _reserved_pages(self, req: Req) -> int:
        """Count pages a running request will still take, as predicted."""
        _, lease = req.held()
        final = req.num_tokens + self._predicted(req)
        return max(0, pages_for_tokens(final, page_size=self._page_size) - lease.num_pages)


def _row(req: Req, num_new: int, *, is_entering: bool = False) -> PlannedRow:
    slot, _ = req.held()
    return PlannedRow(
        req=req,
        slot=slot,
        num_new=num_new,
        is_sampled=req.state is ReqState.DECODING or req.num_kv + num_new == req.num_tokens,
        is_entering=is_entering,
    )
