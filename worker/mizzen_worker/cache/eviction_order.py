"""Owns the order in which candidates leave the cache; does not decide who is a candidate.

A lazily updated heap. A rank that rises needs no word: the entry's older, smaller rank comes to the
front first and is corrected there. A rank that falls must be told by ``add``, which queues a second
entry. So the first entry whose rank is still the node's is the smallest, and nothing is scanned.
"""

import heapq
from collections.abc import Callable
from typing import TypeAlias

from mizzen_worker.cache.node import Node
from mizzen_worker.contracts.cache_eviction import CacheEviction
from mizzen_worker.contracts.ids import NodeId

Rank: TypeAlias = Callable[[Node], tuple[int, ...]]
"""Smallest leaves first; equal ranks leave in the order in which their nodes were made."""

_USES_THAT_PROTECT = 2
_SMALL = 64


def _recency(node: Node) -> tuple[int, ...]:
    return (node.last_access,)


def _frequency(node: Node) -> tuple[int, ...]:
    return (node.num_uses, node.last_access)


def _segment(node: Node) -> tuple[int, ...]:
    return (node.num_uses >= _USES_THAT_PROTECT, node.last_access)


def _priority(node: Node) -> tuple[int, ...]:
    return (node.priority, node.last_access)


RANKS: dict[CacheEviction, Rank] = {
    CacheEviction.LRU: _recency,
    CacheEviction.LFU: _frequency,
    CacheEviction.SLRU: _segment,
    CacheEviction.PRIORITY: _priority,
}


class EvictionOrder:
    """A set of candidate nodes from which the one of smallest (rank, id) can be taken."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._candidates: dict[NodeId, Node] = {}
        # Invariant: a candidate's entry in _queued is in _heap and not above the node's rank; an
        # entry of _heap that is not in _queued is dead.
        self._queued: dict[NodeId, tuple[int, ...]] = {}
        self._heap: list[tuple[tuple[int, ...], NodeId]] = []

    def candidate_ids(self) -> frozenset[NodeId]:
        """Copy the set of candidates: for audits."""
        return frozenset(self._candidates)

    def add(self, node: Node) -> None:
        """Make a node a candidate, or say that a candidate's rank may have fallen. O(log n)."""
        node_id = node.node_id
        self._candidates[node_id] = node
        rank = self._rank(node)
        queued = self._queued.get(node_id)
        if queued is None or rank < queued:
            self._push(rank, node_id)

    def discard(self, node_id: NodeId) -> None:
        """Stop a node from being a candidate; no effect when it is none. Its entry goes later."""
        self._candidates.pop(node_id, None)

    def take_first(self) -> Node | None:
        """Take the first candidate out of the order; None when there is none."""
        while self._heap:
            rank, node_id = heapq.heappop(self._heap)
            if self._queued.get(node_id) != rank:
                continue
            node = self._candidates.get(node_id)
            if node is not None and (current := self._rank(node)) != rank:
                self._push(current, node_id)
                continue
            del self._queued[node_id]
            if node is not None:
                del self._candidates[node_id]
                return node
        return None

    def _push(self, rank: tuple[int, ...], node_id: NodeId) -> None:
        self._queued[node_id] = rank
        heapq.heappush(self._heap, (rank, node_id))
        if len(self._heap) > 2 * len(self._candidates) + _SMALL:
            self._compact()

    def _compact(self) -> None:
        """Drop dead entries and those of former candidates, so that the heap stays bounded."""
        self._queued = {node_id: self._rank(node) for node_id, node in self._candidates.items()}
        self._heap = [(rank, node_id) for node_id, rank in self._queued.items()]
        heapq.heapify(self._heap)
