"""Owns the table of options: flag, file key, kind, default, help. Everything else is derived.

Owns no values. ``default`` is text, read by the same parser as a flag's value; None means that the
option may be absent. ``choices`` are for help and completion; the parser decides.
"""

import enum
from dataclasses import dataclass
from typing import TypedDict, Unpack

from mizzen_worker.config import parse
from mizzen_worker.config.groups import (
    AdminOptions,
    EngineOptions,
    HttpOptions,
    LogOptions,
    ModelOptions,
    WireOptions,
)
from mizzen_worker.config.parse import Parser
from mizzen_worker.contracts import operator_names as names
from mizzen_worker.contracts.cache_eviction import CACHE_EVICTIONS
from mizzen_worker.contracts.drain import DRAIN_MODES
from mizzen_worker.contracts.schedule_policy import SCHEDULE_POLICIES


class Role(enum.Enum):
    """Which verbs take an option; the value is the verb."""

    SERVE = "serve"
    WORKER = "worker"
    TOKENIZER = "tokenizer"
    BENCH = "bench"


SERVING_ROLES = (Role.SERVE, Role.WORKER, Role.TOKENIZER)
_ALL = frozenset(SERVING_ROLES)
_FRONT = frozenset({Role.SERVE, Role.TOKENIZER})
_ENGINE = frozenset({Role.SERVE, Role.WORKER, Role.BENCH})

_MAX_POSITIONS = (1 << 31) - 1
"""Kernels and tables count positions of KV memory in 32 bits."""

Group = type[ModelOptions | HttpOptions | AdminOptions | WireOptions | EngineOptions | LogOptions]


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceDefaults:
    """What the word ``auto`` comes to on a kind of device, as text.

    ``cuda`` None stays None: known when the GPU's memory was measured.
    """

    cpu: str
    cuda: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One option. Its file key is the flag without dashes in front."""

    flag: str
    group: Group
    field: str
    parser: Parser
    default: str | None
    help: str
    roles: frozenset[Role] = _ALL
    metavar: str = "TEXT"
    choices: tuple[str, ...] = ()
    is_switch: bool = False
    is_required: bool = False
    by_device: DeviceDefaults | None = None
    """What ``auto`` comes to; the parser takes that word for None."""

    @property
    def key(self) -> str:
        """Name in a configuration file."""
        return self.flag.removeprefix("--")


class _Rest(TypedDict, total=False):
    """Fields of ``Option`` that have defaults; ``field`` is the flag's own name unless given."""

    field: str
    roles: frozenset[Role]
    metavar: str
    choices: tuple[str, ...]
    is_switch: bool
    is_required: bool
    by_device: DeviceDefaults


def _option(
    flag: str,
    group: Group,
    parser: Parser,
    default: str | None,
    help_text: str,
    **rest: Unpack[_Rest],
) -> Option:
    rest.setdefault("field", flag.removeprefix("--").replace("-", "_"))
    return Option(flag=flag, group=group, parser=parser, default=default, help=help_text, **rest)


def _choice(
    flag: str, group: Group, choices: tuple[str, ...], help_text: str, roles: frozenset[Role]
) -> Option:
    """Make an option of fixed words; the first is the default."""
    return _option(
        flag, group, parse.one_of(*choices), choices[0], help_text,
        choices=choices, roles=roles, metavar="WORD",
    )  # fmt: skip


