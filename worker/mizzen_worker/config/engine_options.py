"""Owns the part of the table of options that the engine and its ranks take.

Owns no values. The rest of the table: ``options``.
"""

from mizzen_worker.config import parse
from mizzen_worker.config.groups import EngineOptions, RankOptions
from mizzen_worker.config.option import ENGINES, DeviceDefaults, Option, Role, choice, option
from mizzen_worker.contracts import operator_names as names
from mizzen_worker.contracts.cache_eviction import CACHE_EVICTIONS
from mizzen_worker.contracts.schedule_policy import SCHEDULE_POLICIES

_MAX_POSITIONS = (1 << 31) - 1  # kernels and tables count positions of KV memory in 32 bits

ENGINE_OPTIONS: tuple[Option, ...] = (
    option(
        names.FLAG_CONTEXT_LENGTH, EngineOptions, parse.number(1), None,
        "longest prompt and output together; the model's own limit when left out", roles=ENGINES,
        metavar="TOKENS",
    ),
    option(
        names.FLAG_PAGE_SIZE, EngineOptions, parse.auto_or(parse.number(1, 1024)), parse.AUTO,
        "positions in one page of KV memory; whole pages are shared between requests; auto is 16"
        " on a CPU and 64 on a GPU, whose prefill is faster the larger pages are, up to there",
        roles=ENGINES, metavar="TOKENS", by_device=DeviceDefaults(cpu="16", cuda="64"),
    ),
    option(
        names.FLAG_KV_TOKENS, EngineOptions,
        parse.auto_or(parse.number(16, _MAX_POSITIONS)), parse.AUTO,
        "positions of KV memory, shared by live requests and the prefix cache; auto is 16384 on a"
        " CPU, and on a GPU what weights and the largest step leave of --memory-fraction",
        roles=ENGINES, metavar="TOKENS", by_device=DeviceDefaults(cpu="16384", cuda=None),
    ),
    option(
        "--memory-fraction", EngineOptions,
        parse.quantity(least=0, most=1, can_be_least=False), "0.9",
        "share of a GPU's memory that a rank may fill, with everything: weights, steps, graphs, KV",
        roles=ENGINES, metavar="SHARE",
    ),
    option(
        names.FLAG_MAX_RUNNING, EngineOptions, parse.auto_or(parse.number(1, 4096)), parse.AUTO,
        "requests that run at once, more wait in the queue; auto is 64 on a CPU and 256 on a GPU",
        roles=ENGINES, metavar="COUNT", by_device=DeviceDefaults(cpu="64", cuda="256"),
    ),
    option(
        "--max-queued-requests", EngineOptions, parse.number(1), "1024",
        "requests that wait; more are refused with 429", roles=ENGINES, metavar="COUNT",
    ),
    choice(
        "--schedule-policy", EngineOptions, SCHEDULE_POLICIES,
        "who starts first: fcfs arrival; lpm longest cached prefix; dfs-weight neighbours in the "
        "prefix cache; lof longest max_tokens; priority the request's own", ENGINES,
    ),
    option(
        "--queue-ageing", EngineOptions, parse.seconds(), "30",
        "seconds of waiting after which a request's age counts beside the policy", roles=ENGINES,
        metavar="SECONDS", field="queue_ageing_s",
    ),
    option(
        "--priority-preemption", EngineOptions, parse.truth, "true",
        "with the policy priority: send running requests back for more urgent ones",
        roles=ENGINES, metavar="TRUTH",
    ),
    choice(
        "--cache-eviction", EngineOptions, CACHE_EVICTIONS,
        "cached pages that leave first: lru used longest ago; lfu used by fewest requests; slru "
        "used by one request only; priority of the lowest request priority", ENGINES,
    ),
    option(
        "--cache-events", EngineOptions, parse.text, None,
        "address at which a worker publishes which pages it caches; the next port (ipc: the path "
        "with .replay) answers who missed some; each further rank takes the next two",
        roles=ENGINES, metavar="ADDRESS",
    ),
    option(
        "--max-chunk-tokens", EngineOptions, parse.auto_or(parse.number(16, 1 << 20)), parse.AUTO,
        "prompt tokens computed in one step; larger is faster alone, smaller smoother together;"
        " auto is 512 on a CPU and 8192 on a GPU",
        roles=ENGINES, metavar="TOKENS", by_device=DeviceDefaults(cpu="512", cuda="8192"),
    ),
    option(
        "--decode-patience", EngineOptions, parse.auto_or(parse.seconds()), parse.AUTO,
        "seconds that running answers may be passed over by steps of more than 256 prompt tokens,"
        " which are faster alone; with 0 every step goes on with all of them; auto is 0 on a CPU"
        " and 0.5 on a GPU",
        roles=ENGINES, metavar="SECONDS", field="decode_patience_s",
        by_device=DeviceDefaults(cpu="0", cuda="0.5"),
    ),
    choice(
        "--overlap", EngineOptions, ("auto", "on", "off"),
        "plan and launch a step while the one before it runs; auto is on for cuda and off for cpu, "
        "where a launch waits for its step", ENGINES,
    ),
    choice(
        "--cuda-graphs", EngineOptions, ("auto", "on", "off"),
        "replay decode steps as CUDA graphs instead of launching kernel after kernel; auto is on"
        " for cuda", ENGINES,
    ),
    option(
        "--compile-cache", EngineOptions, parse.text, None,
        "folder in which compiled GPU kernels are kept for the next start; TRITON_CACHE_DIR, else"
        " mizzen/kernels in the user's cache folder, when left out",
        roles=ENGINES, metavar="FOLDER",
    ),
    choice(
        names.FLAG_DTYPE, EngineOptions, ("auto", "float32", "bfloat16"),
        "type of computing; auto is float32 on a CPU and bfloat16 on a GPU", ENGINES,
    ),
    choice(
        "--kv-dtype", EngineOptions, ("auto", "bfloat16", "fp8"),
        "type of stored keys and values; auto is what the checkpoint was made for; fp8 (e4m3, on"
        " GPUs of compute capability 8.9 and later) holds twice as many positions, less exactly",
        ENGINES,
    ),
    choice(
        "--quantization", EngineOptions, ("none", "fp8", "fp8-block"),
        "round the matrices of a dense model's layers to FP8 as they are loaded on a GPU, with a"
        " scale for each row (fp8) or each 128 x 128 values (fp8-block)", ENGINES,
    ),
    choice(
        "--load-format", EngineOptions, ("auto", "dense", "dummy"),
        "weights as packed as the file has them, unpacked, or random without reading any", ENGINES,
    ),
    option(
        "--deterministic", EngineOptions, parse.truth, "false",
        "same bits for a request whatever runs beside it; costs nothing with the native CPU"
        " kernels, elsewhere every prompt token is computed alone, at the speed of decoding",
        roles=ENGINES, is_switch=True,
    ),
    option(
        names.FLAG_DEVICE, EngineOptions, parse.text, "cpu",
        "cpu, cuda or cuda:INDEX", roles=ENGINES, metavar="DEVICE",
    ),
    option(
        names.FLAG_THREADS, EngineOptions, parse.number(0, 4096), "0",
        "CPU threads of a worker; 0 takes the cores there are", roles=ENGINES, metavar="COUNT",
    ),
    option(
        names.FLAG_TENSOR_PARALLEL, EngineOptions, parse.number(1, 64), "1",
        "ranks that share each layer, a process each; a worker's nodes take equal numbers of them;"
        " a GPU each, or a share of the CPU's threads", roles=ENGINES, metavar="COUNT",
    ),
    option(
        names.FLAG_PIPELINE_PARALLEL, EngineOptions, parse.only_one, "1",
        "ranks that share the layers out; more than 1 is not available in this version",
        roles=ENGINES, metavar="COUNT",
    ),
    option(
        names.FLAG_DATA_PARALLEL, EngineOptions, parse.number(1, 64), "1",
        "ranks with a whole copy of the model and KV memory of their own; cuda takes a GPU each,"
        " the CPU's threads are divided", roles=ENGINES, metavar="COUNT",
    ),
    option(
        names.FLAG_RANK_HOST, RankOptions, parse.text, None,
        "this node's address for its group; when left out, the one that reaches the leader",
        roles=frozenset({Role.WORKER}), metavar="HOST",
    ),
    option(
        names.FLAG_RANK_PORT, RankOptions, parse.number(1, 65535), str(names.PORT_RANKS),
        "port of the leader's socket for ranks of other nodes; collectives take further free ports",
        roles=frozenset({Role.WORKER}), metavar="PORT",
    ),
    option(
        names.FLAG_RENDEZVOUS_TIMEOUT, RankOptions, parse.seconds(1), "600",
        "seconds that ranks of a group wait for each other", roles=ENGINES - {Role.BENCH},
        metavar="SECONDS", field="rendezvous_timeout_s",
    ),
    option(
        "--rank-heartbeat-limit", RankOptions, parse.seconds(1), "5",
        "seconds of silence after which a rank of a group is lost and the whole group ends",
        roles=ENGINES - {Role.BENCH}, metavar="SECONDS", field="rank_heartbeat_limit_s",
    ),
)  # fmt: skip
