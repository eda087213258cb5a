"""Owns the configuration of a rank's process; apart from its wiring, which imports torch."""

from dataclasses import replace

import msgspec

from mizzen_worker.config.groups import EngineOptions
from mizzen_worker.ipc.link import rank_events_address
from mizzen_worker.observability.process_log import ProcessLog
from mizzen_worker.observability.tracing import TraceSettings
from mizzen_worker.rank_group.place import RankPlace


class RankSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    model: str
    skip_tokenizer: bool
    served_name: str
    instance_id: str
    listen: str
    curve_dir: str | None
    engine: EngineOptions
    """``threads`` 0 is this rank's share of the cores there are."""
    log: ProcessLog
    trace: TraceSettings | None
    num_local_ranks: int = 1
    """Ranks of this node, which share its cores."""
    place: RankPlace | None = None
    """None for a rank that is no group's."""


class FollowerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The configuration of a process that replays a leader's steps; fields as in the leader's."""

    model: str
    curve_dir: str | None
    engine: EngineOptions
    log: ProcessLog
    num_local_ranks: int
    place: RankPlace


def rank_share(engine: EngineOptions, *, rank: int, num_ranks: int) -> EngineOptions:
    """Give one of ``num_ranks`` of this machine its share of threads, its own place for events.

    ``rank`` counts copies of the model. A rank's GPU is the only one that it sees, so ``cuda`` is
    right for each.
    """
    threads = 0 if engine.threads == 0 else max(1, engine.threads // num_ranks)
    events = engine.cache_events
    if events is not None:
        events = rank_events_address(events, rank)
    return replace(engine, threads=threads, cache_events=events)
