"""Owns the requests that wait, by standing and by age; owns no decision to admit one.

Invariant: a request in the queue is WAITING, and a WAITING request is in the queue (S2). It is
bounded by reception, which refuses newcomers; retracted requests always come back in, at their age.
"""

import bisect
from collections.abc import Callable, Iterator
from itertools import islice

from mizzen_worker.contracts.errors import InvariantError
from mizzen_worker.scheduler.policies import StandingKey
from mizzen_worker.scheduler.req import Req


class WaitingQueue:
    """Two sorted lists: queues are short (bounded), and only their fronts are looked at."""

    def __init__(self, standing_key: StandingKey) -> None:
        self._standing_key = standing_key
        self._by_standing: list[Req] = []
        self._by_age: list[Req] = []
        self.num_tokens = 0
        """Known tokens of everybody in the queue."""

    def __len__(self) -> int:
        return len(self._by_age)

    def __iter__(self) -> Iterator[Req]:
        """Give everybody, the oldest first."""
        return iter(self._by_age)

    def front(self, limit: int) -> list[Req]:
        """Give the first few by standing."""
        return self._by_standing[:limit]

    def last(self) -> Req | None:
        """Give the last by standing."""
        return self._by_standing[-1] if self._by_standing else None

    def oldest(self, limit: int) -> Iterator[Req]:
        """Give the first few by age."""
        return islice(self._by_age, limit)

    def add(self, req: Req) -> None:
        """Enter a request at its places."""
        bisect.insort(self._by_standing, req, key=self._standing)
        bisect.insort(self._by_age, req, key=_age)
        self.num_tokens += req.num_tokens

    def remove(self, req: Req) -> None:
        """Take a request out."""
        _remove(self._by_age, req, key=_age)
        _remove(self._by_standing, req, key=self._standing)
        self.num_tokens -= req.num_tokens

    def _standing(self, req: Req) -> tuple[int, int]:
        return self._standing_key(req.standing)


def _age(req: Req) -> tuple[int, int]:
    return (0, req.order)


def _remove(reqs: list[Req], req: Req, *, key: Callable[[Req], tuple[int, int]]) -> None:
    index = bisect.bisect_left(reqs, key(req), key=key)
    if index == len(reqs) or reqs[index] is not req:
        raise InvariantError([f"request {req.request_id} is not in the waiting queue"])
    del reqs[index]
