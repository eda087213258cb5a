"""Where the time of a whole offline run goes: ``python -m tests.gpu.profile_offline llama8b``.

The mixed requests of ``mizzen bench offline`` under torch's profiler. Told are the seconds in which
something runs and in which nothing does, apart for the part with prompts (until the last kernel of
prefill) and the part of decoding alone, the kernels that take most of each, and the size of the
gaps. The rows of a part add up to its length.
"""

import argparse
import tempfile
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import torch
from tests.gpu.profile_steps import GAP, KernelRun, charge, kernel_runs, load_engine

from mizzen_worker.bench.report import table, write_json
from mizzen_worker.bench.shapes import SHAPES
from mizzen_worker.bench.workloads import mixed_requests

PREFILL_KERNELS = ("_extend", "extend_", "_attend", "flash", "sdpa", "cudnn")
"""Parts of the names of kernels that only steps with prompts launch."""
_NUM_SHOWN = 12


def split_at_last_prefill(runs: Sequence[KernelRun]) -> tuple[list[KernelRun], list[KernelRun]]:
    """Kernels up to the last one of prefill, and those after it."""
    last = max(
        (index for index, run in enumerate(runs) if _is_prefill(run.name)),
        default=-1,
    )
    return list(runs[: last + 1]), list(runs[last + 1 :])


def _is_prefill(name: str) -> bool:
    return any(part in name for part in PREFILL_KERNELS)


def rows_of(part: str, runs: Sequence[KernelRun]) -> list[dict[str, float | str]]:
    """Milliseconds by kernel of one part, the gaps among them; the rest summed up."""
    if not runs:
        return []
    until = max(run.start + run.duration for run in runs)
    charged = sorted(charge(runs, until).items(), key=lambda item: -item[1])
    total = sum(us for _, us in charged)
    shown = [item for item in charged if item[0] == GAP or item in charged[:_NUM_SHOWN]]
    rest = total - sum(us for _, us in shown)
    rows = [*shown, ("(all others)", rest), ("(this part)", total)]
    return [
        {"part": part, "kernel": name[:60], "ms": us / 1e3, "share": us / total}
        for name, us in rows
    ]


def gap_rows(runs: Sequence[KernelRun]) -> list[dict[str, float | str]]:
    """How many gaps there are of each size, and what they add up to."""
    ends, gaps = runs[0].start, []
    for run in runs:
        if run.start > ends:
            gaps.append(run.start - ends)
        ends = max(ends, run.start + run.duration)
    bounds = [0.0, 3.0, 10.0, 50.0, 200.0, 1000.0, float("inf")]
    rows: list[dict[str, float | str]] = []
    for low, high in pairwise(bounds):
        inside = [gap for gap in gaps if low < gap <= high]
        rows.append({"gaps above us": low, "count": len(inside), "ms": sum(inside) / 1e3})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.profile_offline")
    parser.add_argument("shape", choices=sorted(SHAPES))
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    engine = load_engine(arguments.shape, arguments.requests, 2100)
    requests = mixed_requests(arguments.requests)
    engine.run(requests[:16])
    plain_s = engine.run(requests).wall_s
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        wall_s = engine.run(requests).wall_s
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        runs = kernel_runs(trace)
    prompts, decoding = split_at_last_prefill(runs)
    rows = rows_of("prompts", prompts) + rows_of("decoding", decoding)
    gaps = gap_rows(runs)
    print(f"{plain_s:.3f} s without profiling, {wall_s:.3f} s with it")
    print(table(rows))
    print(table(gaps))
    if arguments.json is not None:
        document = {"shape": arguments.shape, "wall_s": plain_s, "profiled_s": wall_s}
        write_json(arguments.json, document | {"rows": rows, "gaps": gaps})


if __name__ == "__main__":
    main()
