"""Owns which waiting requests start in a step, and whom an urgent one may send back for its place.

Order by policy and age (``policies.py``), one after the other until a budget is short: nobody
overtakes who could be admitted. Only the first ``MAX_EXAMINED`` of the queue are looked at, by
standing and by age; orders that depend on the cache arrange these and are first come, first served
beyond. A request whose prefix is being computed by another waits for it (``prefix_sharing.py``).
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from mizzen_worker.cache.results import Match
from mizzen_worker.contracts.batch import Int64Array
from mizzen_worker.contracts.schedule_policy import SchedulePolicy
from mizzen_worker.scheduler.admission import Admitted, Budget, Candidate, chunk_length, decide
from mizzen_worker.scheduler.policies import Path, depth_first, longest_prefix_first, take_turns
from mizzen_worker.scheduler.preemption import MAX_PREEMPTIONS, Occupant, choose_victims
from mizzen_worker.scheduler.prefix_sharing import PrefixSharing
from mizzen_worker.scheduler.req import Req, ReqState
from mizzen_worker.scheduler.state import SchedulerState

MAX_EXAMINED = 64
"""Requests of a long queue that one step looks at."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Urgent:
    """A waiting request that goes before less urgent ones: it needs ``num_chunk`` prompt tokens of
    the step, and ``victims`` have to leave for it."""

    req: Req
    num_chunk: int
    victims: tuple[Req, ...]


