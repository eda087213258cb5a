"""Owns the record of one request's KV pages; the controller alone changes it.

    pages [0, num_tree)          the tree's: read only, protected by ``receipt``
    pages [num_tree, num_pages)  this request's own, in no other lease and not in the tree
    pages [0, num_synced)        what the runner has been told about the slot's row

Invariants: num_tree <= num_pages; num_synced <= num_pages; a closed lease has no pages.
"""

import numpy as np

from mizzen_worker.cache.results import LockReceipt
from mizzen_worker.contracts.batch import Int32Array


class KvLease:
    """Pages of one request, in the order of its positions."""

    __slots__ = (
        "_pages",
        "boundary",
        "is_open",
        "lease_id",
        "num_pages",
        "num_synced",
        "num_tree",
        "priority",
        "receipt",
    )

    def __init__(
        self,
        *,
        lease_id: int,
        receipt: LockReceipt,
        pages: Int32Array,
        priority: int,
        boundary: int,
    ) -> None:
        self.lease_id = lease_id
        self.priority = priority
        self.boundary = boundary
        """Whole pages of the prompt; what comes after them is the answer."""
        self.receipt = receipt
        self.num_tree = len(pages)
        self.num_pages = len(pages)
        self.num_synced = 0
        self.is_open = True
        self._pages = pages

    def pages(self, first: int, end: int) -> Int32Array:
        """View pages [first, end) of the lease; copy what is to be kept."""
        return self._pages[first:end]

    def append(self, pages: Int32Array) -> None:
        """Add own pages at the end (controller only)."""
        needed = self.num_pages + len(pages)
        if needed > len(self._pages):
            grown = np.empty(max(needed, 2 * len(self._pages), 16), dtype=np.int32)
            grown[: self.num_pages] = self._pages[: self.num_pages]
            self._pages = grown
        self._pages[self.num_pages : needed] = pages
        self.num_pages = needed

    def adopt(self, pages: Int32Array, receipt: LockReceipt) -> None:
        """Let the ``len(pages)`` pages after the tree's become the tree's too (controller only)."""
        first, end = self.num_tree, self.num_tree + len(pages)
        changed = np.flatnonzero(self._pages[first:end] != pages)
        if len(changed):
            self._pages[first:end] = pages
            self.num_synced = min(self.num_synced, first + int(changed[0]))
        self.num_tree = end
        self.receipt = receipt

    def close(self) -> None:
        """Forget every page (controller only)."""
        self.num_tree = self.num_pages = self.num_synced = 0
        self.is_open = False
