"""Owns what the operator relies on in our worker images: ports, paths, environment, flags, files.

The worker declares the same names in ``mizzen_worker/contracts/operator_names.py``;
``tests/contract`` compares the two, so that neither side drifts alone.
"""

from collections.abc import Mapping

CONTAINER = "mizzen"
"""Name of our own container in every pod; those of users' pod templates have other names."""

VERB_UNIFIED = "serve"
VERB_WORKER = "worker"
VERB_TOKENIZER = "tokenizer"
VERB_DRAIN = "drain"
VERB_FETCH = "fetch-weights"

PORT_HTTP = 30000
"""Public HTTP port of a front process (tokenizer role, or everything in Unified)."""
PORT_WORKER = 30001
"""ZMQ ROUTER of a worker group's rank 0 (CURVE)."""
PORT_ADMIN = 30002
"""Launcher's own port in every role: probes, drain, metrics."""
PORT_RANKS = 30003
"""ZMQ ROUTER of a worker group's rank 0 for the ranks of its other nodes (CURVE). Their collectives
take ports that the system chooses."""

PATH_LIVE = "/health"
"""200 while every loop of the pod beats."""
PATH_READY = "/health/ready"
"""200 while the pod is to get traffic: it takes work, or says when to come back."""
PATH_STARTUP = "/health/startup"
"""200 once weights are loaded and sockets are bound."""
PATH_METRICS = "/metrics"
PATH_DRAIN = "/drain"
"""POST, query ``mode`` (handback or finish) and ``deadline_s``; admin port only."""

ENV_ROLE = "MIZZEN_ROLE"
ENV_NODE_COUNT = "MIZZEN_NODE_COUNT"
ENV_NODE_RANK = "MIZZEN_NODE_RANK"
ENV_LEADER_ADDRESS = "MIZZEN_LEADER_ADDRESS"
ENV_GROUP_ID = "MIZZEN_GROUP_ID"
ENV_GROUP_EPOCH = "MIZZEN_GROUP_EPOCH"
ENV_INSTANCE_ID = "MIZZEN_INSTANCE_ID"
ENV_COHORT = "MIZZEN_COHORT"

CURVE_SERVER_SECRET = "server.key"
CURVE_SERVER_PUBLIC = "server.pub"
CURVE_CLIENT_SECRET = "client.key"
CURVE_CLIENT_PUBLIC = "client.pub"
"""Files in ``--curve-dir``; Z85 text of 40 characters. A worker gets server.key, server.pub and
client.pub (its allow-list), a tokenizer gets client.key, client.pub and server.pub."""

FLAG_MODEL = "--model"
FLAG_SERVED_MODEL_NAME = "--served-model-name"
FLAG_HTTP_HOST = "--http-host"
FLAG_HTTP_PORT = "--http-port"
FLAG_ADMIN_HOST = "--admin-host"
FLAG_ADMIN_PORT = "--admin-port"
FLAG_LISTEN = "--listen"
"""Worker: address of its ROUTER, for example tcp://0.0.0.0:30001."""
FLAG_WORKERS = "--workers"
"""Tokenizer: comma-separated tcp://host:port; a name with several addresses means all of them."""
FLAG_CURVE_DIR = "--curve-dir"
FLAG_CONTEXT_LENGTH = "--context-length"
FLAG_PAGE_SIZE = "--page-size"
FLAG_KV_TOKENS = "--kv-tokens"
FLAG_MAX_RUNNING = "--max-running-requests"
FLAG_DTYPE = "--dtype"
FLAG_THREADS = "--threads"
FLAG_TENSOR_PARALLEL = "--tensor-parallel-size"
FLAG_PIPELINE_PARALLEL = "--pipeline-parallel-size"
FLAG_DATA_PARALLEL = "--data-parallel-size"
FLAG_RANK_HOST = "--rank-host"
FLAG_RANK_PORT = "--rank-port"
FLAG_RENDEZVOUS_TIMEOUT = "--rendezvous-timeout"
"""Seconds that the ranks of a group wait for each other."""
FLAG_DEVICE = "--device"
FLAG_DRAIN_MODE = "--drain-mode"
FLAG_DRAIN_DEADLINE = "--drain-deadline"
"""Seconds that a drain may take; below the pod's grace period."""

