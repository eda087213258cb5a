"""Owns entering and leaving of requests: slot, lease and state change together, or not at all.

Nobody else opens or closes a lease or takes a slot for a request. Invariant: a request holds a
slot and an open lease exactly while it is running, and the slot's row mirrors the lease's pages as
far as ``num_synced`` says.
"""

from mizzen_worker.cache.controller import UnifiedRadixCache
from mizzen_worker.cache.lease import KvLease
from mizzen_worker.cache.page_key import PageKey
from mizzen_worker.cache.results import Match
from mizzen_worker.contracts.batch import PageWrite
from mizzen_worker.memory.request_table import RequestTable
from mizzen_worker.scheduler.req import Req, ReqState


class Residency:
    """Pairs requests with cache and request table."""

    def __init__(self, *, cache: UnifiedRadixCache, table: RequestTable) -> None:
        self.cache = cache
        self.table = table
        self._page_size = cache.page_size

    def match(self, req: Req) -> Match:
        """Find what of a waiting request is cached; one token at least stays to be computed.

        The answer is remembered: it is free while the tree stays the same, and else costs what is
        new below it.
        """
        known = req.known
        if known is None or known.epoch != self.cache.epoch:
            key = req.key(req.num_tokens - 1, page_size=self._page_size)
            req.known = known = self.cache.match(key, known)
        return known

    def enter(self, req: Req, match: Match) -> None:
        """WAITING to PREFILLING: take a slot and lease the cached prefix."""
        req.move(ReqState.PREFILLING)
        req.slot = self.table.take()
        req.lease = self.cache.open(
            match, priority=req.standing.priority, num_prompt_tokens=req.num_prompt
        )
        req.known = None
        req.num_kv = match.num_pages * self._page_size
        if req.num_cached is None:
            req.num_cached = min(req.num_kv, req.num_prompt)

    def retract(self, req: Req) -> None:
        """Running to WAITING: what it computed stays cached as long as nobody needs the room."""
        self._leave(req, ReqState.WAITING, is_cached=True)

    def end(self, req: Req, state: ReqState, *, is_cached: bool) -> None:
        """Any live state to a terminal one. ``is_cached``: its KV may serve later requests."""
        if req.is_running:
            self._leave(req, state, is_cached=is_cached)
        else:
            req.move(state)

    def checkpoint(self, req: Req) -> None:
        """Cache what a running request has computed so far."""
        _, lease = req.held()
        if req.num_kv // self._page_size > lease.num_tree:
            self.cache.checkpoint(lease, self._key_of_new(req, lease))

    def sync(self, req: Req) -> PageWrite | None:
        """Tell the runner what of a request's row is new or changed."""
        slot, lease = req.held()
        first = lease.num_synced
        if first == lease.num_pages:
            return None
        lease.num_synced = lease.num_pages
        return self.table.write(slot, first, lease.pages(first, lease.num_pages))

    def _leave(self, req: Req, state: ReqState, *, is_cached: bool) -> None:
        slot, lease = req.held()
        req.move(state)
        key = self._key_of_new(req, lease) if is_cached else None
        self.cache.close(lease, key)
        self.table.give_back(slot)
        req.slot = req.lease = None
        req.num_kv = 0

    def _key_of_new(self, req: Req, lease: KvLease) -> PageKey:
        """Name the pages that are computed and not the tree's yet."""
        return req.key(req.num_kv, page_size=self._page_size, first_page=lease.num_tree)
