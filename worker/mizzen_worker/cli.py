"""Owns the command ``mizzen``: finds verbs, dispatches, helps; owns no verb's work.

Verbs are entry points of the group ``mizzen.verbs``: each package registers its own and neither
imports the other. Nothing of a verb is imported before it runs, so help is fast and works in an
image that lacks what some verb needs.
"""

import ast
import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from mizzen_worker import __version__

GROUP = "mizzen.verbs"
OWN_VERBS = {
    "serve": "mizzen_worker.verbs:serve",
    "worker": "mizzen_worker.verbs:worker",
    "tokenizer": "mizzen_worker.verbs:tokenizer",
    "drain": "mizzen_worker.verbs:drain",
    "show-config": "mizzen_worker.verbs:show_config",
    "plan-memory": "mizzen_worker.verbs:plan_memory",
    "fetch-weights": "mizzen_worker.verbs:fetch_weights",
    "bench": "mizzen_worker.verbs:bench",
    "completion": "mizzen_worker.verbs:completion",
}
"""This package's verbs, also where it runs from its sources without being installed."""

_OWN_FLAGS = ("--help", "--version")

_STATUS_PIPE_CLOSED = 141
"""As of a program that SIGPIPE ended."""

_EXAMPLES = """\
examples:
  mizzen serve ./model.gguf                  serve a model on this machine
  mizzen serve --help                        every flag of a verb
  mizzen show-config serve ./model.gguf      what each flag resolves to, and why
  mizzen completion bash                     a script for tab completion"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; gives the exit status."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    verbs = find_verbs()
    if not given or given[0] in {"-h", "--help", "help"}:
        sys.stdout.write(help_text(verbs))
        return 0 if given else 2
    if given[0] in {"-V", "--version", "version"}:
        sys.stdout.write(f"mizzen {__version__}\n")
        return 0
    verb = verbs.get(given[0])
    if verb is None:
        kind, known = ("flag", _OWN_FLAGS) if given[0].startswith("-") else ("verb", tuple(verbs))
        sys.stderr.write(f"mizzen: {given[0]} is no {kind}{_suggestion(given[0], known)}\n")
        return 2
    return _run(verb, given[1:])


def find_verbs() -> dict[str, EntryPoint]:
    """Find every registered verb by name."""
    found = {
        name: EntryPoint(name=name, value=value, group=GROUP) for name, value in OWN_VERBS.items()
    }
    found.update({entry.name: entry for entry in entry_points(group=GROUP)})
    return dict(sorted(found.items()))


def help_text(verbs: Mapping[str, EntryPoint]) -> str:
    """Write the help of the command itself."""
    width = max(len(name) for name in verbs)
    lines = [f"  {name:<{width}}  {summary(entry)}" for name, entry in verbs.items()]
    listed = "\n".join(lines)
    return (
        "usage: mizzen VERB [ARGUMENTS]\n\n"
        "Serve large language models, on one machine or on Kubernetes.\n\n"
        f"verbs:\n{listed}\n\n"
        "  --version  print the version\n"
        "  --help     this text; mizzen VERB --help says more\n\n"
        f"{_EXAMPLES}\n"
    )


def summary(entry: EntryPoint) -> str:
    """Give the first line of a verb's docstring, read from its source without importing it."""
    try:
        spec = importlib.util.find_spec(entry.module)
    except ImportError:
        return "(not installed here)"
    if spec is None or spec.origin is None:
        return "(not installed here)"
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name == entry.attr:
            return (ast.get_docstring(node) or "").partition("\n")[0].rstrip(".")
    return ""


def _run(verb: EntryPoint, arguments: list[str]) -> int:
    try:
        function = verb.load()
    except ModuleNotFoundError as error:
        sys.stderr.write(
            f"mizzen {verb.name}: needs the package {error.name}, which is not installed here\n"
        )
        return 1
    try:
        status = function(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read has enough (``| head``); what is left must not fail at the end either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return _STATUS_PIPE_CLOSED
    return status if isinstance(status, int) else 0


def _suggestion(word: str, known: Sequence[str]) -> str:
    # difflib is slow to import and only wanted here.
    import difflib  # noqa: PLC0415

    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]}?" if close else "; mizzen --help lists them"
