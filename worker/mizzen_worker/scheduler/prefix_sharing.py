"""Owns the rule that a prefix which is being computed is not computed twice; launches nothing.

A waiting request whose prompt goes on like that of a running prefill, beyond what is cached, waits
until that one has cached the shared part; a prefill in flight has not cached it yet. It waits for a
running request only, which gets on or leaves: no deadlock. What it waits for is remembered, so that
prompts are compared once.
"""

from collections.abc import Iterable

from mizzen_worker.cache.page_key import common_prefix_pages
from mizzen_worker.scheduler.req import Req

WORTH_TOKENS = 32
"""Shared tokens from which on waiting is better than computing them again."""


class PrefixSharing:
    """The prefills of one step; made anew for each.

    ``beginners`` are running requests that may have known tokens to cache.
    """

    def __init__(self, beginners: Iterable[Req], *, page_size: int) -> None:
        self._page_size = page_size
        # By namespace and first page: only those can share anything.
        self._leaders: dict[bytes, list[Req]] = {}
        for req in beginners:
            _, lease = req.held()
            if lease.num_tree < req.num_prefill // page_size:
                self.add(req)

    def add(self, req: Req) -> None:
        """Let others wait for a prefill that has just been admitted."""
        self._leaders.setdefault(self._first_page(req), []).append(req)

    def is_worth_waiting(self, req: Req, num_matched: int) -> bool:
        """Decide whether a request with ``num_matched`` cached pages should wait for a prefill."""
        memo = req.memo
        if memo.leader is not None:
            lease = memo.leader.lease
            if lease is not None and lease.num_tree < memo.num_leader_pages:
                return True
            memo.leader = None
        leaders = self._leaders.get(self._first_page(req))
        if leaders is None:
            return False
        # The last token of a request is always computed, so its page is not worth waiting for.
        key = req.key(req.num_matchable, page_size=self._page_size)
        for leader in leaders:
            leader_key = leader.key(leader.num_prefill, page_size=self._page_size)
            num_shared = common_prefix_pages(key, leader_key, page_size=self._page_size)
            if (num_shared - num_matched) * self._page_size >= WORTH_TOKENS:
                memo.leader, memo.num_leader_pages = leader, num_shared
                return True
        return False

    def _first_page(self, req: Req) -> bytes:
        return req.namespace + req.tokens(0, self._page_size).tobytes()
