"""Owns every name the operator relies on: ports, probe paths, environment, flags' spelling, files.

The operator declares the same names in ``mizzen_operator/worker_contract.py``; ``tests/contract``
compares the two. A name is changed on both sides at once or not at all.
"""

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
