"""Where the time of decode steps goes on a GPU: ``python -m tests.gpu.profile_steps qwen06b 1``.

The engine of ``mizzen bench`` decodes a fixed batch under torch's profiler; steps of the middle are
cut out between two launches of the kernel that begins each. Kernels may overlap (dependent
launches), so each is charged from its start to the start of the next, or to its end where nothing
follows at once: the rows, with the gaps in which nothing ran, add up to the step exactly. A kernel
that starts early and waits is charged for its wait. The step's time without profiling is beside.
"""

import argparse
import json
import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from tests.benchmark_models import write_config

from mizzen_worker.bench.engine import BenchEngine, EngineLimits
from mizzen_worker.bench.measures import BenchSizes, measure_decode
from mizzen_worker.bench.report import table, write_json
from mizzen_worker.bench.shapes import SHAPES
from mizzen_worker.bench.workloads import equal_requests
from mizzen_worker.model_executor.factory import load_runner
from mizzen_worker.model_executor.runner_options import RunnerOptions, WeightFormat

FIRST_KERNEL = "stage_step"
"""Part of the name of the kernel with which every decode step begins."""
GAP = "(nothing runs)"
_NUM_STEPS = 20
_NUM_NEW = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRun:
    """One kernel on the device, microseconds."""

    name: str
    start: float
    duration: float


def charge(runs: Sequence[KernelRun], until: float) -> dict[str, float]:
    """Microseconds by kernel name and of gaps, from the first start to ``until``; no rest."""
    charged: dict[str, float] = defaultdict(float)
    ordered = sorted(runs, key=lambda run: run.start)
    for run, following in zip(ordered, [*(r.start for r in ordered[1:]), until], strict=True):
        end = min(run.start + run.duration, following)
        charged[run.name] += end - run.start
        charged[GAP] += following - end
    return dict(charged)


def kernel_runs(trace: Path) -> list[KernelRun]:
    """Kernels and copies of a Chrome trace, in the order of their start."""
    events = json.loads(trace.read_text())["traceEvents"]
    kinds = {"kernel", "gpu_memcpy", "gpu_memset"}
    runs = [
        KernelRun(name=event["name"], start=float(event["ts"]), duration=float(event["dur"]))
        for event in events
        if event.get("cat") in kinds
    ]
    return sorted(runs, key=lambda run: run.start)


def middle_steps(runs: Sequence[KernelRun], num_steps: int) -> tuple[list[KernelRun], float]:
    """The kernels of whole steps in the middle of a run, and when the step after them begins.

    There the whole batch decodes: first some rows still wait for their prompts, last some are done.
    """
    begins = [run.start for run in runs if FIRST_KERNEL in run.name]
    begin = (len(begins) - num_steps) // 2
    if begin < 1:
        message = f"only {len(begins)} launches of {FIRST_KERNEL!r} were traced"
        raise ValueError(message)
    first, until = begins[begin], begins[begin + num_steps]
    return [run for run in runs if first <= run.start < until], until


def profile_batch(engine: BenchEngine, batch: int, num_prompt: int) -> list[dict[str, float | str]]:
    """Rows of one batch size: kernel, microseconds a step, launches a step, share."""
    requests = equal_requests(batch, num_prompt=num_prompt, num_new=_NUM_NEW, seed=batch)
    engine.run(requests)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        engine.run(equal_requests(batch, num_prompt=num_prompt, num_new=_NUM_NEW, seed=-1))
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        runs, until = middle_steps(kernel_runs(trace), _NUM_STEPS)
    charged = charge(runs, until)
    total = sum(charged.values())
    counts: dict[str, int] = defaultdict(int)
    for run in runs:
        counts[run.name] += 1
    rows: list[dict[str, float | str]] = [
        {
            "batch": batch,
            "kernel": name[:60],
            "us a step": us / _NUM_STEPS,
            "launches": counts[name] / _NUM_STEPS,
            "share": us / total,
        }
        for name, us in sorted(charged.items(), key=lambda item: -item[1])
    ]
    whole: dict[str, float | str] = {"batch": batch, "kernel": "step, profiled"}
    whole |= {"us a step": total / _NUM_STEPS, "launches": len(runs) / _NUM_STEPS, "share": 1.0}
    return [*rows, whole]


def load_engine(shape: str, max_running: int, num_positions: int) -> BenchEngine:
    """An engine over made-up weights, with KV memory for so many rows of so many positions."""
    with tempfile.TemporaryDirectory() as folder:
        write_config(Path(folder), shape)
        options = RunnerOptions(
            model=Path(folder),
            page_size=64,
            kv_tokens=max_running * num_positions,
            max_slots=max_running + max_running // 8 + 1,
            max_rows=max_running,
            weight_format=WeightFormat.DUMMY,
            device="cuda",
        )
        runner = load_runner(options, lambda done, total: None).runner
    limits = EngineLimits(
        max_running=max_running, max_chunk_tokens=8192, decode_patience_s=0.5, is_overlapped=True
    )
    return BenchEngine(runner, limits)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.profile_steps")
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("batches", type=int, nargs="+")
    parser.add_argument("--prompt", type=int, default=1024)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    engine = load_engine(arguments.shape, max(arguments.batches), arguments.prompt + 4 * _NUM_NEW)
    rows: list[dict[str, float | str]] = []
    for batch in arguments.batches:
        sizes = BenchSizes(batches=(batch,), num_prompt=arguments.prompt, num_new=128, rounds=1)
        step_ms = float(measure_decode(engine, sizes)[0]["step ms"])
        part = profile_batch(engine, batch, arguments.prompt)
        part.append(
            {"batch": batch, "kernel": "step, not profiled", "us a step": step_ms * 1e3}
            | {"launches": part[-1]["launches"], "share": 1.0}
        )
        print(table(part), flush=True)
        rows += part
    if arguments.json is not None:
        write_json(arguments.json, {"shape": arguments.shape, "rows": rows})


if __name__ == "__main__":
    main()
