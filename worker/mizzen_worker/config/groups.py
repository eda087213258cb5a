"""Owns the typed groups of configuration, as the rest of the package gets them; owns no parsing.

Frozen and small: a component is given the one group it needs. Fields are named like their flags;
defaults are in the table (``options.py``), so that help, file and code cannot differ.
"""

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelOptions:
    """What is served."""

    model: Path
    served_model_name: str
    skip_tokenizer: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """The public port and the bounds of a front process."""

    http_host: str
    http_port: int
    max_body_bytes: int
    max_live_requests: int
    resume_timeout_s: float
    tokenizer_workers: int
    api_key_file: str | None
    admin_key_file: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminOptions:
    """The launcher's own port, and how it ends."""

    admin_host: str
    admin_port: int
    drain_mode: str
    drain_deadline_s: float
    stuck_limit_s: float
    loading_limit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class WireOptions:
    """How tokenizers and workers reach each other."""

    listen: str
    workers: tuple[str, ...]
    curve_dir: Path | None
    insecure: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineOptions:
    """Sizes and types of a worker; ``kv_tokens`` None is found out when it starts."""

    context_length: int | None
    page_size: int
    kv_tokens: int | None
    memory_fraction: float
    max_running_requests: int
    max_queued_requests: int
    schedule_policy: str
    queue_ageing_s: float
    priority_preemption: bool
    cache_eviction: str
    cache_events: str | None
    max_chunk_tokens: int
    decode_patience_s: float
    overlap: str
    cuda_graphs: str
    compile_cache: str | None
    dtype: str
    kv_dtype: str
    quantization: str
    load_format: str
    deterministic: bool
    device: str
    threads: int
    tensor_parallel_size: int
    pipeline_parallel_size: int
    data_parallel_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankOptions:
    """How the ranks of a tensor-parallel group meet and watch each other."""

    rank_host: str | None
    rank_port: int
    rendezvous_timeout_s: float
    rank_heartbeat_limit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LogOptions:
    """How log lines look, and where traces go."""

    log_level: str
    log_format: str
    trace_endpoint: str | None
    trace_sampling: float


OptionGroup = type[
    ModelOptions
    | HttpOptions
    | AdminOptions
    | WireOptions
    | EngineOptions
    | RankOptions
    | LogOptions
]
