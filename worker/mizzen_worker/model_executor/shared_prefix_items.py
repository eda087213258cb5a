"""Owns the cutting of groups that share pages into items of work; pure, knows no tensors.

An item has at most ``SHARED_ITEM_ROWS`` rows. Where a captured step has room for a bounded number
of items, those that save most are kept; rows of the others read their pages themselves.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mizzen_worker.contracts.batch import Int32Array, PrefixGroup
from mizzen_worker.memory.forward_batch import SHARED_ITEM_ROWS


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedWork:
    """As ``SharedPrefixes``, on the host. Items beyond ``num_items`` have no rows."""

    num_items: int
    items: Int32Array
    row_tokens: Int32Array

    def words(self) -> Int32Array:
        """[1 + 3 * max_items + num_rows]: number, items and rows one after the other."""
        return np.concatenate(
            [np.array([self.num_items], dtype=np.int32), self.items.ravel(), self.row_tokens]
        )


def num_shared_items(groups: Sequence[PrefixGroup]) -> int:
    """Items that hold all rows of the groups."""
    return sum(-(-group.count // SHARED_ITEM_ROWS) for group in groups)


def shared_work_items(groups: Sequence[PrefixGroup], num_rows: int, max_items: int) -> SharedWork:
    """Cut ``groups`` of ``num_rows`` decode rows into at most ``max_items`` items."""
    cut = [
        (first, min(SHARED_ITEM_ROWS, group.first + group.count - first), group.num_tokens)
        for group in groups
        for first in range(group.first, group.first + group.count, SHARED_ITEM_ROWS)
    ]
    if len(cut) > max_items:
        # What is read once for a lone row saves nothing.
        cut = sorted(cut, key=lambda item: (item[1] - 1) * item[2], reverse=True)[:max_items]
    items = np.zeros((max_items, 3), dtype=np.int32)
    row_tokens = np.zeros(num_rows, dtype=np.int32)
    for number, (first, count, num_tokens) in enumerate(cut):
        items[number] = (first, count, num_tokens)
        row_tokens[first : first + count] = num_tokens
    return SharedWork(num_items=len(cut), items=items, row_tokens=row_tokens)
