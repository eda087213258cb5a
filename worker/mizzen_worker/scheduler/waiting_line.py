"""Owns the requests that wait, in the order of a policy; owns no decision to admit one.

Invariant: a request in the line is WAITING, and a WAITING request is in the line (S2). The line is
bounded by the loop, which refuses newcomers; retracted requests always come back in.
"""

import bisect
from collections.abc import Callable, Iterator
from typing import TypeAlias

from mizzen_worker.contracts.errors import InvariantError
from mizzen_worker.scheduler.req import Req

Policy: TypeAlias = Callable[[Req], tuple[int, ...]]
"""Sort key: smallest first. It must be distinct per request and must not change while waiting."""


def first_come_first_served(req: Req) -> tuple[int, ...]:
    """Oldest first; a retracted request keeps its age and so comes before newer ones."""
    return (req.order,)


class WaitingLine:
    """A sorted list: lines are short (bounded), and the first is looked at every step."""

    def __init__(self, policy: Policy = first_come_first_served) -> None:
        self._policy = policy
        self._reqs: list[Req] = []
        self.num_tokens = 0
        """Known tokens of everybody in the line."""

    def __len__(self) -> int:
        return len(self._reqs)

    def __iter__(self) -> Iterator[Req]:
        return iter(self._reqs)

    def add(self, req: Req) -> None:
        """Enter a request at its place."""
        bisect.insort(self._reqs, req, key=self._policy)
        self.num_tokens += req.num_tokens

    def first(self) -> Req | None:
        """Look at the request whose turn it is."""
        return self._reqs[0] if self._reqs else None

    def remove(self, req: Req) -> None:
        """Take a request out."""
        index = bisect.bisect_left(self._reqs, self._policy(req), key=self._policy)
        if index == len(self._reqs) or self._reqs[index] is not req:
            raise InvariantError([f"request {req.request_id} is not in the waiting line"])
        del self._reqs[index]
        self.num_tokens -= req.num_tokens
