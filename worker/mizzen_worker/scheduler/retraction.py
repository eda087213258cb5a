"""Owns the choice of who leaves when pages run out; pure.

The youngest goes first and the oldest never goes, so the oldest always gets on and everybody is
the oldest at some time: no starvation.
"""

from collections.abc import Sequence

from mizzen_worker.contracts.errors import InvariantError
from mizzen_worker.scheduler.req import Req


def choose_victim(running: Sequence[Req]) -> Req:
    """Choose from running requests sorted by age; one alone always fits, so it is never chosen."""
    if len(running) < 2:
        message = "pages ran out with fewer than two requests running: one alone must fit"
        raise InvariantError([message])
    return running[-1]
