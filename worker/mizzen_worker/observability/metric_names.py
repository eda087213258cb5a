"""Owns every metric's name, kind, labels and meaning; owns no values.

Names are a contract with dashboards and the autoscaler: prefix ``mizzen_``, unit at the end, and
``_total`` for counters. The reference in the documentation is generated from this table.
"""

import enum
from dataclasses import dataclass

LATENCY_BUCKETS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0,
)  # fmt: skip
STEP_BUCKETS_S = (
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0,
)  # fmt: skip


class MetricKind(enum.Enum):
    """How a value behaves."""

    COUNTER = "counter"
    GAUGE = "gauge"
    HISTOGRAM = "histogram"


class Merge(enum.Enum):
    """What one gauge of several processes comes to; counters and histograms always add up."""

    SUM = "sum"
    MAX = "max"
    MIN = "min"


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """One family; ``process`` says who exposes it."""

    name: str
    kind: MetricKind
    meaning: str
    process: str
    labels: tuple[str, ...] = ()
    merge: Merge = Merge.SUM
    buckets: tuple[float, ...] = LATENCY_BUCKETS_S


def _front(name: str, kind: MetricKind, meaning: str, *labels: str) -> Metric:
    return Metric(name=name, kind=kind, meaning=meaning, process="front", labels=labels)


def _rank(name: str, kind: MetricKind, meaning: str, *labels: str) -> Metric:
    return Metric(name=name, kind=kind, meaning=meaning, process="rank", labels=labels)


def _gauge(name: str, merge: Merge, meaning: str) -> Metric:
    """Make a gauge of ranks that is not the sum of theirs."""
    return Metric(name=name, kind=MetricKind.GAUGE, meaning=meaning, process="rank", merge=merge)


def _step_time(part: str, meaning: str) -> Metric:
    return Metric(
        name=f"mizzen_engine_step_{part}_seconds",
        kind=MetricKind.HISTOGRAM,
        meaning=meaning,
        process="rank",
        buckets=STEP_BUCKETS_S,
    )


def _controller(name: str, kind: MetricKind, meaning: str, *labels: str) -> Metric:
    return Metric(name=name, kind=kind, meaning=meaning, process="controller", labels=labels)


def _launcher(name: str, kind: MetricKind, meaning: str, *labels: str) -> Metric:
    return Metric(name=name, kind=kind, meaning=meaning, process="launcher", labels=labels)


def _fetch(name: str, kind: MetricKind, meaning: str, *labels: str) -> Metric:
    return Metric(name=name, kind=kind, meaning=meaning, process="fetch", labels=labels)


def _group(name: str, merge: Merge, meaning: str) -> Metric:
    return Metric(name=name, kind=MetricKind.GAUGE, meaning=meaning, process="group", merge=merge)


