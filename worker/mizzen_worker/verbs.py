"""Owns this package's verbs: from arguments to an exit status; owns no work of theirs."""

import argparse
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence

from mizzen_worker.cli import find_verbs
from mizzen_worker.config.command_line import make_parser, parse_command_line
from mizzen_worker.config.completion import SHELLS, completion_script
from mizzen_worker.config.env import (
    process_environment,
    read_fetch_environment,
    read_pod_environment,
)
from mizzen_worker.config.option import SERVING_ROLES, Role
from mizzen_worker.config.parse import AUTO
from mizzen_worker.config.resolve import Configuration
from mizzen_worker.contracts.drain import DRAIN_MODES
from mizzen_worker.contracts.errors import ConfigError, ModelLoadError
from mizzen_worker.contracts.operator_names import PATH_DRAIN, PORT_ADMIN

_EXTRA_WAIT_S = 10.0
_ABSENT = "-"
_DESCRIPTIONS = {
    Role.SERVE: (
        "Serve a model on this machine: HTTP server, tokenizer, detokenizer and engine.\n"
        "Binds 127.0.0.1 unless told otherwise; a process that dies is started again, and streams\n"
        "go on.",
        "mizzen serve ./SmolLM2-135M-Instruct.Q4_1.gguf --http-port 8000",
    ),
    Role.WORKER: (
        "Run one worker: the engine with its model, reached by tokenizers. Any death ends it,\n"
        "but one of several ranks is started again.",
        "mizzen worker --model /models/m --listen tcp://0.0.0.0:30001 --curve-dir /keys",
    ),
    Role.TOKENIZER: (
        "Run HTTP server, tokenizer and detokenizer in front of workers elsewhere.",
        "mizzen tokenizer --model /models/m --workers tcp://workers:30001 --curve-dir /keys",
    ),
}


def serve(arguments: Sequence[str]) -> int:
    """Serve a model on this machine, everything in one place."""
    return _launch(Role.SERVE, arguments)


def worker(arguments: Sequence[str]) -> int:
    """Run one worker (in pods; the operator starts it)."""
    return _launch(Role.WORKER, arguments)


def tokenizer(arguments: Sequence[str]) -> int:
    """Run the HTTP front of workers elsewhere (in pods; the operator starts it)."""
    return _launch(Role.TOKENIZER, arguments)


def drain(arguments: Sequence[str]) -> int:
    """Drain the pod or server on this machine and wait (a pod's preStop)."""
    parser = argparse.ArgumentParser(
        prog="mizzen drain",
        description=(
            "Refuse new work, hand live requests back or finish them, and wait for that. Its\n"
            "processes end with it; what is left answers probes until SIGTERM."
        ),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--mode",
        choices=DRAIN_MODES,
        help="what becomes of live requests (default: the server's --drain-mode)",
    )
    parser.add_argument(
        "--deadline-s",
        type=float,
        metavar="SECONDS",
        help="the longest it may take (default: the server's --drain-deadline)",
    )
    parser.add_argument(
        "--admin-port",
        type=int,
        default=PORT_ADMIN,
        metavar="PORT",
        help="the server's --admin-port (default %(default)s)",
    )
    parser.add_argument(
        "--admin-host",
        default="127.0.0.1",
        metavar="HOST",
        help="where it listens (default %(default)s)",
    )
    given = parser.parse_args(arguments)
    wished = {"mode": given.mode, "deadline_s": given.deadline_s}
    query = urllib.parse.urlencode({key: it for key, it in wished.items() if it is not None})
    url = f"http://{given.admin_host}:{given.admin_port}{PATH_DRAIN}?{query}"
    request = urllib.request.Request(url, method="POST")
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        # Without a deadline of its own it waits for as long as the server's lets it.
        wait_s = None if given.deadline_s is None else given.deadline_s + _EXTRA_WAIT_S
        with opener.open(request, timeout=wait_s) as answer:
            sys.stdout.write(answer.read().decode())
    except (urllib.error.URLError, OSError) as error:
        sys.stderr.write(f"mizzen drain: {url}: {error}; is anything served here?\n")
        return 1
    return 0


def show_config(arguments: Sequence[str]) -> int:
    """Print what every flag resolves to, and where the value is from."""
    words = {role.value for role in SERVING_ROLES}
    if not arguments or arguments[0] not in words:
        return _usage(
            arguments, f"usage: mizzen show-config {'|'.join(sorted(words))} [FLAGS of that verb]\n"
        )
    role = Role(arguments[0])
    return _with_configuration(role, arguments[1:], _print_configuration)


def bench(arguments: Sequence[str]) -> int:
    """Time the engine, or a server over HTTP."""
    # Needs torch, as no other verb does in this process.
    from mizzen_worker.bench.command import run  # noqa: PLC0415

    return run(arguments)


def plan_memory(arguments: Sequence[str]) -> int:
    """Tell what a model takes of a GPU's memory, without a GPU."""
    from mizzen_worker.plan_memory import run  # noqa: PLC0415 - reads models, as few verbs do

    return run(arguments)


def fetch_weights(arguments: Sequence[str]) -> int:
    """Fetch a model's weights from a hub, a bucket or a registry, or verify them."""
    from mizzen_worker.fetch.command import run  # noqa: PLC0415 - brings an HTTP client in

    return run(arguments, read_fetch_environment(process_environment()))


def completion(arguments: Sequence[str]) -> int:
    """Print a script for tab completion in bash, zsh or fish."""
    if len(arguments) != 1 or arguments[0] not in SHELLS:
        return _usage(
            arguments,
            f"usage: mizzen completion {'|'.join(SHELLS)}\n"
            "for example: source <(mizzen completion bash)\n",
        )
    sys.stdout.write(completion_script(arguments[0], tuple(find_verbs())))
    return 0


def _usage(arguments: Sequence[str], text: str) -> int:
    """Print what was asked for on the output, and what was not understood as an error."""
    is_asked = bool(arguments) and arguments[0] in {"-h", "--help"}
    (sys.stdout if is_asked else sys.stderr).write(text)
    return 0 if is_asked else 2


def _launch(role: Role, arguments: Sequence[str]) -> int:
    def run(configuration: Configuration) -> int:
        from mizzen_worker.launch import launch  # noqa: PLC0415 - brings a web server in

        return launch(configuration, read_pod_environment(process_environment()))

    return _with_configuration(role, arguments, run)


def _with_configuration(
    role: Role, arguments: Sequence[str], run: Callable[[Configuration], int]
) -> int:
    description, example = _DESCRIPTIONS[role]
    try:
        parser = make_parser(role, description=description, example=example)
        return run(parse_command_line(parser, role, arguments))
    except (ConfigError, ModelLoadError) as error:
        sys.stderr.write(f"mizzen {role.value}: {error}\n")
        return 2


def _print_configuration(configuration: Configuration) -> int:
    from mizzen_worker.effective import effective_values  # noqa: PLC0415 - brings tokenizers in

    outcomes = effective_values(configuration)
    width = max(len(flag) for flag in configuration.values)
    for flag, resolved in configuration.values.items():
        value, why = _shown(resolved.value), resolved.source
        outcome = outcomes.get(flag)
        if outcome is not None:
            left = AUTO if resolved.reason else value
            given = "" if left == _ABSENT else f" {left}"
            why = f"{why}{given}: {outcome.reason}"
            value = outcome.value or _ABSENT
        sys.stdout.write(f"{flag:<{width}}  {value}  ({why})\n")
    return 0


def _shown(value: object) -> str:
    if value is None:
        return _ABSENT
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}"
    return ",".join(value) if isinstance(value, tuple) else str(value)
