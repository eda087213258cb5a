"""Owns ``mizzen bench``: from arguments to a table and a file of numbers; times nothing itself."""

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from mizzen_worker.bench.engine import BenchEngine, BenchFailedError, EngineLimits
from mizzen_worker.bench.measures import MEASURES, BenchSizes, Row
from mizzen_worker.bench.report import facts_of_machine, table, write_json
from mizzen_worker.bench.server import serve
from mizzen_worker.bench.serving import ServingLoad, measure_serving
from mizzen_worker.bench.shapes import SHAPES
from mizzen_worker.bench.workloads import BenchRequest, PrefixSizes, mixed_requests
from mizzen_worker.config.command_line import make_parser, parse_command_line
from mizzen_worker.config.groups import EngineOptions, ModelOptions
from mizzen_worker.config.options import Role, options_of
from mizzen_worker.contracts.errors import ConfigError, ModelLoadError
from mizzen_worker.layers.gpu.expert_tally import ExpertTally
from mizzen_worker.model_executor.factory import load_runner
from mizzen_worker.model_executor.load_phase import PhaseClock, ignore_phase
from mizzen_worker.scheduler.engine_setup import is_overlapped, runner_options

_DESCRIPTION = (
    "Time the engine in this process, without HTTP and tokenizer: prompts are token ids. Or time\n"
    "a server over HTTP, with requests that arrive at their own pace (serving).\n"
    f"--model is a folder or file, or a shape with made-up weights: {', '.join(SHAPES)}."
)
_EXAMPLE = "mizzen bench offline decode --model qwen06b --device cuda --json out/qwen06b.json"
_DUMMY = "dummy"
_SERVING = "serving"


def run(arguments: Sequence[str]) -> int:
    """Run the benchmarks that the arguments name; gives the exit status."""
    parser = _parser()
    try:
        given, _ = parser.parse_known_args(arguments)
        configuration = parse_command_line(parser, Role.BENCH, arguments)
        engine = configuration.group(EngineOptions)
        with _model_folder(configuration.group(ModelOptions).model) as (model, is_shape):
            if is_shape:
                engine = replace(engine, load_format=_DUMMY)
            if _SERVING in given.workloads:
                document = _measure_server(given, model, is_shape=is_shape)
            else:
                document = _measure(given, engine, model)
    except (ConfigError, ModelLoadError, BenchFailedError) as error:
        sys.stderr.write(f"mizzen bench: {error}\n")
        return 1
    if given.json is not None:
        write_json(given.json, document)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = make_parser(Role.BENCH, description=_DESCRIPTION, example=_EXAMPLE)
    sizes, prefix = BenchSizes(), PrefixSizes()
    parser.add_argument(
        "workloads", nargs="+", choices=[*sorted(MEASURES), _SERVING], metavar="WORKLOAD",
        help=f"one or more of {', '.join(sorted(MEASURES))}; or {_SERVING}",
    )  # fmt: skip
    group = parser.add_argument_group("workloads")
    group.add_argument("--requests", type=int, default=sizes.num_requests, metavar="COUNT",
                       help="offline: requests (default %(default)s)")  # fmt: skip
    group.add_argument("--temperature", type=float, default=sizes.temperature, metavar="NUMBER",
                       help="offline: 0 means greedy (default %(default)s)")  # fmt: skip
    group.add_argument("--batches", type=int, nargs="+", default=list(sizes.batches),
                       metavar="COUNT", help="decode: batch sizes (default 1 32 128)")  # fmt: skip
    group.add_argument("--prompt", type=int, default=sizes.num_prompt, metavar="TOKENS",
                       help="decode: ids per prompt (default %(default)s)")  # fmt: skip
    group.add_argument("--new-tokens", type=int, default=sizes.num_new, metavar="TOKENS",
                       help="decode: tokens per answer (default %(default)s)")  # fmt: skip
    group.add_argument("--prefills", type=int, default=sizes.num_prefills, metavar="COUNT",
                       help="prefill: prompts (default %(default)s)")  # fmt: skip
    group.add_argument("--prefill-length", type=int, default=sizes.prefill_length, metavar="TOKENS",
                       help="prefill: ids per prompt (default %(default)s)")  # fmt: skip
    group.add_argument("--groups", type=int, default=prefix.num_groups, metavar="COUNT",
                       help="prefix: groups of 32 requests (default %(default)s)")  # fmt: skip
    group.add_argument("--rate", type=float, default=float("inf"), metavar="NUMBER",
                       help="serving: requests a second, all at once when left out")  # fmt: skip
    group.add_argument("--url", metavar="URL", help="serving: a server that runs; else one is"
                       " started with the engine's flags given here")  # fmt: skip
    group.add_argument("--rounds", type=int, default=sizes.rounds, metavar="COUNT",
                       help="runs of which the median is told (default %(default)s)")  # fmt: skip
    group.add_argument("--json", type=Path, metavar="FILE", help="where to write the numbers")
    return parser


