"""Owns what a worker tells about its cached pages, and what is asked about it; owns no transport.

Pages are named by a hash chain over namespace and tokens (``cache/page_key.py``). The events of one
life of a worker are numbered from 0 without a gap. Whoever applies them in order to a ``Snapshot``
holds exactly the names of the pages that are cached. Structs cross the wire map-encoded.
"""

import msgspec

from mizzen_worker.contracts.ids import InstanceId

CACHE_EVENTS_VERSION = 1


class PagesStored(msgspec.Struct, frozen=True, kw_only=True, tag="stored"):
    """Pages are cached now; each follows the one before, the first one ``parent``.

    ``parent`` is the name of a page that is cached, or the digest of a namespace.
    """

    parent: bytes
    hashes: tuple[bytes, ...]


class PagesRemoved(msgspec.Struct, frozen=True, kw_only=True, tag="removed"):
    """Pages are not cached any more, nor is any that followed them."""

    hashes: tuple[bytes, ...]


CacheEvent = PagesStored | PagesRemoved


class EventBatch(msgspec.Struct, frozen=True, kw_only=True, tag="batch"):
    """Worker to everybody: events ``sequence``, ``sequence + 1`` and so on."""

    version: int
    instance_id: InstanceId
    sequence: int
    events: tuple[CacheEvent, ...]


class Snapshot(msgspec.Struct, frozen=True, kw_only=True, tag="snapshot"):
    """Worker to one who asked: start again from this; ``sequence`` is the first event after it.

    A page comes after the one that it follows.
    """

    version: int
    instance_id: InstanceId
    sequence: int
    page_size: int
    hashes: tuple[bytes, ...]


FromCache = EventBatch | Snapshot


class ReplayRequest(msgspec.Struct, frozen=True, kw_only=True, tag="replay"):
    """To a worker: give me the events from ``sequence`` on, of the life ``instance_id``.

    Answered by an ``EventBatch``, or by a ``Snapshot`` where those events are not kept any more
    or are of another life (an empty ``instance_id`` is nobody's).
    """

    version: int
    instance_id: InstanceId
    sequence: int
