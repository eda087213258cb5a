"""Owns the nodes of a tree, how they hang together, and everything that is counted over them.

Does not know what a key, a lock receipt or an action is: the tree core decides, this keeps the
books. Every change of a node goes through here (``check.py`` recomputes each of these):

- links agree both ways; a node starts at the page where its parent ends;
- per component, ``num_unlocked`` and ``num_locked`` count the units on nodes without and with lock;
- candidates: of the backbone the unlocked leaves, of another component its unlocked values;
- ``epoch`` changes with every change but that of a lock or of a use;
- the event log hears of each page once when it comes and once when it goes.
"""

from collections.abc import Iterable, Iterator, Sequence

from mizzen_worker.cache.components.base import Component
from mizzen_worker.cache.events import EventLog
from mizzen_worker.cache.eviction_order import EvictionOrder, Rank
from mizzen_worker.cache.node import Node
from mizzen_worker.cache.page_key import DIGEST_BYTES, TOKEN_BYTES, hash_pages
from mizzen_worker.cache.results import Access
from mizzen_worker.contracts.batch import Int32Array
from mizzen_worker.contracts.errors import InvariantError
from mizzen_worker.contracts.ids import NodeId, Tick

ROOT = NodeId(0)


class NodeTable:
    """Nodes by id. Component 0 is the backbone."""

    def __init__(
        self,
        *,
        page_size: int,
        components: Sequence[Component],
        rank: Rank,
        event_log: EventLog | None,
    ) -> None:
        self._page_size = page_size
        self._page_bytes = page_size * TOKEN_BYTES
        self._components = tuple(components)
        self._event_log = event_log
        self.root = Node(
            node_id=ROOT,
            parent=None,
            edge=b"",
            start_page=0,
            end_page=0,
            child_key=b"",
            values=[None] * len(components),
            locks=[0] * len(components),
            last_access=Tick(0),
            num_uses=0,
            priority=0,
            hashes=(),
        )
        self._nodes: dict[NodeId, Node] = {ROOT: self.root}
        self._next_node = 1
        self._orders = tuple(EvictionOrder(rank) for _ in components)
        self.num_unlocked = [0] * len(components)
        self.num_locked = [0] * len(components)
        self.epoch = 0

    def get(self, node_id: NodeId) -> Node | None:
        """Find a node; None when it is not there any more."""
        return self._nodes.get(node_id)

    def __iter__(self) -> Iterator[Node]:
        """Give every node, in the order of creation."""
        return iter(self._nodes.values())

    def candidate_ids(self, index: int) -> frozenset[NodeId]:
        """Copy the set of nodes that may be evicted next for a component."""
        return self._orders[index].candidate_ids()

    def take_first(self, index: int) -> Node | None:
        """Take the candidate that is to leave first; the caller removes it or its value."""
        return self._orders[index].take_first()

    def add_leaf(
        self,
        parent: Node,
        edge: bytes,
        values: list[Int32Array | None],
        *,
        child_key: bytes,
        access: Access,
    ) -> Node:
        """Hang a new leaf of whole pages under ``parent``; the arrays become the node's own."""
        leaf = Node(
            node_id=self._take_id(),
            parent=parent,
            edge=edge,
            start_page=parent.end_page,
            end_page=parent.end_page + len(edge) // self._page_bytes,
            child_key=child_key,
            values=values,
            locks=[0] * len(values),
            last_access=access.tick,
            num_uses=1,
            priority=access.priority,
            hashes=(),
        )
        if self._event_log is not None:
            previous = parent.hashes[-1] if parent.hashes else child_key[:DIGEST_BYTES]
            leaf.hashes = hash_pages(previous, edge, page_size=self._page_size)
            self._event_log.stored(previous, leaf.hashes)
        self._nodes[leaf.node_id] = leaf
        parent.children[child_key] = leaf
        for index, value in enumerate(values):
            if value is not None:
                self.num_unlocked[index] += len(value)
        self._refresh(leaf)
        self._orders[0].discard(parent.node_id)
        self.epoch += 1
        return leaf

    def split(self, lower: Node, at_page: int) -> Node:
        """Cut an edge ``at_page`` pages in; return the new upper half. Locks cover both halves."""
        parent = lower.parent
        if parent is None or not 0 < at_page < lower.end_page - lower.start_page:
            raise InvariantError([f"split of node {lower.node_id} at page {at_page}"])
        cut = at_page * self._page_bytes
        upper = Node(
            node_id=self._take_id(),
            parent=parent,
            edge=lower.edge[:cut],
            start_page=lower.start_page,
            end_page=lower.start_page + at_page,
            child_key=lower.child_key,
            values=[None] * len(lower.values),
            locks=list(lower.locks),
            last_access=lower.last_access,
            num_uses=lower.num_uses,
            priority=lower.priority,
            hashes=lower.hashes[:at_page],
        )
        for index, component in enumerate(self._components):
            value = lower.values[index]
            if value is not None:
                upper.values[index], lower.values[index] = component.split(value, at_page)
        self._nodes[upper.node_id] = upper
        parent.children[upper.child_key] = upper
        lower.parent = upper
        lower.edge = lower.edge[cut:]
        lower.start_page = upper.end_page
        lower.child_key = lower.edge[: self._page_bytes]
        lower.hashes = lower.hashes[at_page:]
        upper.children[lower.child_key] = lower
        self._refresh(upper)
        self._refresh(lower)
        self.epoch += 1
        return upper

    def remove_leaf(self, leaf: Node) -> None:
        """Take a leaf out whose values are gone; its last use becomes its parent's as well."""
        parent = leaf.parent
        if parent is None or leaf.children or any(value is not None for value in leaf.values):
            raise InvariantError([f"removal of node {leaf.node_id}, which is no empty leaf"])
        if self._event_log is not None:
            self._event_log.removed(leaf.hashes)
        del parent.children[leaf.child_key]
        del self._nodes[leaf.node_id]
        self._orders[0].discard(leaf.node_id)
        parent.last_access = max(parent.last_access, leaf.last_access)
        if not parent.children:
            self._refresh_backbone(parent)
        self.epoch += 1

    def put_value(self, node: Node, index: int, value: Int32Array | None) -> None:
        """Give a node another value of one component, or none."""
        counts = self.num_locked if node.locks[index] else self.num_unlocked
        old = node.values[index]
        counts[index] += (0 if value is None else len(value)) - (0 if old is None else len(old))
        node.values[index] = value
        if index:
            self._refresh_auxiliary(node, index)
        self.epoch += 1

    @staticmethod
    def use(node: Node, access: Access) -> None:
        """Note that one more request uses a node."""
        node.num_uses += 1
        node.last_access = max(node.last_access, access.tick)
        node.priority = max(node.priority, access.priority)

    def lock(self, index: int, path: Iterable[Node]) -> None:
        """Count one lock more of a component on each node of a path."""
        num_units = 0
        for node in path:
            node.locks[index] += 1
            if node.locks[index] == 1:
                num_units += self._turn(index, node)
        self.num_unlocked[index] -= num_units
        self.num_locked[index] += num_units

    def unlock(self, index: int, path: Iterable[Node]) -> None:
        """Count one lock less of a component on each node of a path."""
        num_units = 0
        for node in path:
            node.locks[index] -= 1
            if node.locks[index] == 0:
                num_units += self._turn(index, node)
        self.num_locked[index] -= num_units
        self.num_unlocked[index] += num_units

    def _turn(self, index: int, node: Node) -> int:
        """See to a node that has got its first lock or lost its last; give its units."""
        if index:
            self._refresh_auxiliary(node, index)
        elif not node.children:
            self._refresh_backbone(node)
        value = node.values[index]
        return 0 if value is None else len(value)

    def _take_id(self) -> NodeId:
        node_id = NodeId(self._next_node)
        self._next_node += 1
        return node_id

    def _refresh(self, node: Node) -> None:
        """Make a node a candidate of each component, or not, by the definition."""
        self._refresh_backbone(node)
        for index in range(1, len(self._orders)):
            self._refresh_auxiliary(node, index)

    def _refresh_backbone(self, node: Node) -> None:
        # A lock of another component never stands without one of the backbone.
        if node.children or node.locks[0] or node.parent is None:
            self._orders[0].discard(node.node_id)
        else:
            self._orders[0].add(node)

    def _refresh_auxiliary(self, node: Node, index: int) -> None:
        if node.values[index] is None or node.locks[index]:
            self._orders[index].discard(node.node_id)
        else:
            self._orders[index].add(node)
