"""Owns the configuration of a rank's process; apart from its wiring, which imports torch."""

import msgspec

from mizzen_worker.config.groups import EngineOptions
from mizzen_worker.observability.process_log import ProcessLog


class RankSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All of it."""

    model: str
    served_name: str
    instance_id: str
    listen: str
    curve_dir: str | None
    engine: EngineOptions
    log: ProcessLog
