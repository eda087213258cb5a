"""Owns how far the cache's events have been told, and the answers to who missed some.

Owns neither events (``cache/events.py``) nor sockets (``ipc/event_publisher.py``). Invariant: what
is published are the events in order, each once; a gap is only where the ring was overrun.
"""

import logging

from mizzen_worker.cache.controller import UnifiedRadixCache
from mizzen_worker.cache.events import EventLog
from mizzen_worker.contracts.cache_events import (
    CACHE_EVENTS_VERSION,
    EventBatch,
    FromCache,
    Snapshot,
)
from mizzen_worker.contracts.errors import WireError
from mizzen_worker.contracts.ids import InstanceId
from mizzen_worker.ipc.codec import cache_question_codec, from_cache_codec
from mizzen_worker.ipc.event_publisher import EventPublisher

logger = logging.getLogger(__name__)


class CacheFeed:
    """Tells the world what one cache holds. Called between iterations of the loop."""

    def __init__(
        self,
        *,
        cache: UnifiedRadixCache,
        log: EventLog,
        publisher: EventPublisher,
        instance_id: InstanceId,
    ) -> None:
        self._cache = cache
        self._log = log
        self._publisher = publisher
        self._instance_id = instance_id
        self._encode = from_cache_codec().encode
        self._decode = cache_question_codec().decode
        self._num_told = 0

    def turn(self) -> None:
        """Publish what is new, and answer one question: an answer may be long."""
        if self._num_told < self._log.next_sequence:
            batch = self._since(max(self._num_told, self._log.first_sequence))
            if batch is not None:
                self._publisher.publish(self._encode(batch))
            self._num_told = self._log.next_sequence
        question = self._publisher.question()
        if question is None:
            return
        peer, payload = question
        try:
            wanted = self._decode(payload)
        except WireError as error:
            logger.warning("refused a malformed question", extra={"detail": str(error)})
            return
        is_ours = wanted.instance_id == self._instance_id
        answer: FromCache | None = self._since(wanted.sequence) if is_ours else None
        self._publisher.answer(peer, self._encode(answer or self._snapshot()))

    def _since(self, sequence: int) -> EventBatch | None:
        events = self._log.since(sequence)
        if events is None:
            return None
        return EventBatch(
            version=CACHE_EVENTS_VERSION,
            instance_id=self._instance_id,
            sequence=sequence,
            events=events,
        )

    def _snapshot(self) -> Snapshot:
        return Snapshot(
            version=CACHE_EVENTS_VERSION,
            instance_id=self._instance_id,
            sequence=self._log.next_sequence,
            page_size=self._cache.page_size,
            hashes=self._cache.hashes(),
        )
