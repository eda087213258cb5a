"""Owns what the prefix tree decides: where a key is, who is locked, who leaves; owns no page.

Pure, deterministic in the history of calls. ``match`` never changes anything. What must happen to
pools is *returned* as actions, each once. Positions are given as (node, num_pages): ``num_pages``
whole pages from the root along the path to that node. They stay valid under splits and end with
the node's eviction. The books over nodes are kept in ``node_table.py``.

Invariants (``cache/check.py`` recomputes every one): edges are whole pages and siblings differ in
their first page; every node but the root has a backbone value; lock counts are those of the
receipts outstanding, a locked node has locked ancestors, and a receipt's node ends where it says.
"""

from collections.abc import Iterator, Sequence
from typing import TypeAlias

import numpy as np

from mizzen_worker.cache.actions import Action, Free
from mizzen_worker.cache.components.base import Component, MatchWalk, Span
from mizzen_worker.cache.events import EventLog
from mizzen_worker.cache.eviction_order import RANKS
from mizzen_worker.cache.lock_book import LockBook
from mizzen_worker.cache.node import Node, NodeView, up
from mizzen_worker.cache.node_table import NodeTable
from mizzen_worker.cache.page_key import TOKEN_BYTES, PageKey, common_pages
from mizzen_worker.cache.results import Access, Evicted, Extended, Inserted, LockReceipt, Match
from mizzen_worker.contracts.batch import Int32Array
from mizzen_worker.contracts.cache_eviction import CacheEviction
from mizzen_worker.contracts.errors import InvariantError
from mizzen_worker.contracts.ids import NodeId

Values: TypeAlias = Sequence[Int32Array | None]
"""One incoming value per component; None brings nothing of that kind."""
_Freed: TypeAlias = list[list[Int32Array]]
"""Units to free, per component."""
_Walks: TypeAlias = list[tuple[int, MatchWalk]]
"""One lookup's questions, by the index of the component that asks."""


