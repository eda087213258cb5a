"""Owns the record of one tree node; only the tree core holds one, everybody else a ``NodeId``.

``end_page`` counts pages from the root to the end of the node's edge and never changes: a split
gives the upper half a new id and leaves the lower half its own, so an id always ends where it did.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from mizzen_worker.contracts.batch import Int32Array
from mizzen_worker.contracts.ids import NodeId, Tick


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """A frozen copy of a node for audits and tests."""

    node_id: NodeId
    parent_id: NodeId | None
    child_ids: tuple[NodeId, ...]
    child_keys: tuple[bytes, ...]
    child_key: bytes
    edge: bytes
    start_page: int
    end_page: int
    values: tuple[Int32Array | None, ...]
    locks: tuple[int, ...]
    last_access: Tick
    num_uses: int
    priority: int
    hashes: tuple[bytes, ...]


@dataclass(slots=True, kw_only=True, eq=False)
class Node:
    """One edge of the tree and, per component (by index), its value and lock count."""

    node_id: NodeId
    parent: "Node | None"
    edge: bytes
    start_page: int
    end_page: int
    child_key: bytes
    """Key under which the parent holds this node: first page, namespace before it at the root."""
    values: list[Int32Array | None]
    locks: list[int]
    last_access: Tick
    """True of a leaf; an inner node learns of uses below it when its last child leaves."""
    num_uses: int
    """Requests that made it, leased it, or computed the same again."""
    priority: int
    """The highest of those requests."""
    hashes: tuple[bytes, ...]
    """Names of its pages outside, one each; none where no events are recorded."""
    children: "dict[bytes, Node]" = field(default_factory=dict)

    def view(self) -> NodeView:
        """Copy the node; the arrays are shared and not to be written."""
        return NodeView(
            node_id=self.node_id,
            parent_id=None if self.parent is None else self.parent.node_id,
            child_ids=tuple(child.node_id for child in self.children.values()),
            child_keys=tuple(self.children),
            child_key=self.child_key,
            edge=self.edge,
            start_page=self.start_page,
            end_page=self.end_page,
            values=tuple(self.values),
            locks=tuple(self.locks),
            last_access=self.last_access,
            num_uses=self.num_uses,
            priority=self.priority,
            hashes=self.hashes,
        )


def up(node: Node, top_page: int = 0) -> Iterator[Node]:
    """Walk from a node up while its edge starts at ``top_page`` or below; never gives the root."""
    while node.parent is not None and node.start_page >= top_page:
        yield node
        node = node.parent