class Admitter:
    """Admits from the roster of one scheduler."""

    def __init__(self, state: SchedulerState) -> None:
        self._residency = state.residency
        self._cache = state.residency.cache
        self._book = state.residency.book
        self._page_size = state.limits.page_size
        self._roster = state.roster
        self._prediction = state.prediction
        self._wait_prediction = state.wait_prediction
        self._counters = state.counters
        self._policy = state.settings.policy
        self._is_preemptive = state.settings.is_preemptive
        self._ageing_s = state.settings.ageing_s
        self._max_running = state.max_running
        self._max_chunk_tokens = state.settings.max_chunk_tokens
        # Every second place goes to an overdue request, over steps too.
        self._is_age_first = True
        # Where the walk of ``dfs-weight`` is: the path of the last one admitted.
        self._walk: Path = ()

    def admit(self, num_left: int, now: float, urgent: Req | None) -> list[tuple[Req, int]]:
        """Admit what fits into ``num_left`` prompt tokens; ``urgent`` is first, if given.

        Each request comes with the length of its first chunk.
        """
        admitted: list[tuple[Req, int]] = []
        roster = self._roster
        if not len(roster.waiting) or num_left < 1 or self._num_places() < 1:
            return admitted
        num_reserved = self._num_reserved(self._book.running())
        sharing = PrefixSharing(self._book.beginners(), page_size=self._page_size)
        for req, is_by_age in self._turns(now, urgent):
            match = self._residency.match(req)
            if not self.is_overdue(req, now) and sharing.is_worth_waiting(req, match.num_pages):
                continue
            decision = decide(self._budget(num_left, num_reserved), self._candidate(req, match))
            if not isinstance(decision, Admitted):
                break
            roster.admit(req)
            self._wait_prediction.observe(now, num_waiting=len(roster.waiting))
            self._enter(req, match)
            self._residency.grow([(req, decision.num_new_pages)])
            admitted.append((req, decision.num_new))
            sharing.add(req)
            self._is_age_first = not is_by_age
            if self._policy is SchedulePolicy.DFS_WEIGHT:
                self._walk = self._cache.path(req.held()[1].receipt.node)
            num_left -= decision.num_new
            num_reserved += self._num_reserved(_slot(req))
        return admitted

    def find_urgent(self, now: float) -> Urgent | None:
        """Look whether the first by priority goes before some that run. Changes nothing.

        Either it can start, and less urgent prefills leave it its chunk, or some have to leave.
        O(running) where it is more urgent than somebody, else almost free.
        """
        first = self._roster.waiting.front(1)
        if self._policy is not SchedulePolicy.PRIORITY or not first:
            return None
        req, running = first[0], self._roster.running
        priority = req.standing.priority
        lower = [other for other in running if other.standing.priority < priority]
        if not lower or (self._num_places() < 1 and not self._may_leave(lower, now)):
            return None
        match = self._residency.match(req)
        sharing = PrefixSharing(self._book.beginners(), page_size=self._page_size)
        if sharing.is_worth_waiting(req, match.num_pages):
            return None
        num_left = self._max_chunk_tokens - sum(
            _num_to_prefill(other)
            for other in running
            if other.standing.priority >= priority or self.is_overdue(other, now)
        )
        num_chunk = chunk_length(
            num_remaining=req.num_tokens - match.num_pages * self._page_size,
            max_tokens=num_left,
            page_size=self._page_size,
        )
        budget = self._budget(num_left, self._num_reserved(self._book.running()))
        candidate = self._candidate(req, match)
        if isinstance(decide(budget, candidate), Admitted):
            turn = next(self._turns(now, None), None)
            is_next = turn is not None and turn[0] is req
            return Urgent(req=req, num_chunk=num_chunk, victims=()) if is_next else None
        occupants = [self._occupant(other, match.num_pages, now) for other in lower]
        chosen = choose_victims(budget, candidate, occupants, num_running=len(running))
        orders = {each.order for each in chosen}
        victims = tuple(other for other in lower if other.order in orders)
        return Urgent(req=req, num_chunk=num_chunk, victims=victims) if victims else None

    def is_overdue(self, req: Req, now: float) -> bool:
        """Tell whether a live request is so old that its age counts."""
        return req.arrived_at < now - self._ageing_s

    def _turns(self, now: float, urgent: Req | None) -> Iterator[tuple[Req, bool]]:
        waiting = self._roster.waiting
        front = self._arranged(waiting.front(MAX_EXAMINED))
        overdue = [req for req in waiting.oldest(MAX_EXAMINED) if self.is_overdue(req, now)]
        if urgent is not None:
            yield urgent, False
        for req, is_by_age in take_turns(front, overdue, is_age_first=self._is_age_first):
            if req is not urgent:
                yield req, is_by_age

    def _arranged(self, reqs: list[Req]) -> list[Req]:
        """Order the front of the queue by the cache, where the policy does."""
        match self._policy:
            case SchedulePolicy.LPM:
                num_cached = [self._residency.match(req).num_pages for req in reqs]
                return [reqs[index] for index in longest_prefix_first(num_cached)]
            case SchedulePolicy.DFS_WEIGHT:
                paths = [self._cache.path(self._residency.match(req).node) for req in reqs]
                return [reqs[index] for index in depth_first(paths, current=self._walk)]
            case _:
                return reqs

    def _num_places(self) -> int:
        """Count slots for newcomers: those of departures are not free yet."""
        num_left = self._max_running - len(self._roster.running)
        return min(num_left, self._residency.table.num_free)

    def _budget(self, num_left: int, num_reserved: int) -> Budget:
        return Budget(
            page_size=self._page_size,
            slots=self._num_places(),
            chunk_tokens=num_left,
            pages_now=self._cache.num_available,
            pages_reserved=num_reserved,
            is_idle=not self._roster.running,
        )

    def _candidate(self, req: Req, match: Match) -> Candidate:
        return Candidate(
            num_tokens=req.num_tokens,
            num_cached=match.num_pages * self._page_size,
            num_newly_protected=self._cache.num_newly_protected(match),
            num_predicted=self._predicted(req),
        )

    def _occupant(self, req: Req, num_matched: int, now: float) -> Occupant:
        _, lease = req.held()
        return Occupant(
            order=req.order,
            priority=req.standing.priority,
            # Pages that the candidate might lock in its turn do not count.
            num_pages=self._cache.num_returned(lease, num_kept=num_matched),
            num_reserved=self._num_reserved(_slot(req)),
            is_protected=self._is_protected(req, now),
        )

    def _may_leave(self, lower: list[Req], now: float) -> bool:
        return any(not self._is_protected(req, now) for req in lower)

    def _is_protected(self, req: Req, now: float) -> bool:
        is_tired = req.num_preempted >= MAX_PREEMPTIONS
        return not self._is_preemptive or is_tired or self.is_overdue(req, now)

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

    def _num_reserved(self, slots: Int64Array) -> int:
        """Count pages that the requests in some slots will still take, as predicted."""
        num_tokens, num_output, num_to_come = self._book.lengths(slots)
        final = num_tokens + self._prediction.remaining_of(num_output, num_to_come)
        num_pages = -(-final // self._page_size) - self._book.num_room[slots] // self._page_size
        return int(np.maximum(num_pages, 0).sum())


def _slot(req: Req) -> Int64Array:
    slot, _ = req.held()
    return np.array([slot], dtype=np.int64)


def _num_to_prefill(req: Req) -> int:
    return req.num_tokens - req.num_kv if req.state is ReqState.PREFILLING else 0