OWNED_FLAGS: Mapping[str, str] = {
    FLAG_MODEL: "model.source",
    FLAG_SERVED_MODEL_NAME: "model.servedName",
    FLAG_HTTP_HOST: "",
    FLAG_HTTP_PORT: "",
    FLAG_ADMIN_HOST: "",
    FLAG_ADMIN_PORT: "",
    FLAG_LISTEN: "",
    FLAG_WORKERS: "",
    FLAG_CURVE_DIR: "",
    FLAG_CONTEXT_LENGTH: "engine.contextLength",
    FLAG_PAGE_SIZE: "engine.pageSize",
    FLAG_KV_TOKENS: "engine.kvTokens",
    FLAG_DTYPE: "engine.dtype",
    FLAG_THREADS: "worker.resources.limits.cpu",
    FLAG_TENSOR_PARALLEL: "worker.parallelism.tensor",
    FLAG_PIPELINE_PARALLEL: "worker.parallelism.pipeline",
    FLAG_DATA_PARALLEL: "worker.parallelism.data",
    FLAG_RANK_HOST: "",
    FLAG_RANK_PORT: "",
    FLAG_RENDEZVOUS_TIMEOUT: "engine.startupDeadlineSeconds",
    FLAG_DEVICE: "worker.gpu.countPerNode",
    FLAG_DRAIN_MODE: "",
    FLAG_DRAIN_DEADLINE: "worker.drain.timeoutSeconds",
}
"""Flags that the operator sets, which ``spec.engine.args`` may not, and the field below ``spec``
that each comes from; empty where nobody has to choose."""

FLAGS_OF_BOTH = (
    "--cache-eviction",
    "--cache-events",
    "--compile-cache",
    "--cuda-graphs",
    "--decode-patience",
    "--deterministic",
    "--kv-dtype",
    "--load-format",
    "--loading-limit",
    "--log-format",
    "--log-level",
    "--max-chunk-tokens",
    "--max-queued-requests",
    FLAG_MAX_RUNNING,
    "--memory-fraction",
    "--overlap",
    "--priority-preemption",
    "--quantization",
    "--queue-ageing",
    "--rank-heartbeat-limit",
    "--schedule-policy",
    "--skip-tokenizer",
    "--stuck-limit",
    "--trace-endpoint",
    "--trace-sampling",
)
FREE_FLAGS: Mapping[str, frozenset[str]] = {
    VERB_WORKER: frozenset({*FLAGS_OF_BOTH, "--insecure"}),
    VERB_UNIFIED: frozenset(
        {
            *FLAGS_OF_BOTH,
            "--admin-key-file",
            "--api-key-file",
            "--max-body-bytes",
            "--max-live-requests",
            "--resume-timeout",
            "--tokenizer-workers",
        }
    ),
}
"""What ``spec.engine.args`` may hold for a worker of this version, by verb. Images of another
version may know others, so they are told and not refused."""

OWNED_ENV_PREFIX = "MIZZEN_"

DRAIN_ARG_MODE = "--mode"
DRAIN_ARG_DEADLINE = "--deadline-s"
"""Of ``mizzen drain``, which a pod's preStop runs."""

