"""Owns the table of options: flag, file key, kind, default, help. Everything else is derived.

Owns no values, nor the form of an option (``option``).
"""

from mizzen_worker.config import parse
from mizzen_worker.config.engine_options import ENGINE_OPTIONS
from mizzen_worker.config.groups import (
    AdminOptions,
    HttpOptions,
    LogOptions,
    ModelOptions,
    WireOptions,
)
from mizzen_worker.config.option import ALL_ROLES, FRONTS, Option, Role, choice, option
from mizzen_worker.contracts import operator_names as names
from mizzen_worker.contracts.drain import DRAIN_MODES

OPTIONS: tuple[Option, ...] = (
    option(
        names.FLAG_MODEL, ModelOptions, parse.path, None,
        "model to serve: a .gguf file, or a folder that holds one, or that holds safetensors and"
        " tokenizer.json",
        metavar="PATH", is_required=True, roles=frozenset(Role),
    ),
    option(
        names.FLAG_SERVED_MODEL_NAME, ModelOptions, parse.text, None,
        "name that clients ask for; the name of the folder or file when left out",
        metavar="NAME",
    ),
    option(
        "--skip-tokenizer", ModelOptions, parse.truth, "false",
        "read no tokenizer: token n is the text <n>, and prompts are best given as ids; to time a"
        " model that comes without one",
        is_switch=True, roles=frozenset(Role),
    ),
    option(
        names.FLAG_HTTP_HOST, HttpOptions, parse.text, "127.0.0.1",
        "address that the public HTTP port binds; 0.0.0.0 takes requests of other machines",
        roles=FRONTS, metavar="HOST",
    ),
    option(
        names.FLAG_HTTP_PORT, HttpOptions, parse.number(0, 65535), str(names.PORT_HTTP),
        "public HTTP port; 0 takes any free one", roles=FRONTS, metavar="PORT",
    ),
    option(
        "--max-body-bytes", HttpOptions, parse.number(1024), "8388608",
        "longest request body; longer ones are refused with 413", roles=FRONTS, metavar="BYTES",
    ),
    option(
        "--max-live-requests", HttpOptions, parse.number(1, 1 << 16), "4096",
        "requests one front process holds; more are refused with 429", roles=FRONTS,
        metavar="COUNT",
    ),
    option(
        "--resume-timeout", HttpOptions, parse.seconds(), "60",
        "seconds a stream waits for an equal worker after its own was lost", roles=FRONTS,
        metavar="SECONDS", field="resume_timeout_s",
    ),
    option(
        "--tokenizer-workers", HttpOptions, parse.number(1, 64), "1",
        "front processes behind the public port, each with its own detokenizer", roles=FRONTS,
        metavar="COUNT",
    ),
    option(
        "--api-key-file", HttpOptions, parse.text, None,
        "file of keys, one a line, 16 characters or longer, of which clients need one; nobody needs"
        " a key when left out",
        roles=FRONTS, metavar="PATH",
    ),
    option(
        "--admin-key-file", HttpOptions, parse.text, None,
        "such a file for administrative routes of the public port, which are absent without it; its"
        " keys open everything",
        roles=FRONTS, metavar="PATH",
    ),
    option(
        names.FLAG_ADMIN_HOST, AdminOptions, parse.text, "127.0.0.1",
        "address that the admin port binds (probes, metrics, drain, control)", metavar="HOST",
    ),
    option(
        names.FLAG_ADMIN_PORT, AdminOptions, parse.number(0, 65535), str(names.PORT_ADMIN),
        "admin port; 0 takes any free one", metavar="PORT",
    ),
    choice(
        names.FLAG_DRAIN_MODE, AdminOptions, DRAIN_MODES,
        "on SIGTERM: hand live requests back to their tokenizers, or finish them", ALL_ROLES,
    ),
    option(
        names.FLAG_DRAIN_DEADLINE, AdminOptions, parse.seconds(), "25",
        "seconds a drain may take on SIGTERM; keep it below the pod's grace period",
        metavar="SECONDS", field="drain_deadline_s",
    ),
    option(
        "--stuck-limit", AdminOptions, parse.seconds(1), "120",
        "seconds that a loop may stand still: its process is ended, and serve starts it again",
        metavar="SECONDS", field="stuck_limit_s",
    ),
    option(
        "--loading-limit", AdminOptions, parse.seconds(1), "600",
        "seconds that a process may take to start, and then to load, without any progress: it is"
        " ended like one that is stuck",
        metavar="SECONDS", field="loading_limit_s",
    ),
    option(
        names.FLAG_LISTEN, WireOptions, parse.text, f"tcp://127.0.0.1:{names.PORT_WORKER}",
        "address of this worker's socket for tokenizers", roles=frozenset({Role.WORKER}),
        metavar="ADDRESS",
    ),
    option(
        names.FLAG_WORKERS, WireOptions, parse.addresses, f"tcp://127.0.0.1:{names.PORT_WORKER}",
        "workers, separated by commas; a name with several addresses means all of them",
        roles=frozenset({Role.TOKENIZER}), metavar="ADDRESSES",
    ),
    option(
        names.FLAG_CURVE_DIR, WireOptions, parse.path, None,
        "folder of the CURVE key files that protect tcp between pods",
        roles=frozenset({Role.WORKER, Role.TOKENIZER}), metavar="FOLDER",
    ),
    option(
        "--insecure", WireOptions, parse.truth, "false",
        "allow tcp beyond this machine without keys, where the network itself is trusted",
        roles=frozenset({Role.WORKER, Role.TOKENIZER}), is_switch=True,
    ),
    *ENGINE_OPTIONS,
    choice(
        "--log-level", LogOptions, ("info", "debug", "warning", "error"),
        "least level logged", ALL_ROLES,
    ),
    choice(
        "--log-format", LogOptions, ("auto", "text", "json"),
        "shape of log lines; auto is text on a terminal and json elsewhere", ALL_ROLES,
    ),
    option(
        "--trace-endpoint", LogOptions, parse.http_url, None,
        "OTLP/HTTP receiver of traces of the request path; no traces when left out", metavar="URL",
    ),
    option(
        "--trace-sampling", LogOptions, parse.share, "1",
        "share of requests that are traced where the client's traceparent does not decide",
        metavar="SHARE",
    ),
)  # fmt: skip


def options_of(role: Role) -> tuple[Option, ...]:
    """Give the options a verb takes."""
    return tuple(item for item in OPTIONS if role in item.roles)
