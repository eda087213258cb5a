"""Owns ``mizzen bench``: from arguments to a table and a file of numbers; times nothing itself."""

import argparse
import gc
import json
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import FrameType

from mizzen_worker.bench.arguments import (
    SERVING,
    bench_parser,
    bench_sizes,
    require_runnable,
)
from mizzen_worker.bench.device_use import meter_of
from mizzen_worker.bench.engine import BenchEngine, BenchFailedError, EngineLimits
from mizzen_worker.bench.measures import MEASURES, Row
from mizzen_worker.bench.report import facts_of_machine, table, write_json
from mizzen_worker.bench.server import serve
from mizzen_worker.bench.serving import ServingLoad, measure_serving, served_model
from mizzen_worker.bench.shapes import SHAPES
from mizzen_worker.bench.workloads import BenchRequest, equal_requests, mixed_requests
from mizzen_worker.config.command_line import parse_command_line
from mizzen_worker.config.groups import EngineOptions, ModelOptions
from mizzen_worker.config.option import Role
from mizzen_worker.config.options import options_of
from mizzen_worker.contracts.errors import ConfigError, ModelLoadError
from mizzen_worker.layers.gpu.expert_tally import ExpertTally
from mizzen_worker.model_executor.factory import load_runner
from mizzen_worker.model_executor.load_phase import PhaseClock, ignore_phase
from mizzen_worker.scheduler.engine_setup import is_overlapped, runner_options

_DUMMY = "dummy"
_STATUS_FAILED, _STATUS_REFUSED = 1, 2
_STATUS_INTERRUPTED, _STATUS_TERMINATED = 130, 143


def run(arguments: Sequence[str]) -> int:
    """Run the benchmarks that the arguments name; gives the exit status."""
    parser = bench_parser()
    try:
        given, _ = parser.parse_known_args(arguments)
        configuration = parse_command_line(parser, Role.BENCH, arguments)
        engine = configuration.group(EngineOptions)
        require_runnable(given, engine)
        model = configuration.group(ModelOptions).model
        given.model = given.model or str(model)  # It may stand in the file of --config.
        with ended_by_signals(), _model_folder(model) as (folder, is_shape):
            if is_shape:
                engine = replace(engine, load_format=_DUMMY)
            if SERVING in given.workloads:
                _keep(given, _measure_server(given, engine, folder, is_shape=is_shape))
            else:
                for document in _measure(given, engine, folder):
                    _keep(given, document)
    except (ConfigError, ModelLoadError) as error:
        sys.stderr.write(f"mizzen bench: {error}\n")
        return _STATUS_REFUSED
    except BenchFailedError as error:
        sys.stderr.write(f"mizzen bench: {error}\n")
        return _STATUS_FAILED
    except KeyboardInterrupt:
        sys.stderr.write("mizzen bench: interrupted\n")
        return _STATUS_INTERRUPTED
    return 0


@contextmanager
def ended_by_signals() -> Iterator[None]:
    """Let SIGTERM and SIGINT unwind as errors do, so that folders and servers of this run go too.

    SIGINT explicitly: asyncio puts a handler of its own in place of Python's, which only asks the
    running task to end, and whoever takes that for a cancellation of its own loses it.
    """

    def terminate(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise SystemExit(_STATUS_TERMINATED)

    def interrupt(number: int, frame: FrameType | None) -> None:
        del number, frame
        raise KeyboardInterrupt

    handlers = {signal.SIGTERM: terminate, signal.SIGINT: interrupt}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _keep(given: argparse.Namespace, document: Mapping[str, object]) -> None:
    if given.json is None:
        return
    try:
        write_json(given.json, document)
    except OSError as error:
        message = f"--json: {given.json} cannot be written: {error.strerror}; give another file"
        raise BenchFailedError(message) from error


def _measure(
    given: argparse.Namespace, engine: EngineOptions, model: Path
) -> Iterator[dict[str, object]]:
    """What is known after each workload: an interrupted run keeps those that ended."""
    sizes = bench_sizes(given, engine)
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
        meter_of(engine.device, tally),
    )
    # As a server does: a collection would stop the loop for what lives as long as the process.
    gc.collect()
    gc.freeze()
    rows_by_workload: dict[str, list[Row]] = {}
    for workload in dict.fromkeys(given.workloads):
        rows = MEASURES[workload](bench, sizes)
        rows_by_workload[workload] = rows
        sys.stdout.write(f"{workload}:\n{table(rows)}\n")
        sys.stdout.flush()
        yield {
            "model": str(given.model),
            "machine": facts_of_machine(engine.device),
            "load_s": load_s,
            "load_phases": dict(phases),
            "rounds": given.rounds,
            "workloads": rows_by_workload,
        }


def _measure_server(
    given: argparse.Namespace, engine: EngineOptions, model: Path, *, is_shape: bool
) -> dict[str, object]:
    requests = mixed_requests(given.requests)
    if given.url is not None:
        url = given.url.rstrip("/")
        rows, name = [_measure_load(given, requests, url)], served_model(url)
    else:
        name = str(given.model)
        with serve(server_flags(given, model, is_shape=is_shape)) as url:
            rows = [_measure_load(given, requests, url)]
    sys.stdout.write(f"{SERVING}:\n{table(rows)}\n")
    return {
        "model": name,
        # Of another's server it is unknown; what is told is where this client ran.
        "machine": facts_of_machine(engine.device if given.url is None else "cpu"),
        "url": given.url,
        "workloads": {SERVING: rows},
    }


def _measure_load(given: argparse.Namespace, requests: list[BenchRequest], url: str) -> Row:
    load = ServingLoad(url=url, rate=given.rate, temperature=given.temperature)
    # Other prompts warm up: none of those that are timed may lie in the prefix cache.
    warming = equal_requests(4, num_prompt=100, num_new=20, seed=1)
    for tried in ((warming, replace(load, rate=float("inf"))), (requests, load)):
        row = measure_serving(*tried)
        if row["failed"] == row["requests"]:
            message = f"no request was answered; look whether a server of Mizzen listens at {url}"
            raise BenchFailedError(message)
    return row


def server_flags(given: argparse.Namespace, model: Path, *, is_shape: bool) -> list[str]:
    """The engine's flags as given, for a server of this model."""
    flags = ["--model", str(model)]
    if given.config is not None:
        flags += ["--config", given.config]
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