HTTP_REQUESTS = _front(
    "mizzen_http_requests_total", MetricKind.COUNTER, "HTTP answers sent.", "route", "status"
)
HTTP_SECONDS = _front(
    "mizzen_http_request_seconds_total",
    MetricKind.COUNTER,
    "Seconds from an HTTP request's headers to the end of its answer, streams included.",
    "route",
)
HTTP_OPEN = _front(
    "mizzen_http_open_requests", MetricKind.GAUGE, "HTTP requests whose answer has not ended."
)
REQUESTS_FINISHED = _front(
    "mizzen_requests_finished_total",
    MetricKind.COUNTER,
    "Generation requests that ended, by how: stop, length, abort, deadline, error.",
    "reason",
)
REQUESTS_RESUMED = _front(
    "mizzen_requests_resumed_total",
    MetricKind.COUNTER,
    "Times a request went on at a worker after its worker was lost or handed it back.",
)
LIVE_REQUESTS = _front(
    "mizzen_live_requests", MetricKind.GAUGE, "Generation requests accepted and not ended."
)
PROMPT_TOKENS = _front(
    "mizzen_prompt_tokens_total", MetricKind.COUNTER, "Tokens of prompts of ended requests."
)
COMPLETION_TOKENS = _front(
    "mizzen_completion_tokens_total", MetricKind.COUNTER, "Tokens generated for ended requests."
)
CACHED_TOKENS = _front(
    "mizzen_cached_prompt_tokens_total",
    MetricKind.COUNTER,
    "Prompt tokens of ended requests that came from the prefix cache.",
)
TIME_TO_FIRST_TOKEN = _front(
    "mizzen_time_to_first_token_seconds",
    MetricKind.HISTOGRAM,
    "From a request's acceptance to its first token.",
)
INTER_TOKEN_LATENCY = _front(
    "mizzen_inter_token_latency_seconds",
    MetricKind.HISTOGRAM,
    "Between two tokens of a request, after the first.",
)
REQUEST_LATENCY = _front(
    "mizzen_request_latency_seconds", MetricKind.HISTOGRAM, "From acceptance to the end."
)
WORKERS_ATTACHED = _front(
    "mizzen_workers_attached", MetricKind.GAUGE, "Workers this process is connected to."
)
RUNNING_REQUESTS = _rank(
    "mizzen_running_requests", MetricKind.GAUGE, "Requests in the running batch."
)
QUEUED_REQUESTS = _rank(
    "mizzen_queued_requests", MetricKind.GAUGE, "Requests waiting for their first step."
)
KV_TOKENS_USED = _rank(
    "mizzen_kv_used_tokens", MetricKind.GAUGE, "KV positions in use by live requests."
)
KV_TOKENS_CACHED = _rank(
    "mizzen_kv_cached_tokens", MetricKind.GAUGE, "KV positions in the prefix cache, in use or not."
)
KV_TOKENS_TOTAL = _rank("mizzen_kv_capacity_tokens", MetricKind.GAUGE, "KV positions there are.")
ENGINE_STEPS = _rank("mizzen_engine_steps_total", MetricKind.COUNTER, "Steps launched.")
ENGINE_STEP_SECONDS = _rank(
    "mizzen_engine_step_seconds_total",
    MetricKind.COUNTER,
    "Seconds spent in steps; with mizzen_engine_steps_total the mean step time.",
)
ENGINE_TOKENS = _rank(
    "mizzen_engine_generated_tokens_total", MetricKind.COUNTER, "Tokens sampled and kept."
)
ENGINE_PREFILL_TOKENS = _rank(
    "mizzen_engine_prefill_tokens_total", MetricKind.COUNTER, "Prompt tokens computed."
)
ENGINE_CACHED_TOKENS = _rank(
    "mizzen_engine_cached_tokens_total",
    MetricKind.COUNTER,
    "Prompt tokens taken from the prefix cache.",
)
ENGINE_RETRACTIONS = _rank(
    "mizzen_engine_retractions_total",
    MetricKind.COUNTER,
    "Requests moved back to the queue for lack of KV memory.",
)
ENGINE_PREEMPTIONS = _rank(
    "mizzen_engine_preemptions_total",
    MetricKind.COUNTER,
    "Requests moved back to the queue for one of higher priority.",
)
ENGINE_HANDED_BACK = _rank(
    "mizzen_engine_handed_back_requests_total",
    MetricKind.COUNTER,
    "Requests given back unfinished: queue full, draining or restarting.",
)
ENGINE_FINISHED = _rank(
    "mizzen_engine_finished_requests_total",
    MetricKind.COUNTER,
    "Attempts that ended at a rank, by how: stop, length, abort, deadline, error, handed_back.",
    "reason",
)
QUEUED_TOKENS = _rank(
    "mizzen_queued_tokens", MetricKind.GAUGE, "Known tokens that are still to be computed."
)
QUEUE_AGE = _gauge(
    "mizzen_queue_age_seconds", Merge.MAX, "How long the oldest waiting request has waited."
)
PREDICTED_TIME_TO_FIRST_TOKEN = _gauge(
    "mizzen_predicted_time_to_first_token_seconds",
    Merge.MIN,
    "What a new request would wait for its first token, by the pace of the last seconds.",
)
TOKEN_THROUGHPUT = _rank(
    "mizzen_generated_tokens_per_second",
    MetricKind.GAUGE,
    "Tokens sampled and kept, over the last second.",
)
QUEUE_TIME = _rank(
    "mizzen_queue_time_seconds",
    MetricKind.HISTOGRAM,
    "From a request's arrival at a rank to the launch of its first step.",
)
STEP_PLANNING_TIME = _step_time("planning", "From the start of a turn with a step to its plan.")
STEP_LAUNCH_TIME = _step_time("launch", "From a step's plan until it is on its way.")
STEP_SETTLE_TIME = _step_time(
    "settle", "Waiting for results and taking them; on a CPU the step itself."
)
ROUTED_REQUESTS = _controller(
    "mizzen_routed_requests_total", MetricKind.COUNTER, "Requests given to one of the ranks."
)
TOKENIZERS_ATTACHED = _controller(
    "mizzen_tokenizers_attached", MetricKind.GAUGE, "Tokenizer processes that are connected."
)
GROUP_SIZE = _group(
    "mizzen_rank_group_ranks", Merge.MAX, "Tensor-parallel ranks that a whole group has."
)
GROUP_JOINED = _group(
    "mizzen_rank_group_joined_ranks",
    Merge.MIN,
    "Ranks of the group that a leader knows to be there, itself included.",
)
FOLLOWED_STEPS = Metric(
    name="mizzen_follower_steps_total",
    kind=MetricKind.COUNTER,
    meaning="Steps that ranks of this pod replayed for their leader.",
    process="follower",
)
PROCESS_UP = _launcher(
    "mizzen_process_up", MetricKind.GAUGE, "1 while a process of this pod runs.", "process"
)
PROCESS_RESTARTS = _launcher(
    "mizzen_process_restarts_total",
    MetricKind.COUNTER,
    "Times a process was started again.",
    "process",
)
PROCESS_STUCK = _launcher(
    "mizzen_stuck_processes_total",
    MetricKind.COUNTER,
    "Times a process was ended because its loop stood still.",
    "process",
)
WEIGHTS_PRESENT_BYTES = _fetch(
    "mizzen_weights_present_bytes", MetricKind.GAUGE, "Bytes of the weights that are on disk."
)
WEIGHTS_TOTAL_BYTES = _fetch(
    "mizzen_weights_total_bytes", MetricKind.GAUGE, "Bytes to fetch; 0 until they are listed."
)
WEIGHTS_RECEIVED_BYTES = _fetch(
    "mizzen_weights_received_bytes_total",
    MetricKind.COUNTER,
    "Bytes of weights that came over the network.",
)
WEIGHTS_RETRIES = _fetch(
    "mizzen_weights_retries_total",
    MetricKind.COUNTER,
    "Attempts that failed and were made again, by why: RateLimited, Unreachable, VerifyFailed.",
    "reason",
)

