"""Owns the command lines: spec → arguments of ``mizzen serve``, ``worker`` and ``tokenizer``.

Does not own flags' spelling (``worker_contract``). Arguments that a user wrote come last.
"""

import math

from mizzen_operator.render.names import leader_service_name
from mizzen_operator.render.pod import DIR_KEYS, drain_seconds, model_path
from mizzen_operator.spec.quantity import quantity_value
from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.worker_contract import (
    DEVICE_CPU,
    DEVICE_GPU,
    DRAIN_FINISH,
    DRAIN_HANDBACK,
    FLAG_ADMIN_HOST,
    FLAG_ADMIN_PORT,
    FLAG_CONTEXT_LENGTH,
    FLAG_CURVE_DIR,
    FLAG_DATA_PARALLEL,
    FLAG_DEVICE,
    FLAG_DRAIN_DEADLINE,
    FLAG_DRAIN_MODE,
    FLAG_DTYPE,
    FLAG_HTTP_HOST,
    FLAG_HTTP_PORT,
    FLAG_KV_TOKENS,
    FLAG_LISTEN,
    FLAG_MODEL,
    FLAG_PAGE_SIZE,
    FLAG_PIPELINE_PARALLEL,
    FLAG_RANK_PORT,
    FLAG_RENDEZVOUS_TIMEOUT,
    FLAG_SERVED_MODEL_NAME,
    FLAG_TENSOR_PARALLEL,
    FLAG_THREADS,
    FLAG_WORKERS,
    PORT_ADMIN,
    PORT_HTTP,
    PORT_RANKS,
    PORT_WORKER,
)

ANY_ADDRESS = "0.0.0.0"
RENDEZVOUS_MARGIN_S = 30
"""Seconds by which ranks give up sooner than the kubelet, so that they say whom they missed."""


def unified_args(resolved: Resolved) -> tuple[str, ...]:
    """Arguments of a pod that serves everything."""
    return (
        *_model(resolved),
        *_http(resolved),
        *_admin(resolved, DRAIN_FINISH),
        *_engine(resolved),
    )


def worker_args(resolved: Resolved) -> tuple[str, ...]:
    """Arguments of a worker pod of topology Split."""
    listen = (FLAG_LISTEN, f"tcp://{ANY_ADDRESS}:{PORT_WORKER}", FLAG_CURVE_DIR, DIR_KEYS)
    return (
        *_model(resolved),
        *listen,
        *_ranks(resolved),
        *_admin(resolved, DRAIN_HANDBACK),
        *_engine(resolved),
    )


def tokenizer_args(resolved: Resolved) -> tuple[str, ...]:
    """Arguments of a tokenizer pod."""
    leaders = f"{leader_service_name(resolved, resolved.cohort)}.{resolved.namespace}.svc"
    workers = (FLAG_WORKERS, f"tcp://{leaders}:{PORT_WORKER}", FLAG_CURVE_DIR, DIR_KEYS)
    return (*_model(resolved), *_http(resolved), *_admin(resolved, DRAIN_FINISH), *workers)


def _model(resolved: Resolved) -> tuple[str, ...]:
    return (FLAG_MODEL, model_path(resolved))


def _http(resolved: Resolved) -> tuple[str, ...]:
    return (
        *(FLAG_SERVED_MODEL_NAME, resolved.served_name),
        *(FLAG_HTTP_HOST, ANY_ADDRESS, FLAG_HTTP_PORT, str(PORT_HTTP)),
    )


def _admin(resolved: Resolved, drain_mode: str) -> tuple[str, ...]:
    """A worker hands its requests back to be resumed; clients' own streams can only be finished."""
    return (
        *(FLAG_ADMIN_HOST, ANY_ADDRESS, FLAG_ADMIN_PORT, str(PORT_ADMIN)),
        *(FLAG_DRAIN_MODE, drain_mode, FLAG_DRAIN_DEADLINE, str(drain_seconds(resolved))),
    )


def _ranks(resolved: Resolved) -> tuple[str, ...]:
    """How the pods of one group meet; nodes pull images at speeds of their own."""
    if resolved.nodes == 1:
        return ()
    wait_s = resolved.spec.engine.startup_deadline_seconds - RENDEZVOUS_MARGIN_S
    return (FLAG_RANK_PORT, str(PORT_RANKS), FLAG_RENDEZVOUS_TIMEOUT, str(wait_s))


def _engine(resolved: Resolved) -> tuple[str, ...]:
    engine, plan = resolved.spec.engine, resolved.spec.worker.parallelism
    has_gpu = resolved.spec.worker.gpu.count_per_node > 0
    optional = {
        FLAG_DEVICE: DEVICE_GPU if has_gpu else DEVICE_CPU,
        FLAG_CONTEXT_LENGTH: engine.context_length,
        FLAG_PAGE_SIZE: engine.page_size,
        FLAG_KV_TOKENS: engine.kv_tokens,
        FLAG_DTYPE: None if engine.dtype == "auto" else engine.dtype,
        FLAG_THREADS: _threads(resolved),
        FLAG_TENSOR_PARALLEL: plan.tensor if plan.tensor > 1 else None,
        FLAG_PIPELINE_PARALLEL: plan.pipeline if plan.pipeline > 1 else None,
        FLAG_DATA_PARALLEL: plan.data if plan.data > 1 else None,
    }
    given = [(flag, str(value)) for flag, value in optional.items() if value is not None]
    return (*(text for pair in given for text in pair), *engine.args)


def _threads(resolved: Resolved) -> int | None:
    """Whole CPUs of the limit: more threads than that only wait for each other."""
    limit = resolved.spec.worker.resources.limits.get("cpu")
    return None if limit is None else max(1, math.floor(quantity_value(limit)))