OPTIONS: tuple[Option, ...] = (
    _option(
        names.FLAG_MODEL, ModelOptions, parse.path, None,
        "model to serve: a .gguf file, or a folder that holds one, or that holds safetensors and"
        " tokenizer.json",
        metavar="PATH", is_required=True, roles=frozenset(Role),
    ),
    _option(
        names.FLAG_SERVED_MODEL_NAME, ModelOptions, parse.text, None,
        "name that clients ask for; the name of the folder or file when left out",
        metavar="NAME",
    ),
    _option(
        "--skip-tokenizer", ModelOptions, parse.truth, "false",
        "read no tokenizer: token n is the text <n>, and prompts are best given as ids; to time a"
        " model that comes without one",
        is_switch=True, roles=frozenset(Role),
    ),
    _option(
        names.FLAG_HTTP_HOST, HttpOptions, parse.text, "127.0.0.1",
        "address that the public HTTP port binds; 0.0.0.0 takes requests of other machines",
        roles=_FRONT, metavar="HOST",
    ),
    _option(
        names.FLAG_HTTP_PORT, HttpOptions, parse.number(0, 65535), str(names.PORT_HTTP),
        "public HTTP port; 0 takes any free one", roles=_FRONT, metavar="PORT",
    ),
    _option(
        "--max-body-bytes", HttpOptions, parse.number(1024), "8388608",
        "longest request body; longer ones are refused with 413", roles=_FRONT, metavar="BYTES",
    ),
    _option(
        "--max-live-requests", HttpOptions, parse.number(1, 1 << 16), "4096",
        "requests one front process holds; more are refused with 429", roles=_FRONT,
        metavar="COUNT",
    ),
    _option(
        "--resume-timeout", HttpOptions, parse.seconds(), "60",
        "seconds a stream waits for an equal worker after its own was lost", roles=_FRONT,
        metavar="SECONDS", field="resume_timeout_s",
    ),
    _option(
        "--tokenizer-workers", HttpOptions, parse.number(1, 64), "1",
        "front processes behind the public port, each with its own detokenizer", roles=_FRONT,
        metavar="COUNT",
    ),
    _option(
        "--api-key-file", HttpOptions, parse.text, None,
        "file of keys, one a line, 16 characters or longer, of which clients need one; nobody needs"
        " a key when left out",
        roles=_FRONT, metavar="PATH",
    ),
    _option(
        "--admin-key-file", HttpOptions, parse.text, None,
        "such a file for administrative routes of the public port, which are absent without it; its"
        " keys open everything",
        roles=_FRONT, metavar="PATH",
    ),
    _option(
        names.FLAG_ADMIN_HOST, AdminOptions, parse.text, "127.0.0.1",
        "address that the admin port binds (probes, metrics, drain, control)", metavar="HOST",
    ),
    _option(
        names.FLAG_ADMIN_PORT, AdminOptions, parse.number(0, 65535), str(names.PORT_ADMIN),
        "admin port; 0 takes any free one", metavar="PORT",
    ),
    _choice(
        names.FLAG_DRAIN_MODE, AdminOptions, DRAIN_MODES,
        "on SIGTERM: hand live requests back to their tokenizers, or finish them", _ALL,
    ),
    _option(
        names.FLAG_DRAIN_DEADLINE, AdminOptions, parse.seconds(), "25",
        "seconds a drain may take on SIGTERM; keep it below the pod's grace period",
        metavar="SECONDS", field="drain_deadline_s",
    ),
    _option(
        "--stuck-limit", AdminOptions, parse.seconds(1), "120",
        "seconds that a loop may stand still: its process is ended, and serve starts it again",
        metavar="SECONDS", field="stuck_limit_s",
    ),
    _option(
        "--loading-limit", AdminOptions, parse.seconds(1), "600",
        "seconds that a process may take to start, and then to load, without any progress: it is"
        " ended like one that is stuck",
        metavar="SECONDS", field="loading_limit_s",
    ),
    _option(
        names.FLAG_LISTEN, WireOptions, parse.text, f"tcp://127.0.0.1:{names.PORT_WORKER}",
        "address of this worker's socket for tokenizers", roles=frozenset({Role.WORKER}),
        metavar="ADDRESS",
    ),
    _option(
        names.FLAG_WORKERS, WireOptions, parse.addresses, f"tcp://127.0.0.1:{names.PORT_WORKER}",
        "workers, separated by commas; a name with several addresses means all of them",
        roles=frozenset({Role.TOKENIZER}), metavar="ADDRESSES",
    ),
    _option(
        names.FLAG_CURVE_DIR, WireOptions, parse.path, None,
        "folder of the CURVE key files that protect tcp between pods",
        roles=frozenset({Role.WORKER, Role.TOKENIZER}), metavar="FOLDER",
    ),
    _option(
        "--insecure", WireOptions, parse.truth, "false",
        "allow tcp beyond this machine without keys, where the network itself is trusted",
        roles=frozenset({Role.WORKER, Role.TOKENIZER}), is_switch=True,
    ),
    _option(
        names.FLAG_CONTEXT_LENGTH, EngineOptions, parse.number(1), None,
        "longest prompt and output together; the model's own limit when left out", roles=_ENGINE,
        metavar="TOKENS",
    ),
    _option(
        names.FLAG_PAGE_SIZE, EngineOptions, parse.auto_or(parse.number(1, 1024)), parse.AUTO,
        "positions in one page of KV memory; whole pages are shared between requests; auto is 16"
        " on a CPU and 64 on a GPU, whose prefill is faster the larger pages are, up to there",
        roles=_ENGINE, metavar="TOKENS", by_device=DeviceDefaults(cpu="16", cuda="64"),
    ),
    _option(
        names.FLAG_KV_TOKENS, EngineOptions,
        parse.auto_or(parse.number(16, _MAX_POSITIONS)), parse.AUTO,
        "positions of KV memory, shared by live requests and the prefix cache; auto is 16384 on a"
        " CPU, and on a GPU what weights and the largest step leave of --memory-fraction",
        roles=_ENGINE, metavar="TOKENS", by_device=DeviceDefaults(cpu="16384", cuda=None),
    ),
    _option(
        "--memory-fraction", EngineOptions,
        parse.quantity(least=0, most=1, can_be_least=False), "0.9",
        "share of a GPU's memory that a rank may fill, with everything: weights, steps, graphs, KV",
        roles=_ENGINE, metavar="SHARE",
    ),
    _option(
        names.FLAG_MAX_RUNNING, EngineOptions, parse.auto_or(parse.number(1, 4096)), parse.AUTO,
        "requests that run at once, more wait in the queue; auto is 64 on a CPU and 256 on a GPU",
        roles=_ENGINE, metavar="COUNT", by_device=DeviceDefaults(cpu="64", cuda="256"),
    ),
    _option(
        "--max-queued-requests", EngineOptions, parse.number(1), "1024",
        "requests that wait; more are refused with 429", roles=_ENGINE, metavar="COUNT",
    ),
    _choice(
        "--schedule-policy", EngineOptions, SCHEDULE_POLICIES,
        "who starts first: fcfs arrival; lpm longest cached prefix; dfs-weight neighbours in the "
        "prefix cache; lof longest max_tokens; priority the request's own", _ENGINE,
    ),
    _option(
        "--queue-ageing", EngineOptions, parse.seconds(), "30",
        "seconds of waiting after which a request's age counts beside the policy", roles=_ENGINE,
        metavar="SECONDS", field="queue_ageing_s",
    ),
    _option(
        "--priority-preemption", EngineOptions, parse.truth, "true",
        "with the policy priority: send running requests back for more urgent ones",
        roles=_ENGINE, metavar="TRUTH",
    ),
    _choice(
        "--cache-eviction", EngineOptions, CACHE_EVICTIONS,
        "cached pages that leave first: lru used longest ago; lfu used by fewest requests; slru "
        "used by one request only; priority of the lowest request priority", _ENGINE,
    ),
    _option(
        "--cache-events", EngineOptions, parse.text, None,
        "address at which a worker publishes which pages it caches; the next port (ipc: the path "
        "with .replay) answers who missed some; each further rank takes the next two",
        roles=_ENGINE, metavar="ADDRESS",
    ),
    _option(
        "--max-chunk-tokens", EngineOptions, parse.auto_or(parse.number(16, 1 << 20)), parse.AUTO,
        "prompt tokens computed in one step; larger is faster alone, smaller smoother together;"
        " auto is 512 on a CPU and 8192 on a GPU",
        roles=_ENGINE, metavar="TOKENS", by_device=DeviceDefaults(cpu="512", cuda="8192"),
    ),
    _option(
        "--decode-patience", EngineOptions, parse.auto_or(parse.seconds()), parse.AUTO,
        "seconds that running answers may be passed over by steps of more than 256 prompt tokens,"
        " which are faster alone; with 0 every step goes on with all of them; auto is 0 on a CPU"
        " and 0.5 on a GPU",
        roles=_ENGINE, metavar="SECONDS", field="decode_patience_s",
        by_device=DeviceDefaults(cpu="0", cuda="0.5"),
    ),
    _choice(
        "--overlap", EngineOptions, ("auto", "on", "off"),
        "plan and launch a step while the one before it runs; auto is on for cuda and off for cpu, "
        "where a launch waits for its step", _ENGINE,
    ),
    _choice(
        "--cuda-graphs", EngineOptions, ("auto", "on", "off"),
        "replay decode steps as CUDA graphs instead of launching kernel after kernel; auto is on"
        " for cuda", _ENGINE,
    ),
    _option(
        "--compile-cache", EngineOptions, parse.text, None,
        "folder in which compiled GPU kernels are kept for the next start; TRITON_CACHE_DIR, else"
        " mizzen/kernels in the user's cache folder, when left out",
        roles=_ENGINE, metavar="FOLDER",
    ),
    _choice(
        names.FLAG_DTYPE, EngineOptions, ("auto", "float32", "bfloat16"),
        "type of computing; auto is float32 on a CPU and bfloat16 on a GPU", _ENGINE,
    ),
    _choice(
        "--kv-dtype", EngineOptions, ("auto", "bfloat16", "fp8"),
        "type of stored keys and values; auto is what the checkpoint was made for; fp8 (e4m3, on"
        " GPUs of compute capability 8.9 and later) holds twice as many positions, less exactly",
        _ENGINE,
    ),
    _choice(
        "--quantization", EngineOptions, ("none", "fp8", "fp8-block"),
        "round the matrices of a dense model's layers to FP8 as they are loaded on a GPU, with a"
        " scale for each row (fp8) or each 128 x 128 values (fp8-block)", _ENGINE,
    ),
    _choice(
        "--load-format", EngineOptions, ("auto", "dense", "dummy"),
        "weights as packed as the file has them, unpacked, or random without reading any", _ENGINE,
    ),
    _option(
        "--deterministic", EngineOptions, parse.truth, "false",
        "same bits for a request whatever runs beside it; costs nothing with the native CPU"
        " kernels, elsewhere every prompt token is computed alone, at the speed of decoding",
        roles=_ENGINE, is_switch=True,
    ),
    _option(
        names.FLAG_DEVICE, EngineOptions, parse.text, "cpu",
        "cpu, cuda or cuda:INDEX", roles=_ENGINE, metavar="DEVICE",
    ),
    _option(
        names.FLAG_THREADS, EngineOptions, parse.number(0, 4096), "0",
        "CPU threads of a worker; 0 takes the cores there are", roles=_ENGINE, metavar="COUNT",
    ),
    *(
        _option(
            flag, EngineOptions, parse.only_one, "1", f"{what}; only 1 is served yet",
            roles=_ENGINE, metavar="COUNT",
        )
        for flag, what in (
            (names.FLAG_TENSOR_PARALLEL, "ranks that share each layer"),
            (names.FLAG_PIPELINE_PARALLEL, "ranks that share the layers out"),
        )
    ),
    _option(
        names.FLAG_DATA_PARALLEL, EngineOptions, parse.number(1, 64), "1",
        "ranks with a whole copy of the model and KV memory of their own; cuda takes a GPU each,"
        " the CPU's threads are divided", roles=_ENGINE, metavar="COUNT",
    ),
    _choice(
        "--log-level", LogOptions, ("info", "debug", "warning", "error"),
        "least level logged", _ALL,
    ),
    _choice(
        "--log-format", LogOptions, ("auto", "text", "json"),
        "shape of log lines; auto is text on a terminal and json elsewhere", _ALL,
    ),
    _option(
        "--trace-endpoint", LogOptions, parse.http_url, None,
        "OTLP/HTTP receiver of traces of the request path; no traces when left out", metavar="URL",
    ),
    _option(
        "--trace-sampling", LogOptions, parse.share, "1",
        "share of requests that are traced where the client's traceparent does not decide",
        metavar="SHARE",
    ),
)  # fmt: skip


def options_of(role: Role) -> tuple[Option, ...]:
    """Give the options a verb takes."""
    return tuple(option for option in OPTIONS if role in option.roles)
