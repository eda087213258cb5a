"""Owns the pairing of tree and page allocator, and every open lease; decides nothing about keys.

The only holder of both: it has the tree's actions done, each exactly once. Invariant (M1), at every
return: free + evictable + protected + pages owned by leases = all pages.
"""

from collections.abc import Sequence

import numpy as np

from mizzen_worker.cache.check import check
from mizzen_worker.cache.components.full import FULL, FullComponent
from mizzen_worker.cache.events import EventLog
from mizzen_worker.cache.executor import ActionExecutor
from mizzen_worker.cache.lease import KvLease
from mizzen_worker.cache.page_key import PageKey
from mizzen_worker.cache.results import Access, Match
from mizzen_worker.cache.tree_core import UnifiedTreeCore
from mizzen_worker.contracts.cache_eviction import CacheEviction
from mizzen_worker.contracts.errors import InvariantError
from mizzen_worker.contracts.ids import NodeId, Tick
from mizzen_worker.memory.allocator import PageAllocator


class UnifiedRadixCache:
    """KV pages of one pool: cached by prefix, leased to requests, or free."""

    def __init__(
        self,
        *,
        allocator: PageAllocator,
        page_size: int,
        eviction: CacheEviction = CacheEviction.LRU,
        event_log: EventLog | None = None,
    ) -> None:
        self.page_size = page_size
        self.event_log = event_log
        """The record of pages that came and went, where one is kept."""
        self._allocator = allocator
        self._core = UnifiedTreeCore(
            page_size=page_size,
            components=(FullComponent(),),
            eviction=eviction,
            event_log=event_log,
        )
        self._executor = ActionExecutor({FULL: allocator})
        self._leases: dict[int, KvLease] = {}
        self._tick = 0
        self._num_opened = 0

    @property
    def num_pages(self) -> int:
        """Count all pages of the pool."""
        return self._allocator.num_pages

    @property
    def num_available(self) -> int:
        """Count pages that ``grow`` can give: free ones and those that can be evicted."""
        return self._allocator.num_free + self._core.num_evictable(0)

    @property
    def num_cached(self) -> int:
        """Count pages in the tree."""
        return self._core.num_evictable(0) + self._core.num_protected(0)

    @property
    def num_leases(self) -> int:
        """Count open leases."""
        return len(self._leases)

    @property
    def epoch(self) -> int:
        """Tell states of the tree apart; a ``Match`` of this epoch is still true."""
        return self._core.epoch

    def match(self, key: PageKey, hint: Match | None = None) -> Match:
        """Find the longest cached prefix; changes nothing, promises nothing until ``open``.

        ``hint`` is what an earlier call gave for the same key: it makes the same answer cheap.
        """
        return self._core.match(key, hint)

    def num_newly_protected(self, match: Match) -> int:
        """Count pages by which ``num_available`` falls when the match is opened."""
        return self._core.num_unlocked_pages(match.node, match.num_pages)

    def path(self, node: NodeId) -> tuple[NodeId, ...]:
        """Name the nodes from below the root down to a match's or a receipt's."""
        return self._core.path(node)

    def num_returned(self, lease: KvLease, *, num_kept: int) -> int:
        """Count pages by which ``num_available`` rises when a lease is closed.

        The first ``num_kept`` pages are left out: somebody may want them locked.
        """
        first_alone = self._core.first_page_locked_alone(lease.receipt)
        num_unlocked = lease.num_tree - max(first_alone, min(num_kept, lease.num_tree))
        return lease.num_pages - lease.num_tree + num_unlocked

    def hashes(self) -> tuple[bytes, ...]:
        """Name every cached page, after the one it follows; none without an event log. O(tree)."""
        return self._core.hashes()

    def open(self, match: Match, *, priority: int = 0, num_prompt_tokens: int = 0) -> KvLease:
        """Lock a match made since the last eviction and lease its pages.

        Whole pages of the prompt never share a node with later ones that this lease makes.
        """
        receipt = self._core.lock(match.node, match.num_pages, self._access(priority))
        self._num_opened += 1
        lease = KvLease(
            lease_id=self._num_opened,
            receipt=receipt,
            pages=self._core.pages(receipt.node, receipt.num_pages),
            priority=priority,
            boundary=num_prompt_tokens // self.page_size,
        )
        self._leases[lease.lease_id] = lease
        return lease

    def grow(self, wanted: Sequence[tuple[KvLease, int]]) -> None:
        """Append new pages to leases, evicting what must go; more than available is a bug.

        Raises before any change.
        """
        total = sum(num_pages for _, num_pages in wanted)
        for lease, _ in wanted:
            self._require_open(lease)
        if total > self.num_available:
            raise InvariantError([f"{total} pages wanted, {self.num_available} are available"])
        short = total - self._allocator.num_free
        if short > 0:
            self._executor.run(self._core.evict(0, short).actions)
        pages = self._allocator.take(total)
        first = 0
        for lease, num_pages in wanted:
            lease.append(pages[first : first + num_pages])
            first += num_pages

    def checkpoint(self, lease: KvLease, key: PageKey) -> None:
        """Cache the KV that ``key`` covers, while its request goes on. O(new pages).

        ``key`` starts at the root or anywhere up to the lease's ``num_tree``. Where the tree had a
        page already, the lease takes that one over and its own is freed.
        """
        self._require_open(lease)
        end_page = key.end_page(page_size=self.page_size)
        if end_page <= lease.num_tree:
            return
        extended = self._core.extend(
            lease.receipt,
            key.from_page(lease.num_tree, page_size=self.page_size),
            (lease.pages(lease.num_tree, end_page),),
            self._access(lease.priority),
            boundary=lease.boundary,
        )
        try:
            lease.adopt(extended.pages, extended.receipt)
        finally:
            self._executor.run(extended.actions)

    def close(self, lease: KvLease, key: PageKey | None) -> None:
        """End a lease: cache what ``key`` covers (None: nothing more), free the rest. Idempotent.

        Pages that the tree already has stay there. A key is as for ``checkpoint``.
        """
        if not lease.is_open:
            return
        if self._leases.get(lease.lease_id) is not lease:
            raise InvariantError([f"close of lease {lease.lease_id}, which is not from here"])
        if key is not None:
            self.checkpoint(lease, key)
        del self._leases[lease.lease_id]
        self._allocator.give_back(lease.pages(lease.num_tree, lease.num_pages))
        self._core.unlock(lease.receipt)
        lease.close()

    def flush(self) -> int:
        """Evict everything that is not locked; return the number of pages freed."""
        evicted = self._core.evict(0, self._core.num_evictable(0))
        self._executor.run(evicted.actions)
        return evicted.num_units

    def count_violations(self) -> list[str]:
        """Compare counts only (M1): free + evictable + protected + owned by leases = all."""
        owned = sum(lease.num_pages - lease.num_tree for lease in self._leases.values())
        counts = (
            self._allocator.num_free,
            self._core.num_evictable(0),
            self._core.num_protected(0),
            owned,
        )
        if sum(counts) == self.num_pages:
            return []
        return [f"free, evictable, protected, owned {counts} of {self.num_pages} pages"]

    def violations(self) -> list[str]:
        """List broken invariants of tree, leases and pool together. O(pool)."""
        found = check(self._core)
        holders: dict[int, str] = {int(page): "free list" for page in self._allocator.free_pages()}
        for view in self._core.views():
            if view.values[0] is not None:
                found += _claim(holders, view.values[0].tolist(), f"node {view.node_id}")
        for lease in self._leases.values():
            owned = lease.pages(lease.num_tree, lease.num_pages).tolist()
            found += _claim(holders, owned, f"lease {lease.lease_id}")
            found += self._broken_lease(lease)
        if self._executor.num_waiting:
            found.append(f"{self._executor.num_waiting} actions are not done")
        if {lease.receipt for lease in self._leases.values()} != set(self._core.receipts()):
            found.append("the locks outstanding are not exactly those of the open leases")
        lost = set(range(1, self.num_pages + 1)) - holders.keys()
        if lost or len(holders) != self.num_pages:
            found.append(f"pages that nobody holds or that do not exist: {sorted(lost)}")
        return found

    def _broken_lease(self, lease: KvLease) -> list[str]:
        if not 0 <= lease.num_synced <= lease.num_pages or lease.num_tree > lease.num_pages:
            return [f"lease {lease.lease_id}: {lease.num_tree}, {lease.num_synced} of its pages"]
        receipt = lease.receipt
        tree_pages = self._core.pages(receipt.node, receipt.num_pages)
        if lease.num_tree != receipt.num_pages or not np.array_equal(
            tree_pages, lease.pages(0, lease.num_tree)
        ):
            return [f"lease {lease.lease_id}: its first pages are not those it has locked"]
        return []

    def _access(self, priority: int) -> Access:
        self._tick += 1
        return Access(tick=Tick(self._tick), priority=priority)

    def _require_open(self, lease: KvLease) -> None:
        if self._leases.get(lease.lease_id) is not lease:
            raise InvariantError([f"use of lease {lease.lease_id}, which is closed"])


def _claim(holders: dict[int, str], pages: Sequence[int], holder: str) -> list[str]:
    """Enter a holder's pages; list those that somebody else holds too."""
    twice = []
    for page in pages:
        if page in holders:
            twice.append(f"page {page} is held by {holders[page]} and {holder}")
        holders[page] = holder
    return twice
