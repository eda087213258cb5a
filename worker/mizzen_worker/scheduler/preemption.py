"""Owns the choice of running requests that make room for a more urgent one; pure.

A request takes places of strictly lower priority only, so two never take each other's. Whoever has
waited too long or has made room often enough is protected, so everybody gets on in the end.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from mizzen_worker.scheduler.admission import Admitted, Budget, Candidate, decide

MAX_PREEMPTIONS = 3
"""How often one request makes room for others before it is protected."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Occupant:
    """A running request. ``num_pages`` come back when it leaves, ``num_reserved`` it will take."""

    order: int
    priority: int
    num_pages: int
    num_reserved: int
    is_protected: bool


def choose_victims(
    budget: Budget, candidate: Candidate, lower: Sequence[Occupant], *, num_running: int
) -> list[Occupant]:
    """Give as few of ``lower`` as let the candidate start: lowest priority first, then youngest.

    ``lower`` are those of the ``num_running`` whose priority is below the candidate's. Empty when
    it can start anyway, or could not even then.
    """
    able = [each for each in lower if not each.is_protected]
    able.sort(key=lambda each: (each.priority, -each.order))
    chosen: list[Occupant] = []
    num_left = num_running
    for each in able:
        if _fits(budget, candidate):
            break
        chosen.append(each)
        num_left -= 1
        budget = _with(budget, each, sign=1, is_idle=num_left == 0)
    if not _fits(budget, candidate):
        return []
    for each in reversed(chosen[:-1]):
        # Not everybody gives what is short: whoever turns out not to be needed stays.
        fewer = _with(budget, each, sign=-1, is_idle=False)
        if _fits(fewer, candidate):
            budget = fewer
            chosen.remove(each)
    return chosen


def _with(budget: Budget, each: Occupant, *, sign: int, is_idle: bool) -> Budget:
    return replace(
        budget,
        slots=budget.slots + sign,
        pages_now=budget.pages_now + sign * each.num_pages,
        pages_reserved=budget.pages_reserved - sign * each.num_reserved,
        is_idle=is_idle,
    )


def _fits(budget: Budget, candidate: Candidate) -> bool:
    return isinstance(decide(budget, candidate), Admitted)
