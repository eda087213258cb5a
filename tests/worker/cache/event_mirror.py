"""A subscriber's side of the cache events: what a router would keep, and checks of what it is told.

It knows only what arrived. ``take`` says whether something is missing and has to be asked for.
"""

from collections.abc import Iterable

from mizzen_worker.contracts.cache_events import (
    CACHE_EVENTS_VERSION,
    CacheEvent,
    EventBatch,
    FromCache,
    PagesRemoved,
    PagesStored,
    ReplayRequest,
    Snapshot,
)
from mizzen_worker.contracts.ids import InstanceId


class EventMirror:
    """The names of one worker's cached pages, as told."""

    def __init__(self) -> None:
        self.hashes: set[bytes] = set()
        self.namespaces: set[bytes] = set()
        self.instance_id = InstanceId("")
        self.next_sequence = 0
        self.num_snapshots = 0
        self.num_replayed = 0

    def question(self) -> ReplayRequest:
        return ReplayRequest(
            version=CACHE_EVENTS_VERSION,
            instance_id=self.instance_id,
            sequence=self.next_sequence,
        )

    def take(self, message: FromCache) -> bool:
        """Apply a message; False when something before it is missing."""
        assert message.version == CACHE_EVENTS_VERSION
        if isinstance(message, Snapshot):
            self.num_snapshots += 1
            self.instance_id, self.next_sequence = message.instance_id, message.sequence
            self.hashes = set(message.hashes)
            assert len(self.hashes) == len(message.hashes), "a page twice in a snapshot"
            return True
        is_next = message.sequence <= self.next_sequence
        if message.instance_id != self.instance_id or not is_next:
            return False
        self.apply(message.events[self.next_sequence - message.sequence :])
        return True

    def take_replay(self, message: FromCache) -> None:
        before = self.next_sequence
        assert self.take(message), "an answer that does not join on"
        if isinstance(message, EventBatch):
            self.num_replayed += self.next_sequence - before

    def apply(self, events: Iterable[CacheEvent]) -> None:
        for event in events:
            match event:
                case PagesStored():
                    if event.parent not in self.hashes:
                        self.namespaces.add(event.parent)
                    assert not self.hashes & set(event.hashes), "stored twice"
                    self.hashes |= set(event.hashes)
                case PagesRemoved():
                    assert set(event.hashes) <= self.hashes, "removed what was not stored"
                    self.hashes -= set(event.hashes)
            self.next_sequence += 1