class UnifiedTreeCore:
    """The tree. Not thread safe: one controller owns it."""

    def __init__(
        self,
        *,
        page_size: int,
        components: Sequence[Component],
        eviction: CacheEviction = CacheEviction.LRU,
        event_log: EventLog | None = None,
    ) -> None:
        self.page_size = page_size
        self.components = tuple(components)
        self._page_bytes = page_size * TOKEN_BYTES
        self._table = NodeTable(
            page_size=page_size,
            components=self.components,
            rank=RANKS[eviction],
            event_log=event_log,
        )
        self._locks = LockBook(table=self._table, components=self.components)

    # Looking: nothing below changes the tree.

    @property
    def epoch(self) -> int:
        """Tell states apart: it changes when anything was inserted, evicted or split."""
        return self._table.epoch

    def match(self, key: PageKey, hint: Match | None = None) -> Match:
        """Find the longest prefix that every component can use. O(edges on the path).

        ``hint`` is an earlier match of the same key: the answer is the same and costs O(edges below
        it), nothing at all while the epoch is the same. An evicted hint costs as much as none.
        """
        if hint is not None and hint.epoch == self._table.epoch:
            return hint
        if key.first_page:
            raise InvariantError([f"match of a key that starts at page {key.first_page}"])
        walks = [
            (index, walk)
            for index, component in enumerate(self.components)
            if (walk := component.start_match()) is not None
        ]
        node = self._resume(hint)
        best_node, best_pages = (node, node.end_page) if not walks else self._replay(walks, node)
        tokens, offset = key.tokens, node.end_page * self._page_bytes
        prefix = b"" if offset else key.namespace
        while offset < len(tokens):
            child = node.children.get(prefix + tokens[offset : offset + self._page_bytes])
            if child is None:
                break
            edge = child.edge
            is_whole = tokens.startswith(edge, offset)
            end_page = child.end_page
            if not is_whole:
                end_page = child.start_page + self._common_pages(edge, tokens, offset)
            if not walks or _is_usable(walks, child, end_page - child.start_page):
                best_node, best_pages = child, end_page
            if not is_whole:
                break
            node, prefix, offset = child, b"", offset + len(edge)
        return Match(node=best_node.node_id, num_pages=best_pages, epoch=self._table.epoch)

    def pages(self, node_id: NodeId, num_pages: int) -> Int32Array:
        """Join the backbone's units of the first ``num_pages`` pages of a path [num_pages]."""
        if num_pages == 0:
            return np.empty(0, dtype=np.int32)
        return _join(self._covering(node_id, num_pages), 0)[:num_pages]

    def num_unlocked_pages(self, node_id: NodeId, num_pages: int) -> int:
        """Count pages of a path that a lock would newly protect from eviction."""
        if num_pages == 0:
            return 0
        total = 0
        for step in up(self._covering(node_id, num_pages)):
            if step.locks[0]:
                break
            total += min(step.end_page, num_pages) - step.start_page
        return total

    def path(self, node_id: NodeId) -> tuple[NodeId, ...]:
        """Name the nodes from below the root down to a node."""
        return tuple(step.node_id for step in up(self._node(node_id)))[::-1]

    def first_page_locked_alone(self, receipt: LockReceipt) -> int:
        """Find the page from which on no other lock protects a locked path."""
        return self._locks.first_page_alone(receipt)

    def num_evictable(self, component_index: int) -> int:
        """Count a component's units on nodes that it has not locked."""
        return self._table.num_unlocked[component_index]

    def num_protected(self, component_index: int) -> int:
        """Count a component's units on nodes that it has locked."""
        return self._table.num_locked[component_index]

    def candidates(self, component_index: int) -> frozenset[NodeId]:
        """Copy the set of nodes that may be evicted next for a component."""
        return self._table.candidate_ids(component_index)

    def receipts(self) -> tuple[LockReceipt, ...]:
        """Copy the receipts that are still to be unlocked."""
        return self._locks.outstanding()

    def views(self) -> Iterator[NodeView]:
        """Copy every node, in the order of creation: for audits."""
        for node in self._table:
            yield node.view()

    def hashes(self) -> tuple[bytes, ...]:
        """Name every cached page, after the one it follows; none without an event log. O(tree)."""
        names: list[bytes] = []
        waiting = [self._table.root]
        while waiting:
            node = waiting.pop()
            names += node.hashes
            waiting += node.children.values()
        return tuple(names)

    # Changing.

    def insert(
        self,
        key: PageKey,
        values: Values,
        access: Access,
        *,
        boundary: int = 0,
        below: LockReceipt | None = None,
    ) -> Inserted:
        """Cache ``key`` with incoming values, each for the pages that the key names.

        Takes ownership of all incoming units: what is not kept is in the actions. Units that
        already are a node's own count as kept. No node made here crosses page ``boundary``. A key
        with a first page goes ``below`` a lock that ends there, whose path is not walked again.
        Raises before any change when the values or the place do not fit.
        """
        node = self._require_place(key, values, below)
        freed: _Freed = [[] for _ in self.components]
        tokens, prefix, offset = key.tokens, key.namespace if node.parent is None else b"", 0
        total = len(tokens) // self._page_bytes
        while offset < len(tokens):
            child = node.children.get(prefix + tokens[offset : offset + self._page_bytes])
            if child is None:
                break
            if not tokens.startswith(child.edge, offset):
                child = self._table.split(child, self._common_pages(child.edge, tokens, offset))
            span = Span(
                start=child.start_page - key.first_page,
                end=child.end_page - key.first_page,
                total=total,
            )
            self._merge_into(child, values, span, freed)
            self._table.use(child, access)
            node, prefix, offset = child, b"", offset + len(child.edge)
        num_new_pages = key.first_page + total - node.end_page
        for end_page in _ends(node.end_page, key.first_page + total, boundary):
            span = Span(
                start=node.end_page - key.first_page, end=end_page - key.first_page, total=total
            )
            node = self._add_leaf(node, key, values, span, access)
        if total == 0:  # nothing to attach anything to
            freed = [[value] if value is not None and len(value) else [] for value in values]
        return Inserted(node=node.node_id, num_new_pages=num_new_pages, actions=self._free(freed))

    def lock(self, node_id: NodeId, num_pages: int, access: Access) -> LockReceipt:
        """Protect a position until its receipt is given back; one more request uses its path.

        Splits the edge that ``num_pages`` lies inside of.
        """
        node = self._covering(node_id, num_pages) if num_pages else self._table.root
        if num_pages < node.end_page:
            node = self._table.split(node, num_pages - node.start_page)
        for step in up(node):
            self._table.use(step, access)
        return self._locks.lock(node)

    def extend(
        self,
        receipt: LockReceipt,
        key: PageKey,
        values: Values,
        access: Access,
        *,
        boundary: int = 0,
    ) -> Extended:
        """Insert below a lock and move it to the new end. O(new pages), however long the path.

        The old receipt is void afterwards. Raises before any change, as ``insert`` does.
        """
        inserted = self.insert(key, values, access, boundary=boundary, below=receipt)
        node = self._node(inserted.node)
        return Extended(
            receipt=self._locks.move_down(receipt, node),
            pages=_join(node, receipt.num_pages),
            actions=inserted.actions,
        )

    def unlock(self, receipt: LockReceipt) -> None:
        """Undo exactly what a lock did, whatever was split since; a second time raises."""
        self._locks.unlock(receipt)

    def evict(self, component_index: int, num_units: int) -> Evicted:
        """Evict unlocked values in order until ``num_units`` are free or no candidate is left.

        The backbone leaves page by page from the ends of leaves, and other components' values with
        it; another component leaves its value on an otherwise unchanged node.
        """
        freed: _Freed = [[] for _ in self.components]
        num_left = num_units
        while num_left > 0:
            node = self._table.take_first(component_index)
            if node is None:
                break
            if component_index:
                num_left -= self._take_value(node, component_index, freed)
                continue
            num_kept = node.end_page - node.start_page - num_left
            if num_kept > 0:
                self._table.split(node, num_kept)
            num_left -= node.end_page - node.start_page
            for index in range(len(self.components)):
                self._take_value(node, index, freed)
            self._table.remove_leaf(node)
        num_freed = sum(len(units) for units in freed[component_index])
        return Evicted(num_units=num_freed, actions=self._free(freed))

    # Parts of the above.

    def _node(self, node_id: NodeId) -> Node:
        node = self._table.get(node_id)
        if node is None:
            raise InvariantError([f"node {node_id} is not in the tree (any more)"])
        return node

    def _covering(self, node_id: NodeId, num_pages: int) -> Node:
        """Find the node on the path whose edge holds page ``num_pages`` (counted from 1)."""
        node = self._node(node_id)
        if not 0 < num_pages <= node.end_page:
            raise InvariantError([f"{num_pages} pages on node {node_id} of {node.end_page}"])
        while node.start_page >= num_pages and node.parent is not None:
            node = node.parent
        return node

    def _resume(self, hint: Match | None) -> Node:
        """Find the lowest node that a key is known to pass through whole."""
        node = None if hint is None or hint.num_pages == 0 else self._table.get(hint.node)
        if hint is None or node is None:
            return self._table.root
        while node.end_page > hint.num_pages and node.parent is not None:
            node = node.parent
        return node

    def _replay(self, walks: _Walks, node: Node) -> tuple[Node, int]:
        """Tell walks about a path known to match; give the last place where all can go on."""
        best_node = self._table.root
        for step in [*up(node)][::-1]:
            if _is_usable(walks, step, step.end_page - step.start_page):
                best_node = step
        return best_node, best_node.end_page

    def _common_pages(self, edge: bytes, tokens: bytes, offset: int) -> int:
        """Count the pages of an edge that agree with ``tokens`` from ``offset`` on."""
        following = tokens[offset : offset + len(edge)]
        return common_pages(edge, following, page_size=self.page_size)

    def _require_place(self, key: PageKey, values: Values, below: LockReceipt | None) -> Node:
        """Find the node under which an insert starts, or raise."""
        num_pages = len(key.tokens) // self._page_bytes
        if values[0] is None or len(values[0]) != num_pages:
            raise InvariantError([f"insert of {num_pages} pages with backbone value {values[0]!r}"])
        node = self._table.root if below is None else self._locks.node_of(below)
        if node.end_page != key.first_page:
            raise InvariantError(
                [f"insert of pages from {key.first_page} on at a place of {node.end_page} pages"]
            )
        return node

    def _merge_into(self, node: Node, values: Values, span: Span, freed: _Freed) -> None:
        for index, component in enumerate(self.components):
            incoming = values[index]
            part = None if incoming is None else component.part(incoming, span)
            if part is None:
                continue
            merged = component.merge(node.values[index], part)
            if merged.kept is not node.values[index]:
                self._table.put_value(node, index, merged.kept)
            if len(merged.freed):
                freed[index].append(merged.freed)

    def _add_leaf(
        self, parent: Node, key: PageKey, values: Values, span: Span, access: Access
    ) -> Node:
        """Hang the pages of ``span`` under the node where they follow."""
        edge = key.tokens[span.start * self._page_bytes : span.end * self._page_bytes]
        prefix = key.namespace if parent.parent is None else b""
        parts = [
            None
            if incoming is None or (part := component.part(incoming, span)) is None
            # A copy: the caller's array may be a view of something that goes on changing.
            else part.copy()
            for component, incoming in zip(self.components, values, strict=True)
        ]
        child_key = prefix + edge[: self._page_bytes]
        return self._table.add_leaf(parent, edge, parts, child_key=child_key, access=access)

    def _take_value(self, node: Node, index: int, freed: _Freed) -> int:
        value = node.values[index]
        if value is None:
            return 0
        freed[index].append(value)
        self._table.put_value(node, index, None)
        return len(value)

    def _free(self, freed: _Freed) -> tuple[Action, ...]:
        """Make one action per component that has something to free."""
        return tuple(
            Free(component=component.name, units=np.concatenate(units))
            for component, units in zip(self.components, freed, strict=True)
            if units
        )


def _ends(start_page: int, end_page: int, boundary: int) -> tuple[int, ...]:
    """Say where the new nodes of [start_page, end_page) end."""
    if start_page == end_page:
        return ()
    if start_page < boundary < end_page:
        return (boundary, end_page)
    return (end_page,)


def _is_usable(walks: _Walks, node: Node, num_matched: int) -> bool:
    """Tell every walk about an edge; a prefix may end there where all agree."""
    num_pages = node.end_page - node.start_page
    is_usable = True
    for index, walk in walks:
        is_usable &= walk.usable(node.values[index], num_pages, num_matched)
    return is_usable


def _join(node: Node, first_page: int) -> Int32Array:
    """Join the backbone's units from ``first_page``, where an edge starts, to a node's end."""
    parts = [value for step in up(node, first_page) if (value := step.values[0]) is not None]
    return np.concatenate(parts[::-1]) if parts else np.empty(0, dtype=np.int32)
