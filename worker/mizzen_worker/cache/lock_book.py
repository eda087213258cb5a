"""Owns the receipts of locks on a tree's paths; owns no node and decides on no position.

Invariants: lock counts on nodes are those of the receipts outstanding; a receipt's node ends at its
``num_pages``; the backbone is locked up to the root wherever another component is locked.
"""

from collections.abc import Sequence

from mizzen_worker.cache.components.base import Component
from mizzen_worker.cache.node import Node, up
from mizzen_worker.cache.node_table import NodeTable
from mizzen_worker.cache.results import LockReceipt
from mizzen_worker.contracts.errors import InvariantError


class LockBook:
    """Who has locked what, of one tree."""

    def __init__(self, *, table: NodeTable, components: Sequence[Component]) -> None:
        self._table = table
        self._components = components
        self._next_receipt = 1
        self._receipts: dict[int, LockReceipt] = {}

    def outstanding(self) -> tuple[LockReceipt, ...]:
        """Copy the receipts that are still to be given back."""
        return tuple(self._receipts.values())

    def node_of(self, receipt: LockReceipt) -> Node:
        """Find the node that an outstanding receipt locks; raises for any other."""
        node = self._table.get(receipt.node)
        if self._receipts.get(receipt.receipt_id) != receipt or node is None:
            raise InvariantError([f"a receipt that is not outstanding: {receipt}"])
        return node

    def first_page_alone(self, receipt: LockReceipt) -> int:
        """Find the page from which on the backbone is locked by this receipt only."""
        first = receipt.num_pages
        for step in up(self.node_of(receipt)):
            if step.locks[0] > 1:
                break
            first = step.start_page
        return first

    def lock(self, node: Node) -> LockReceipt:
        """Lock the path to the end of a node, as far as each component needs it."""
        tops = tuple(self._lock_path(index, node) for index in range(len(self._components)))
        return self._issue(node, tops)

    def move_down(self, receipt: LockReceipt, node: Node) -> LockReceipt:
        """Exchange a receipt for one on ``node`` at or below its end. O(nodes between)."""
        old = self.node_of(receipt)
        # The backbone stays locked above the old end; other components lock as from new.
        self._table.lock(0, up(node, receipt.num_pages))
        auxiliary = range(1, len(self._components))
        tops = (receipt.tops[0], *(self._lock_path(index, node) for index in auxiliary))
        for index in auxiliary:
            self._unlock_path(index, old, receipt.tops[index])
        del self._receipts[receipt.receipt_id]
        return self._issue(node, tops)

    def unlock(self, receipt: LockReceipt) -> None:
        """Undo exactly what was locked, whatever was split since; a second time raises."""
        node = self.node_of(receipt)
        del self._receipts[receipt.receipt_id]
        # The backbone last: no other component may stay locked alone.
        for index in reversed(range(len(self._components))):
            self._unlock_path(index, node, receipt.tops[index])

    def _issue(self, node: Node, tops: tuple[int, ...]) -> LockReceipt:
        receipt = LockReceipt(
            receipt_id=self._next_receipt, node=node.node_id, num_pages=node.end_page, tops=tops
        )
        self._next_receipt += 1
        self._receipts[receipt.receipt_id] = receipt
        return receipt

    def _lock_path(self, index: int, node: Node) -> int:
        """Lock what one component needs from ``node`` up; return the first page covered."""
        walk = self._components[index].start_lock()
        if walk is None:
            self._table.lock(index, up(node))
            return 0
        path = []
        top = node.end_page
        for step in up(node):
            if not walk.covers(step.end_page - step.start_page):
                break
            path.append(step)
            top = step.start_page
        self._table.lock(index, path)
        return top

    def _unlock_path(self, index: int, node: Node, top_page: int) -> None:
        self._table.unlock(index, up(node, top_page))
