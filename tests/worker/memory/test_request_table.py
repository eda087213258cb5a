"""Slots and the mirror of their rows."""

import numpy as np
import pytest

from mizzen_worker.contracts.errors import InvariantError
from mizzen_worker.contracts.ids import SlotIndex
from mizzen_worker.memory.request_table import RequestTable


def test_a_write_is_mirrored_and_told_with_memory_of_its_own() -> None:
    table = RequestTable(max_slots=2, max_pages_per_slot=4)
    slot = table.take()
    pages = np.array([7, 8], dtype=np.int32)
    told = table.write(slot, 1, pages)
    pages[:] = 0
    assert (told.slot, told.first_page, told.pages.tolist()) == (slot, 1, [7, 8])
    assert table.row(slot, 4).tolist() == [0, 7, 8, 0]


def test_slots_are_distinct_and_come_back_empty() -> None:
    table = RequestTable(max_slots=2, max_pages_per_slot=4)
    slots = {table.take(), table.take()}
    assert slots == {1, 2}
    with pytest.raises(InvariantError, match="none is free"):
        table.take()
    table.write(SlotIndex(1), 0, np.array([5], dtype=np.int32))
    table.give_back(SlotIndex(1))
    with pytest.raises(InvariantError, match="not out"):
        table.give_back(SlotIndex(1))
    assert table.row(table.take(), 1).tolist() == [0]