FETCH_ARG_TO = "--to"
FETCH_ARG_REVISION = "--revision"
FETCH_ARG_ALLOW = "--allow"
FETCH_ARG_METRICS_PORT = "--metrics-port"
"""Of ``mizzen fetch-weights``, which writes into a folder of the source's name below ``--to``."""
FETCH_ENV_HUB_TOKEN = "HF_TOKEN"
FETCH_ENV_HUB_ENDPOINT = "HF_ENDPOINT"
FETCH_ENV_S3_ENDPOINT = "AWS_ENDPOINT_URL"
FETCH_ENV_S3_REGION = "AWS_REGION"
FETCH_ENV_S3_KEY_ID = "AWS_ACCESS_KEY_ID"
FETCH_ENV_S3_KEY = "AWS_SECRET_ACCESS_KEY"
FETCH_ENV_S3_SESSION = "AWS_SESSION_TOKEN"
FETCH_ENV_OCI_USERNAME = "OCI_USERNAME"
FETCH_ENV_OCI_PASSWORD = "OCI_PASSWORD"
"""Variables that it reads addresses and credentials from."""
FETCH_EXIT_FAILED = 1
"""Exit code: trying again is no use. Its termination message says why."""
FETCH_EXIT_TRY_AGAIN = 75
"""Exit code: rate limits, network; what is fetched already stays."""

ENGINE_ARG_MEMORY_FRACTION = "--memory-fraction"
ENGINE_ARG_MAX_CHUNK = "--max-chunk-tokens"
ENGINE_ARG_KV_DTYPE = "--kv-dtype"
ENGINE_ARG_QUANTIZATION = "--quantization"
ENGINE_ARG_CUDA_GRAPHS = "--cuda-graphs"
"""Flags without a field of the spec that decide what a rank takes of memory, beside
``FLAG_MAX_RUNNING``."""
ENGINE_ARGS_UNFORESEEN = ("--config", "--deterministic", "--load-format")
"""Flags with which the formula of a rank's memory does not hold."""
DEFAULT_MEMORY_FRACTION = "0.9"
DEFAULT_GPU_MAX_CHUNK = "8192"
DEFAULT_GPU_MAX_RUNNING = "256"
DEFAULT_GPU_PAGE_SIZE = 64
DEFAULT_CPU_PAGE_SIZE = 16
DEFAULT_CPU_KV_TOKENS = 16_384
"""What the engine takes where nothing is said."""

METRIC_HTTP_REQUESTS = "mizzen_http_requests_total"
METRIC_REQUESTS_FINISHED = "mizzen_requests_finished_total"
METRIC_REQUESTS_RESUMED = "mizzen_requests_resumed_total"
METRIC_LIVE_REQUESTS = "mizzen_live_requests"
METRIC_TIME_TO_FIRST_TOKEN = "mizzen_time_to_first_token_seconds"
METRIC_INTER_TOKEN_LATENCY = "mizzen_inter_token_latency_seconds"
METRIC_REQUEST_LATENCY = "mizzen_request_latency_seconds"
METRIC_WORKERS_ATTACHED = "mizzen_workers_attached"
METRIC_RUNNING_REQUESTS = "mizzen_running_requests"
METRIC_QUEUED_REQUESTS = "mizzen_queued_requests"
METRIC_QUEUE_AGE = "mizzen_queue_age_seconds"
METRIC_KV_USED = "mizzen_kv_used_tokens"
METRIC_KV_CACHED = "mizzen_kv_cached_tokens"
METRIC_KV_CAPACITY = "mizzen_kv_capacity_tokens"
METRIC_STEPS = "mizzen_engine_steps_total"
METRIC_STEP_SECONDS = "mizzen_engine_step_seconds_total"
METRIC_GENERATED_TOKENS = "mizzen_engine_generated_tokens_total"
METRIC_PREFILL_TOKENS = "mizzen_engine_prefill_tokens_total"
METRIC_CACHED_TOKENS = "mizzen_engine_cached_tokens_total"
METRIC_RETRACTIONS = "mizzen_engine_retractions_total"
METRIC_PROCESS_UP = "mizzen_process_up"
METRIC_PROCESS_RESTARTS = "mizzen_process_restarts_total"
"""Metrics that alerts and the dashboard are made of; the worker's ``METRICS`` has their meaning."""

DRAIN_HANDBACK = "handback"
DRAIN_FINISH = "finish"
DEVICE_CPU = "cpu"
DEVICE_GPU = "cuda"
