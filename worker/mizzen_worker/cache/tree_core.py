"""Owns the nodes of the prefix tree: who is cached, locked and evictable; owns no page.

Pure bookkeeping, deterministic in the history of calls. ``match`` never changes anything; only
``insert`` and ``lock`` split edges. What must happen to pools is *returned* as actions, each once.
Positions are given as (node, num_pages): ``num_pages`` whole pages from the root along the path to
that node. They stay valid under splits and end with the node's eviction.

Invariants (``cache/check.py`` recomputes every one): links agree both ways; edges are whole pages
and siblings differ in their first page; every node but the root has a backbone value; lock counts
are those of the receipts outstanding, and a locked node has locked ancestors; candidates for
eviction and unit counts are those of the definition.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from mizzen_worker.cache.actions import Action, Free
from mizzen_worker.cache.components.base import Component, Span
from mizzen_worker.cache.eviction_order import EvictionOrder, Rank, least_recently_used
from mizzen_worker.cache.node import Node, NodeView
from mizzen_worker.cache.page_key import TOKEN_BYTES, PageKey, common_pages
from mizzen_worker.cache.results import Evicted, Inserted, LockReceipt, Match
from mizzen_worker.contracts.batch import Int32Array
from mizzen_worker.contracts.errors import InvariantError
from mizzen_worker.contracts.ids import NodeId, Tick

ROOT = NodeId(0)


class UnifiedTreeCore:
    """The tree. Not thread safe: one controller owns it."""

    def __init__(
        self,
        *,
        page_size: int,
        components: Sequence[Component],
        rank: Rank = least_recently_used,
    ) -> None:
        self.page_size = page_size
        self.components = tuple(components)
        self._page_bytes = page_size * TOKEN_BYTES
        self._root = Node(
            node_id=ROOT,
            parent=None,
            edge=b"",
            start_page=0,
            end_page=0,
            child_key=b"",
            values=[None] * len(self.components),
            locks=[0] * len(self.components),
            last_access=Tick(0),
        )
        self._nodes: dict[NodeId, Node] = {ROOT: self._root}
        self._next_node = 1
        self._next_receipt = 1
        self._receipts: dict[int, LockReceipt] = {}
        self._orders = tuple(EvictionOrder(rank) for _ in self.components)
        self._num_unlocked = [0] * len(self.components)
        self._num_locked = [0] * len(self.components)

    # Looking: nothing below changes the tree.

    def match(self, key: PageKey) -> Match:
        """Find the longest prefix that every component can use. O(edges on the path)."""
        tokens, prefix, offset = key.tokens, key.namespace, 0
        walks = [component.start_match() for component in self.components]
        node = best_node = self._root
        best_pages = 0
        while offset < len(tokens):
            child = node.children.get(prefix + tokens[offset : offset + self._page_bytes])
            if child is None:
                break
            num_pages = child.end_page - child.start_page
            num_matched = self._num_matched(child, tokens, offset)
            is_usable = True
            for walk, value in zip(walks, child.values, strict=True):
                is_usable &= walk.usable(value, num_pages, num_matched)
            if is_usable:
                best_node, best_pages = child, child.start_page + num_matched
            if num_matched < num_pages:
                break
            node, prefix, offset = child, b"", offset + len(child.edge)
        return Match(node=best_node.node_id, num_pages=best_pages)

    def pages(self, node_id: NodeId, num_pages: int) -> Int32Array:
        """Join the backbone's units of the first ``num_pages`` pages of a path [num_pages]."""
        if num_pages == 0:
            return np.empty(0, dtype=np.int32)
        node = self._covering(node_id, num_pages)
        parts = [value for step in _up(node) if (value := step.values[0]) is not None]
        return np.concatenate(parts[::-1])[:num_pages]

    def value(self, component_index: int, node_id: NodeId) -> Int32Array | None:
        """Read one component's value on a node; the tree keeps owning the array."""
        return self._node(node_id).values[component_index]

    def num_unlocked_pages(self, node_id: NodeId, num_pages: int) -> int:
        """Count pages of a path that a lock would newly protect from eviction."""
        if num_pages == 0:
            return 0
        total = 0
        for step in _up(self._covering(node_id, num_pages)):
            if step.locks[0]:
                break
            total += min(step.end_page, num_pages) - step.start_page
        return total

    def num_evictable(self, component_index: int) -> int:
        """Count a component's units on nodes that it has not locked."""
        return self._num_unlocked[component_index]

    def num_protected(self, component_index: int) -> int:
        """Count a component's units on nodes that it has locked."""
        return self._num_locked[component_index]

    def candidates(self, component_index: int) -> frozenset[NodeId]:
        """Copy the set of nodes that may be evicted next for a component."""
        return self._orders[component_index].candidate_ids()

    def receipts(self) -> tuple[LockReceipt, ...]:
        """Copy the receipts that are still to be unlocked."""
        return tuple(self._receipts.values())

    def views(self) -> Iterator[NodeView]:
        """Copy every node, in the order of creation: for audits."""
        for node in self._nodes.values():
            yield node.view()

    # Changing.

    def insert(self, key: PageKey, values: Sequence[Int32Array | None], tick: Tick) -> Inserted:
        """Cache ``key`` with one incoming value per component (None: nothing of that kind).

        Takes ownership of all incoming units: what is not kept is in the actions. Units that
        already are a node's own count as kept. May split one edge. Raises before any change when
        the backbone's value does not have one unit per page.
        """
        total = key.num_pages(page_size=self.page_size)
        if values[0] is None or len(values[0]) != total:
            raise InvariantError([f"insert of {total} pages with backbone value {values[0]!r}"])
        freed: list[Action] = []
        node, offset, prefix = self._root, 0, key.namespace
        while offset < len(key.tokens):
            child = node.children.get(prefix + key.tokens[offset : offset + self._page_bytes])
            if child is None:
                break
            num_matched = self._num_matched(child, key.tokens, offset)
            if num_matched < child.end_page - child.start_page:
                child = self._split(child, num_matched)
            span = Span(start=child.start_page, end=child.end_page, total=total)
            self._merge_into(child, values, span, freed)
            self._touch(child, tick)
            node, prefix, offset = child, b"", offset + len(child.edge)
        num_new_pages = total - node.end_page
        if num_new_pages:
            end = _End(node=node, offset=offset, prefix=prefix)
            node = self._add_leaf(end, key, values, tick)
        elif total == 0:
            freed.extend(self._free(index, value) for index, value in enumerate(values))
        actions = tuple(action for action in freed if len(action.units))
        return Inserted(node=node.node_id, num_new_pages=num_new_pages, actions=actions)

    def lock(self, node_id: NodeId, num_pages: int, tick: Tick) -> LockReceipt:
        """Protect a position until ``unlock`` takes the receipt; makes its path most recent.

        Splits the edge that ``num_pages`` lies inside of.
        """
        node = self._covering(node_id, num_pages) if num_pages else self._root
        if num_pages < node.end_page:
            node = self._split(node, num_pages - node.start_page)
        tops = tuple(self._lock_path(index, node) for index in range(len(self.components)))
        for step in _up(node):
            self._touch(step, tick)
        receipt = LockReceipt(
            receipt_id=self._next_receipt, node=node.node_id, num_pages=num_pages, tops=tops
        )
        self._next_receipt += 1
        self._receipts[receipt.receipt_id] = receipt
        return receipt

    def unlock(self, receipt: LockReceipt) -> None:
        """Undo exactly what ``lock`` did, whatever was split since; a second time raises."""
        if self._receipts.get(receipt.receipt_id) != receipt:
            raise InvariantError([f"unlock with a receipt that is not outstanding: {receipt}"])
        del self._receipts[receipt.receipt_id]
        node = self._nodes[receipt.node]
        for index, top in enumerate(receipt.tops):
            for step in _up(node):
                if step.start_page < top:
                    break
                step.locks[index] -= 1
                if step.locks[index] == 0:
                    self._count(index, step, self._num_locked, -1)
                    self._count(index, step, self._num_unlocked, +1)
                    self._refresh(step)

    def evict(self, component_index: int, num_units: int) -> Evicted:
        """Evict unlocked nodes in order until ``num_units`` are free or no candidate is left.

        The backbone leaves with its whole leaf node and so may give more than asked; another
        component leaves its value on an otherwise unchanged node.
        """
        order = self._orders[component_index]
        num_freed = 0
        actions: list[Action] = []
        while num_freed < num_units:
            node = order.take_first()
            if node is None:
                break
            indices = range(len(self.components)) if component_index == 0 else [component_index]
            for index in indices:
                value = node.values[index]
                if value is not None:
                    self._count(index, node, self._num_unlocked, -1)
                    node.values[index] = None
                    self._orders[index].discard(node.node_id)
                    actions.append(self._free(index, value))
                    num_freed += len(value) if index == component_index else 0
            if component_index == 0:
                self._remove_leaf(node)
        return Evicted(num_units=num_freed, actions=tuple(actions))

    # Parts of the above.

    def _node(self, node_id: NodeId) -> Node:
        node = self._nodes.get(node_id)
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

    def _num_matched(self, child: Node, tokens: bytes, offset: int) -> int:
        """Count the pages of an edge that agree with ``tokens`` from ``offset`` on, at least 1."""
        if tokens.startswith(child.edge, offset):
            return child.end_page - child.start_page
        following = tokens[offset : offset + len(child.edge)]
        return common_pages(child.edge, following, page_size=self.page_size)

    def _split(self, lower: Node, at_page: int) -> Node:
        """Cut an edge ``at_page`` pages in; return the new upper half. Locks cover both halves."""
        parent = lower.parent
        if parent is None or not 0 < at_page < lower.end_page - lower.start_page:
            raise InvariantError([f"split of node {lower.node_id} at page {at_page}"])
        cut = at_page * self._page_bytes
        upper = Node(
            node_id=NodeId(self._next_node),
            parent=parent,
            edge=lower.edge[:cut],
            start_page=lower.start_page,
            end_page=lower.start_page + at_page,
            child_key=lower.child_key,
            values=[None] * len(self.components),
            locks=list(lower.locks),
            last_access=lower.last_access,
        )
        self._next_node += 1
        self._nodes[upper.node_id] = upper
        for index, component in enumerate(self.components):
            value = lower.values[index]
            if value is not None:
                upper.values[index], lower.values[index] = component.split(value, at_page)
        parent.children[upper.child_key] = upper
        lower.parent = upper
        lower.edge = lower.edge[cut:]
        lower.start_page = upper.end_page
        lower.child_key = lower.edge[: self._page_bytes]
        upper.children[lower.child_key] = lower
        self._refresh(upper)
        self._refresh(lower)
        return upper

    def _merge_into(
        self, node: Node, values: Sequence[Int32Array | None], span: Span, freed: list[Action]
    ) -> None:
        for index, component in enumerate(self.components):
            incoming = values[index]
            part = None if incoming is None else component.part(incoming, span)
            if part is None:
                continue
            merged = component.merge(node.values[index], part)
            if merged.kept is not node.values[index]:
                counts = self._num_locked if node.locks[index] else self._num_unlocked
                self._count(index, node, counts, -1)
                node.values[index] = merged.kept
                self._count(index, node, counts, +1)
                self._refresh(node)
            freed.append(self._free(index, merged.freed))

    def _add_leaf(
        self, end: "_End", key: PageKey, values: Sequence[Int32Array | None], tick: Tick
    ) -> Node:
        """Hang the rest of ``key`` under the node where its walk ended."""
        edge = key.tokens[end.offset :]
        start, total = end.node.end_page, key.num_pages(page_size=self.page_size)
        span = Span(start=start, end=total, total=total)
        leaf = Node(
            node_id=NodeId(self._next_node),
            parent=end.node,
            edge=edge,
            start_page=start,
            end_page=total,
            child_key=end.prefix + edge[: self._page_bytes],
            values=[
                None
                if incoming is None or (part := component.part(incoming, span)) is None
                # A copy: the caller's array may be a view of something that goes on changing.
                else part.copy()
                for component, incoming in zip(self.components, values, strict=True)
            ],
            locks=[0] * len(self.components),
            last_access=tick,
        )
        self._next_node += 1
        self._nodes[leaf.node_id] = leaf
        end.node.children[leaf.child_key] = leaf
        for index in range(len(self.components)):
            self._count(index, leaf, self._num_unlocked, +1)
        self._refresh(leaf)
        self._refresh(end.node)
        return leaf

    def _remove_leaf(self, leaf: Node) -> None:
        parent = leaf.parent
        if parent is None or leaf.children:
            raise InvariantError([f"removal of node {leaf.node_id}, which is no leaf"])
        del parent.children[leaf.child_key]
        del self._nodes[leaf.node_id]
        self._refresh(parent)

    def _lock_path(self, index: int, node: Node) -> int:
        """Lock what one component needs from ``node`` up; return the first page covered."""
        walk = self.components[index].start_lock()
        top = node.end_page
        for step in _up(node):
            if not walk.covers(step.end_page - step.start_page):
                break
            top = step.start_page
            step.locks[index] += 1
            if step.locks[index] == 1:
                self._count(index, step, self._num_unlocked, -1)
                self._count(index, step, self._num_locked, +1)
                self._refresh(step)
        return top

    def _refresh(self, node: Node) -> None:
        """Make a node a candidate, or not, by the definition."""
        if node.parent is None:
            return
        for index, order in enumerate(self._orders):
            if index == 0:
                is_candidate = not node.children and not any(node.locks)
            else:
                is_candidate = node.values[index] is not None and not node.locks[index]
            if is_candidate:
                order.add(node)
            else:
                order.discard(node.node_id)

    @staticmethod
    def _touch(node: Node, tick: Tick) -> None:
        node.last_access = max(node.last_access, tick)

    @staticmethod
    def _count(index: int, node: Node, counts: list[int], sign: int) -> None:
        value = node.values[index]
        if value is not None:
            counts[index] += sign * len(value)

    def _free(self, index: int, value: Int32Array | None) -> Free:
        units = np.empty(0, dtype=np.int32) if value is None else value
        return Free(component=self.components[index].name, units=units)


@dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """Where the walk of an insert ended: the node, the byte offset, what precedes a child's key."""

    node: Node
    offset: int
    prefix: bytes


def _up(node: Node) -> Iterator[Node]:
    """Walk from a node to the root, without the root."""
    while node.parent is not None:
        yield node
        node = node.parent
