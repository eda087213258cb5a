"""Owns which running requests read the same first pages, and the order of decode rows by it.

Decides nothing about who runs. Two requests share their first n pages exactly where the n-th page
of both is the same page of the tree: a page of the tree has one path to the root. So pages are
compared as numbers, in the request table's rows; of a row only what is both the tree's and told to
the runner counts (``_depths``): what lies behind may be a page that somebody else has by now.

Requests that share ``GroupRule.min_tokens`` are found by one page of each (``_keys``) in every step
whose rows are not those of the step before. How far they share, and whether some of them share so
much more that groups of these save more, is worked out only for those among whom something changed.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from mizzen_worker.cache.lease import KvLease
from mizzen_worker.contracts.batch import Int32Array, Int64Array, PrefixGroup
from mizzen_worker.contracts.ids import SlotIndex
from mizzen_worker.memory.request_table import RequestTable
from mizzen_worker.memory.sizing import pages_for_tokens

_MAX_LEVELS = 8
"""Branchings of the tree, one below the other, at which groups are looked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRule:
    """From how many rows, and how many shared positions, reading them once for all pays.

    Measured on an H200 with 32 and 256 rows: groups of 8 gain from 512 positions on at either, of 4
    only with 1,024 positions and many rows.
    """

    min_rows: int = 8
    min_tokens: int = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """Slots of decode rows in an order in which those of a group are neighbours."""

    slots: Int64Array
    groups: tuple[PrefixGroup, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """An arrangement of some slots; ``num_saved`` pages need not be read again in its groups."""

    slots: Int64Array
    groups: tuple[PrefixGroup, ...]
    num_saved: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Known:
    """What was worked out for the slots of one key."""

    members: bytes
    part: _Part


class PrefixGroups:
    """Groups over one request table. Not thread safe: one loop owns it."""

    def __init__(self, *, table: RequestTable, page_size: int, rule: GroupRule) -> None:
        rows = table.max_slots + 1
        self._table = table
        self._page_size = page_size
        self._min_rows = max(rule.min_rows, 2)
        self._least_pages = pages_for_tokens(max(rule.min_tokens, 1), page_size=page_size)
        self._depths: Int64Array = np.zeros(rows, dtype=np.int64)
        """Pages of each slot that may be compared."""
        self._keys: Int32Array = np.zeros(rows, dtype=np.int32)
        """The last of the least pages to share, 0 where a slot has not so many."""
        self._known: dict[int, _Known] = {}
        self._due: Int64Array = np.empty(0, dtype=np.int64)
        self._arrangement = Arrangement(slots=self._due, groups=())
        self._is_stale = False

    def note(self, slot: SlotIndex, lease: KvLease) -> None:
        """The tree's pages of a running request, or what the runner was told of them, changed."""
        self._forget_key(slot)
        depth = min(lease.num_tree, lease.num_synced)
        self._depths[slot] = depth
        has_key = depth >= self._least_pages
        key = lease.pages(self._least_pages - 1, self._least_pages)[0] if has_key else 0
        self._keys[slot] = key
        self._forget_key(slot)

    def forget(self, slot: SlotIndex) -> None:
        """The slot's request is gone."""
        self._forget_key(slot)
        # A step without decode rows is not arranged: the next may have other requests in its slots.
        self._is_stale = True
        self._depths[slot] = 0
        self._keys[slot] = 0

    def _forget_key(self, slot: SlotIndex) -> None:
        key = int(self._keys[slot])
        if key:
            self._known.pop(key, None)
            self._is_stale = True

    def arrange(self, due: Int64Array, lengths: Int64Array) -> Arrangement:
        """Order the slots of decode rows, and say which of them share; ``due`` is not changed.

        ``lengths`` is by slot. Rows all grow by one in a step, so their order stays true while they
        are the same rows; a step that leaves all of them out changes nothing.
        """
        if self._is_stale or not np.array_equal(due, self._due):
            self._due, self._arrangement = due, self._arrange(due, lengths[due])
            self._is_stale = False
        return self._arrangement

    def _arrange(self, due: Int64Array, lengths: Int64Array) -> Arrangement:
        slots = due[np.argsort(-lengths, kind="stable")]
        keys = self._keys[slots]
        if np.count_nonzero(keys) < self._min_rows:
            self._known = {}
            return Arrangement(slots=slots, groups=())
        order = np.argsort(keys, kind="stable")
        is_alone = np.ones(len(slots), dtype=np.bool_)
        known: dict[int, _Known] = {}
        for first, end in _runs(keys[order], self._min_rows):
            key = int(keys[order[first]])
            if key == 0:
                continue
            is_alone[order[first:end]] = False
            members = slots[order[first:end]]
            entry = self._known.get(key)
            if entry is None or entry.members != members.tobytes():
                part = self._part(members, self._least_pages, _MAX_LEVELS)
                entry = _Known(members=members.tobytes(), part=part)
            known[key] = entry
        self._known = known
        parts = [entry.part for entry in known.values()]
        alone = slots[is_alone]
        return Arrangement(
            slots=np.concatenate([alone, *(part.slots for part in parts)]),
            groups=_joined(parts, len(alone)),
        )

    def _part(self, members: Int64Array, num_common: int, num_levels: int) -> _Part:
        """Arrange slots that have their first ``num_common`` pages in common.

        One group of all of them, or groups of those that go on together, whatever saves more.
        """
        depths = self._depths[members]
        num_common = self._num_common(members, num_common, int(depths.min()))
        group = PrefixGroup(first=0, count=len(members), num_tokens=num_common * self._page_size)
        whole = _Part(slots=members, groups=(group,), num_saved=(len(members) - 1) * num_common)
        is_longer = depths > num_common
        if num_levels == 0 or np.count_nonzero(is_longer) < self._min_rows:
            return whole
        longer = members[is_longer]
        pages = self._table.pages_at(longer, num_common)
        order = np.argsort(pages, kind="stable")
        longer = longer[order]
        parts: list[_Part] = []
        rest = [members[~is_longer]]
        after = 0
        for first, end in _runs(pages[order], self._min_rows):
            parts.append(self._part(longer[first:end], num_common + 1, num_levels - 1))
            rest.append(longer[after:first])
            after = end
        rest.append(longer[after:])
        slots = np.concatenate([*(part.slots for part in parts), *rest])
        num_saved = sum(part.num_saved for part in parts)
        if num_saved <= whole.num_saved:
            # Also within the group those that share more are neighbours.
            return replace(whole, slots=slots)
        return _Part(slots=slots, groups=_joined(parts, 0), num_saved=num_saved)

    def _num_common(self, slots: Int64Array, low: int, high: int) -> int:
        """The most pages, ``low`` to ``high``, that all have in common; ``low`` they have."""
        is_first = True
        while low < high:
            middle = high if is_first else (low + high + 1) // 2
            is_first = False
            pages = self._table.pages_at(slots, middle - 1)
            if (pages == pages[0]).all():
                low = middle
            else:
                high = middle - 1
        return low


def _runs(values: npt.NDArray[np.signedinteger], min_length: int) -> Iterator[tuple[int, int]]:
    """(first, end) of the runs of equal neighbours that are long enough."""
    ends = np.flatnonzero(np.diff(values, append=values[-1:] + 1)) + 1
    firsts = np.concatenate([[0], ends[:-1]])
    is_long = ends - firsts >= min_length
    return zip(firsts[is_long].tolist(), ends[is_long].tolist(), strict=True)


def _joined(parts: Sequence[_Part], first: int) -> tuple[PrefixGroup, ...]:
    """The groups of parts that lie one after the other, from row ``first`` on."""
    groups: list[PrefixGroup] = []
    for part in parts:
        groups += [replace(group, first=group.first + first) for group in part.groups]
        first += len(part.slots)
    return tuple(groups)
