"""Owns the configuration of a front process, apart from its wiring: the launcher stays light."""

import msgspec

from mizzen_worker.config.groups import HttpOptions
from mizzen_worker.observability.process_log import ProcessLog
from mizzen_worker.observability.tracing import TraceSettings


class FrontSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All of a front process's configuration.

    ``http_fd`` is the inherited listening socket that all fronts share, ``launcher`` the path of
    the socket on which the launcher answers its own fronts; None where there is only this one.
    """

    model: str
    skip_tokenizer: bool
    served_name: str
    instance_id: str
    http: HttpOptions
    http_fd: int
    workers: tuple[str, ...]
    curve_dir: str | None
    detokenizer: str
    launcher: str | None
    log: ProcessLog
    trace: TraceSettings | None
