"""Owns the choice of who leaves when pages run out; pure.

Order: those that have not waited too long yet, the lowest priority, the youngest. So somebody
always stays and gets on, and whoever has waited long stays at last: no starvation.
"""

from collections.abc import Collection

from mizzen_worker.contracts.errors import InvariantError
from mizzen_worker.scheduler.req import Req


def choose_victim(running: Collection[Req], *, overdue_before: float) -> Req:
    """Choose from running requests; one alone always fits, so it is never chosen.

    Requests that arrived before ``overdue_before`` are overdue.
    """
    if len(running) < 2:
        message = "pages ran out with fewer than two requests running: one alone must fit"
        raise InvariantError([message])
    return min(
        running,
        key=lambda req: (
            req.arrived_at < overdue_before,
            req.standing.priority,
            -req.standing.order,
        ),
    )
