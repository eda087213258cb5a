"""Owns the order in which candidates leave the cache; does not decide who is a candidate.

A lazily updated heap: an entry's rank may be older than the node's, never newer, so the first
entry whose rank is still true is the smallest. Ranks therefore must only grow with time, as logical
time of access does. Entering and leaving cost O(1) or one push; nothing is scanned.
"""

import heapq
from collections.abc import Callable
from typing import TypeAlias

from mizzen_worker.cache.node import Node
from mizzen_worker.contracts.ids import NodeId

Rank: TypeAlias = Callable[[Node], int]


def least_recently_used(node: Node) -> int:
    """Rank of the lru order: the logical time of the last access."""
    return node.last_access


class EvictionOrder:
    """A set of candidate nodes from which the one of smallest (rank, id) can be taken."""

    def __init__(self, rank: Rank) -> None:
        self._rank = rank
        self._candidates: dict[NodeId, Node] = {}
        self._heap: list[tuple[int, NodeId]] = []
        # Invariant: exactly the ids in _heap; at most one entry each, so the heap stays bounded.
        self._queued: set[NodeId] = set()

    def __contains__(self, node_id: NodeId) -> bool:
        return node_id in self._candidates

    def candidate_ids(self) -> frozenset[NodeId]:
        """Copy the set of candidates: for audits."""
        return frozenset(self._candidates)

    def add(self, node: Node) -> None:
        """Make a node a candidate; no effect when it is one."""
        self._candidates[node.node_id] = node
        if node.node_id not in self._queued:
            self._queued.add(node.node_id)
            heapq.heappush(self._heap, (self._rank(node), node.node_id))

    def discard(self, node_id: NodeId) -> None:
        """Stop a node from being a candidate; no effect when it is none. Its entry goes later."""
        self._candidates.pop(node_id, None)

    def take_first(self) -> Node | None:
        """Take the first candidate out of the order; None when there is none."""
        while self._heap:
            rank, node_id = heapq.heappop(self._heap)
            node = self._candidates.get(node_id)
            if node is None:
                self._queued.remove(node_id)
                continue
            current = self._rank(node)
            if current != rank:
                heapq.heappush(self._heap, (current, node_id))
                continue
            self._queued.remove(node_id)
            del self._candidates[node_id]
            return node
        return None
