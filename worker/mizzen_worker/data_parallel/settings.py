"""Owns the configuration of the controller process, apart from its wiring."""

import msgspec

from mizzen_worker.observability.process_log import ProcessLog


class ControllerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Where tokenizers come to, and where the ranks are."""

    instance_id: str
    listen: str
    curve_dir: str | None
    ranks: tuple[str, ...]
    log: ProcessLog
