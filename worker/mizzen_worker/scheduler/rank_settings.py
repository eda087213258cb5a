"""Owns the configuration of a rank's process; apart from its wiring, which imports torch."""

from dataclasses import replace

import msgspec

from mizzen_worker.config.groups import EngineOptions
from mizzen_worker.ipc.link import rank_events_address
from mizzen_worker.observability.process_log import ProcessLog
from mizzen_worker.observability.tracing import TraceSettings


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


def rank_share(engine: EngineOptions, *, rank: int, num_ranks: int) -> EngineOptions:
    """Give one of several ranks its own place for events and share of threads.

    Its GPU is the only one that it sees, so ``cuda`` is right for each.
    """
    threads = 0 if engine.threads == 0 else max(1, engine.threads // num_ranks)
    events = engine.cache_events
    if events is not None:
        events = rank_events_address(events, rank)
    return replace(engine, threads=threads, cache_events=events)
