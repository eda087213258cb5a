"""Owns the arguments of ``mizzen bench`` beside the engine's flags, and what they may be.

Runs nothing and reads no file; a wrong value is one sentence before anything starts.
"""

import argparse
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mizzen_worker.bench.measures import MEASURES, BenchSizes
from mizzen_worker.bench.shapes import SHAPES
from mizzen_worker.bench.workloads import PrefixSizes
from mizzen_worker.config import parse
from mizzen_worker.config.command_line import make_parser
from mizzen_worker.config.groups import EngineOptions
from mizzen_worker.config.option import Role
from mizzen_worker.contracts.errors import ConfigError
from mizzen_worker.contracts.operator_names import FLAG_DATA_PARALLEL, FLAG_TENSOR_PARALLEL

SERVING = "serving"

_DESCRIPTION = (
    "Time the engine in this process, without HTTP and tokenizer: prompts are token ids. Or time\n"
    "a server over HTTP, with requests that arrive at their own pace (serving).\n"
    f"--model is a folder or file, or a shape with made-up weights: {', '.join(SHAPES)}.\n"
    "Offline and serving draw prompts of 100 to 1,024 ids and answers of 100 to 1,024 tokens, the\n"
    "same ones every time. On a GPU rows also tell W, the watts on average, and power-capped, the\n"
    "share of the time in which the power limit held clocks down."
)
_EXAMPLE = "mizzen bench offline decode --model qwen06b --device cuda --json out/qwen06b.json"
_AT_ONCE = float("inf")
_MOST = 1_000_000
_MOST_TEMPERATURE = 1e6


def bench_parser() -> argparse.ArgumentParser:
    """Every flag of the engine, and those of the workloads."""
    parser = make_parser(Role.BENCH, description=_DESCRIPTION, example=_EXAMPLE)
    sizes, prefix = BenchSizes(), PrefixSizes()
    parser.add_argument(
        "workloads", nargs="+", choices=[*sorted(MEASURES), SERVING], metavar="WORKLOAD",
        help=f"one or more of {', '.join(sorted(MEASURES))}; or {SERVING}",
    )  # fmt: skip
    group = parser.add_argument_group("workloads")
    for flag, least, default, what in (
        ("--requests", 1, sizes.num_requests, "offline, serving: requests"),
        ("--prompt", 1, sizes.num_prompt, "decode: ids per prompt"),
        ("--new-tokens", 2, sizes.num_new, "decode: tokens per answer"),
        ("--prefills", 1, sizes.num_prefills, "prefill: prompts"),
        ("--prefill-length", 1, sizes.prefill_length, "prefill: ids per prompt"),
        ("--groups", 1, prefix.num_groups, f"prefix: groups of {prefix.group_size} requests"),
        ("--rounds", 1, sizes.rounds, "runs of which the median is told"),
    ):
        group.add_argument(flag, type=_checked(parse.number(least, _MOST)), default=default,
                           metavar="COUNT", help=f"{what} (default %(default)s)")  # fmt: skip
    group.add_argument("--batches", type=_checked(parse.number(1, _MOST)), nargs="+",
                       metavar="COUNT", help="decode: batch sizes (default "
                       f"{' '.join(map(str, sizes.batches))}, those that may run at once)"
                       )  # fmt: skip
    group.add_argument("--temperature", default=sizes.temperature, metavar="NUMBER",
                       type=_checked(parse.quantity(least=0, most=_MOST_TEMPERATURE)),
                       help="offline, serving: 0 means greedy (default %(default)s)")  # fmt: skip
    group.add_argument("--rate", default=_AT_ONCE, metavar="NUMBER",
                       type=_checked(parse.quantity(least=0, most=_AT_ONCE, can_be_least=False)),
                       help="serving: requests a second, all at once when left out")  # fmt: skip
    group.add_argument("--url", type=_checked(parse.http_url), metavar="URL",
                       help="serving: a server that runs; else one is"
                       " started with the engine's flags given here")  # fmt: skip
    group.add_argument("--json", type=_checked(_writable), metavar="FILE",
                       help="where to write the numbers")  # fmt: skip
    return parser


def bench_sizes(given: argparse.Namespace, engine: EngineOptions) -> BenchSizes:
    """Sizes of the workloads; raises ``ConfigError`` for a batch that cannot run at once."""
    return BenchSizes(
        num_requests=given.requests,
        temperature=given.temperature,
        batches=_batches(given.batches, engine.max_running_requests),
        num_prompt=given.prompt,
        num_new=given.new_tokens,
        num_prefills=given.prefills,
        prefill_length=given.prefill_length,
        prefix=PrefixSizes(num_groups=given.groups),
        rounds=given.rounds,
    )


def require_runnable(given: argparse.Namespace, engine: EngineOptions) -> None:
    """Raise ``ConfigError`` for workloads that cannot run together, or not as they are wanted."""
    workloads = given.workloads
    if SERVING in workloads:
        if list(workloads) != [SERVING]:
            message = f"{SERVING} runs alone: the other workloads hold the device in this process"
            raise ConfigError(message)
        sizes = BenchSizes()
        _require_left_out(
            "for other workloads",
            ("--prompt", given.prompt, sizes.num_prompt),
            ("--new-tokens", given.new_tokens, sizes.num_new),
            ("--prefills", given.prefills, sizes.num_prefills),
            ("--prefill-length", given.prefill_length, sizes.prefill_length),
            ("--groups", given.groups, sizes.prefix.num_groups),
            ("--rounds", given.rounds, sizes.rounds),
            ("--batches", given.batches, None),
        )
        return
    _require_left_out(
        f"for {SERVING} alone", ("--url", given.url, None), ("--rate", given.rate, _AT_ONCE)
    )
    for flag, num_ranks in (
        (FLAG_DATA_PARALLEL, engine.data_parallel_size),
        (FLAG_TENSOR_PARALLEL, engine.tensor_parallel_size),
    ):
        if num_ranks > 1:
            message = (
                f"{flag}: {num_ranks} ranks do not run in this process; "
                f"use 1, or time a server of so many (mizzen bench {SERVING})"
            )
            raise ConfigError(message)


def _require_left_out(whom: str, *flags: tuple[str, object, object]) -> None:
    """Raise ``ConfigError`` for the first flag that has another value than its default."""
    for flag, value, default in flags:
        if value != default:
            message = f"{flag}: {value} is {whom}; leave it out, or name such a workload"
            raise ConfigError(message)


def _batches(given: Sequence[int] | None, most: int) -> tuple[int, ...]:
    """Larger ones would wait for each other, and the time of a step would mean nothing."""
    if given is None:
        return tuple(batch for batch in BenchSizes().batches if batch <= most)
    if max(given) > most:
        message = (
            f"--batches: {max(given)} is more than run at once; raise --max-running-requests "
            f"({most}), or give smaller ones"
        )
        raise ConfigError(message)
    return tuple(given)


def _writable(text: str) -> Path:
    file = parse.path(text)
    if file.is_dir():
        msg = "it is a folder; give a file in it"
        raise ValueError(msg)
    folder = next(parent for parent in file.absolute().parents if parent.exists())
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        msg = f"{folder} cannot be written; give another folder"
        raise ValueError(msg)
    return file


def _checked(convert: parse.Parser) -> Callable[[str], Any]:
    """Let argparse tell the sentence of the value's own parser."""

    def take(text: str) -> Any:
        try:
            return convert(text)
        except ValueError as error:
            msg = f"{text[:80]!r} cannot be used; {error}"
            raise argparse.ArgumentTypeError(msg) from error

    return take
