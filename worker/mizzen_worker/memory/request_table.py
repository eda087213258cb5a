"""Owns request slots and the CPU mirror of their page-table rows; owns no page.

A slot's row says which page holds each of its positions, exactly as the runner was told by the
``PageWrite`` values made here. Invariants: slot 0 is never handed out; a free slot's row is zero;
a row changes through ``write`` only, so mirror and device cannot drift apart unseen.
"""

import numpy as np

from mizzen_worker.contracts.batch import Int32Array, Int64Array, PageWrite
from mizzen_worker.contracts.errors import InvariantError
from mizzen_worker.contracts.ids import SlotIndex


class RequestTable:
    """Slots 1..max_slots. Not thread safe: one loop owns it."""

    def __init__(self, *, max_slots: int, max_pages_per_slot: int) -> None:
        self._rows: Int32Array = np.zeros((max_slots + 1, max_pages_per_slot), dtype=np.int32)
        self._free = [SlotIndex(slot) for slot in range(max_slots, 0, -1)]
        self._taken: set[SlotIndex] = set()

    @property
    def max_slots(self) -> int:
        """The highest slot."""
        return len(self._rows) - 1

    @property
    def num_free(self) -> int:
        """Count slots that ``take`` can give."""
        return len(self._free)

    @property
    def num_taken(self) -> int:
        """Count slots in use."""
        return len(self._taken)

    def take(self) -> SlotIndex:
        """Hand out a slot with an empty row."""
        if not self._free:
            raise InvariantError(["take of a slot when none is free"])
        slot = self._free.pop()
        self._taken.add(slot)
        return slot

    def give_back(self, slot: SlotIndex) -> None:
        """Return a slot; its row is cleared."""
        if slot not in self._taken:
            raise InvariantError([f"give_back of slot {slot} that is not out"])
        self._taken.remove(slot)
        self._rows[slot] = 0
        self._free.append(slot)

    def write(self, slot: SlotIndex, first_page: int, pages: Int32Array) -> PageWrite:
        """Enter pages into a row and return the same change for the runner (owns its array)."""
        if slot not in self._taken:
            raise InvariantError([f"write to slot {slot} that is not out"])
        owned = pages.copy()
        self._rows[slot, first_page : first_page + len(owned)] = owned
        return PageWrite(slot=slot, first_page=first_page, pages=owned)

    def pages_at(self, slots: Int64Array, column: int) -> Int32Array:
        """Copy the page with number ``column`` of each of the ``slots`` [n]."""
        pages: Int32Array = self._rows[slots, column]
        return pages

    def row(self, slot: SlotIndex, num_pages: int) -> Int32Array:
        """Copy the first ``num_pages`` of a row."""
        return self._rows[slot, :num_pages].copy()
