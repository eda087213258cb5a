"""Owns the numbered record of pages that came into the tree and left it; sends nothing.

A ring: the newest ``capacity`` events are kept. Invariants: numbers have no gap; a page's removal
follows its storing; pages come after the ones they follow and go before them.
"""

from collections import deque
from itertools import islice

from mizzen_worker.contracts.cache_events import CacheEvent, PagesRemoved, PagesStored


class EventLog:
    """The events of one tree. Not thread safe."""

    def __init__(self, *, capacity: int) -> None:
        self._events: deque[CacheEvent] = deque(maxlen=capacity)
        self.next_sequence = 0
        """Number of the event that comes next."""

    @property
    def first_sequence(self) -> int:
        """Number of the oldest event that is kept."""
        return self.next_sequence - len(self._events)

    def stored(self, parent: bytes, hashes: tuple[bytes, ...]) -> None:
        """Note pages that are cached now, one after the other from ``parent`` on."""
        self._add(PagesStored(parent=parent, hashes=hashes))

    def removed(self, hashes: tuple[bytes, ...]) -> None:
        """Note pages that are gone."""
        self._add(PagesRemoved(hashes=hashes))

    def since(self, sequence: int) -> tuple[CacheEvent, ...] | None:
        """Give the events from a number on; None where some of them are not kept any more, or
        where the number is one that was never given."""
        if not self.first_sequence <= sequence <= self.next_sequence:
            return None
        return tuple(islice(self._events, sequence - self.first_sequence, None))

    def _add(self, event: CacheEvent) -> None:
        self._events.append(event)
        self.next_sequence += 1