METRICS: tuple[Metric, ...] = (
    HTTP_REQUESTS,
    HTTP_SECONDS,
    HTTP_OPEN,
    REQUESTS_FINISHED,
    REQUESTS_RESUMED,
    LIVE_REQUESTS,
    PROMPT_TOKENS,
    COMPLETION_TOKENS,
    CACHED_TOKENS,
    TIME_TO_FIRST_TOKEN,
    INTER_TOKEN_LATENCY,
    REQUEST_LATENCY,
    WORKERS_ATTACHED,
    RUNNING_REQUESTS,
    QUEUED_REQUESTS,
    KV_TOKENS_USED,
    KV_TOKENS_CACHED,
    KV_TOKENS_TOTAL,
    ENGINE_STEPS,
    ENGINE_STEP_SECONDS,
    ENGINE_TOKENS,
    ENGINE_PREFILL_TOKENS,
    ENGINE_CACHED_TOKENS,
    ENGINE_RETRACTIONS,
    ENGINE_PREEMPTIONS,
    ENGINE_HANDED_BACK,
    ENGINE_FINISHED,
    QUEUED_TOKENS,
    QUEUE_AGE,
    PREDICTED_TIME_TO_FIRST_TOKEN,
    TOKEN_THROUGHPUT,
    QUEUE_TIME,
    STEP_PLANNING_TIME,
    STEP_LAUNCH_TIME,
    STEP_SETTLE_TIME,
    GROUP_SIZE,
    GROUP_JOINED,
    FOLLOWED_STEPS,
    ROUTED_REQUESTS,
    TOKENIZERS_ATTACHED,
    PROCESS_UP,
    PROCESS_RESTARTS,
    PROCESS_STUCK,
    WEIGHTS_PRESENT_BYTES,
    WEIGHTS_TOTAL_BYTES,
    WEIGHTS_RECEIVED_BYTES,
    WEIGHTS_RETRIES,
)
