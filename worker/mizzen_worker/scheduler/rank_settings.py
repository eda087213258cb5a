"""Owns the configuration of a rank's process; apart from its wiring, which imports torch."""

import msgspec

from mizzen_worker.observability.process_log import ProcessLog


class RankSettings(msgspec.Struct, frozen=True, kw_only=True):
    """All of it; fields are named like the flags they come from."""

    model: str
    served_name: str
    instance_id: str
    listen: str
    curve_dir: str | None
    context_length: int | None
    page_size: int
    kv_tokens: int
    max_running_requests: int
    max_queued_requests: int
    max_chunk_tokens: int
    dtype: str
    load_format: str
    device: str
    threads: int
    log: ProcessLog
