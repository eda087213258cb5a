"""Owns what other servers call our options, for suggestions only: none of these is accepted. Pure.

Owns no options; a test holds every value against their table.
"""

from collections.abc import Mapping

FOREIGN_TO_OWN: Mapping[str, str] = {
    "api-key": "api-key-file",
    "admin-api-key": "admin-key-file",
    "api-server-count": "tokenizer-workers",
    "tokenizer-worker-num": "tokenizer-workers",
    "host": "http-host",
    "port": "http-port",
    "model-path": "model",
    "max-model-len": "context-length",
    "max-num-seqs": "max-running-requests",
    "max-num-batched-tokens": "max-chunk-tokens",
    "chunked-prefill-size": "max-chunk-tokens",
    "max-total-tokens": "kv-tokens",
    "gpu-memory-utilization": "memory-fraction",
    "mem-fraction-static": "memory-fraction",
    "enforce-eager": "cuda-graphs",
    "disable-cuda-graph": "cuda-graphs",
    "block-size": "page-size",
    "kv-cache-dtype": "kv-dtype",
    "scheduling-policy": "schedule-policy",
    "enable-priority-scheduling": "schedule-policy",
    "radix-eviction-policy": "cache-eviction",
    "kv-events-config": "cache-events",
    "enable-deterministic-inference": "deterministic",
    "async-scheduling": "overlap",
    "disable-overlap-schedule": "overlap",
    "otlp-traces-endpoint": "trace-endpoint",
    "tp": "tensor-parallel-size",
    "tp-size": "tensor-parallel-size",
    "pp": "pipeline-parallel-size",
    "pp-size": "pipeline-parallel-size",
    "dp": "data-parallel-size",
    "dp-size": "data-parallel-size",
    "watchdog-timeout": "stuck-limit",
}
"""Names without dashes in front, as in a configuration file."""