def _sizes(given: argparse.Namespace) -> BenchSizes:
    return BenchSizes(
        num_requests=given.requests,
        temperature=given.temperature,
        batches=tuple(given.batches),
        num_prompt=given.prompt,
        num_new=given.new_tokens,
        num_prefills=given.prefills,
        prefill_length=given.prefill_length,
        prefix=PrefixSizes(num_groups=given.groups),
        rounds=given.rounds,
    )


def _measure(given: argparse.Namespace, engine: EngineOptions, model: Path) -> dict[str, object]:
    started = time.perf_counter()
    tally = ExpertTally()
    options = replace(runner_options(engine, model), expert_tally=tally)
    clock = PhaseClock(ignore_phase, clock=time.perf_counter)
    loaded = load_runner(options, _ignore_progress, clock.enter)
    load_s = time.perf_counter() - started
    phases = clock.finish()
    told = ", ".join(f"{phase} {seconds:.1f}" for phase, seconds in phases.items())
    sys.stderr.write(f"model ready after {load_s:.1f} s ({told})\n")
    bench = BenchEngine(
        loaded.runner,
        EngineLimits(
            max_running=engine.max_running_requests,
            max_chunk_tokens=engine.max_chunk_tokens,
            decode_patience_s=engine.decode_patience_s,
            is_overlapped=is_overlapped(engine),
        ),
    )
    rows_by_workload: dict[str, list[Row]] = {}
    for workload in given.workloads:
        tally.take()
        rows = MEASURES[workload](bench, _sizes(given))
        experts = tally.take()
        if experts is not None:
            # Of all its runs, warm-up included: steps of few tokens, a layer at a time.
            rows = [{**row, "experts/step": experts} for row in rows]
        rows_by_workload[workload] = rows
        sys.stdout.write(f"{workload}:\n{table(rows)}\n")
        sys.stdout.flush()
    return {
        "model": str(given.model),
        "machine": facts_of_machine(engine.device),
        "load_s": load_s,
        "load_phases": dict(phases),
        "rounds": given.rounds,
        "workloads": rows_by_workload,
    }


def _measure_server(given: argparse.Namespace, model: Path, *, is_shape: bool) -> dict[str, object]:
    if given.workloads != [_SERVING]:
        message = f"{_SERVING} runs alone: the other workloads hold the device in this process"
        raise ConfigError(message)
    requests = mixed_requests(given.requests)
    if given.url is not None:
        rows = [_measure_load(given, requests, given.url.rstrip("/"))]
    else:
        with serve(_server_flags(given, model, is_shape=is_shape)) as url:
            rows = [_measure_load(given, requests, url)]
    sys.stdout.write(f"{_SERVING}:\n{table(rows)}\n")
    return {
        "model": str(given.model),
        "machine": facts_of_machine(given.device or "cpu"),
        "workloads": {_SERVING: rows},
    }


def _measure_load(given: argparse.Namespace, requests: list[BenchRequest], url: str) -> Row:
    load = ServingLoad(url=url, rate=given.rate, temperature=given.temperature)
    measure_serving(requests[:4], replace(load, rate=float("inf")))
    return measure_serving(requests, load)


def _server_flags(given: argparse.Namespace, model: Path, *, is_shape: bool) -> list[str]:
    """The engine's flags as given, for a server of this model."""
    flags = ["--model", str(model)]
    for option in options_of(Role.BENCH):
        text = vars(given).get(option.field)
        if text is not None and option.field != "model":
            flags += [option.flag] if option.is_switch else [option.flag, text]
    if is_shape:
        flags += ["--skip-tokenizer", "--load-format", _DUMMY]
    return flags


@contextmanager
def _model_folder(model: Path) -> Iterator[tuple[Path, bool]]:
    """The model's place, and whether it is a shape (then a folder that lives as long)."""
    config = SHAPES.get(str(model))
    if config is None or model.exists():
        yield model, False
        return
    with tempfile.TemporaryDirectory(prefix="mizzen-bench-") as folder:
        (Path(folder) / "config.json").write_text(json.dumps(dict(config)), encoding="utf-8")
        yield Path(folder), True


def _ignore_progress(num_done: int, num_total: int) -> None:
    del num_done, num_total
