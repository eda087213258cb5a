"""Owns the configuration of a front process, apart from its wiring: the launcher stays light."""

import msgspec

from mizzen_worker.observability.process_log import ProcessLog


class FrontSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All of a front process's configuration."""

    model: str
    served_name: str
    instance_id: str
    http_host: str
    http_port: int
    max_body_bytes: int
    max_live_requests: int
    resume_timeout_s: float
    workers: tuple[str, ...]
    curve_dir: str | None
    detokenizer: str
    log: ProcessLog
