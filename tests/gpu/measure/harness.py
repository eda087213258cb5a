"""How kernels are timed on a GPU: chains captured in graphs, medians, one line per reading.

A chain runs a kernel over the distinct weights or caches of all layers, far more than L2 holds. A
kernel is compared with its reference on fresh random inputs before it is timed: ``require_close``.
"""

import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch

from mizzen_worker.kernels.gpu.compile_ahead import CompileProcesses, recorded_kernels
from mizzen_worker.kernels.gpu.launching import compute_capability


class Readings:
    """Collects numbers, prints each at once, and writes them as JSON at the end."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._rows: list[dict[str, object]] = []
        self._started = time.monotonic()

    def add(
        self, name: str, us: float | None = None, *, num_bytes: float = 0, **facts: object
    ) -> None:
        """Note one reading: microseconds, and TB/s where the bytes are known."""
        row: dict[str, object] = {"name": name} | facts
        if us is not None:
            row["us"] = round(us, 2)
            if num_bytes:
                row["TB/s"] = round(num_bytes / us * 1e-6, 3)
        self._rows.append(row)
        print(json.dumps(row), flush=True)

    def seconds(self) -> float:
        """Seconds since the beginning, so that a sweep can keep to its time."""
        return time.monotonic() - self._started

    def write(self) -> None:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        self._path.write_text(json.dumps(self._rows, indent=1) + "\n")


def precompile(work: Callable[[], object]) -> int:
    """Compile what ``work`` launches, side by side; gives how many kernels. Nothing is launched."""
    processes = CompileProcesses(
        capability=compute_capability(),
        num_processes=min(16, os.cpu_count() or 1),
        environment=os.environ,
    )
    with recorded_kernels(processes.add):
        work()
    return processes.finish(lambda done, total: None)


def capture(work: Callable[[], object], *, warm_up: int = 2) -> torch.cuda.CUDAGraph:
    """A graph of ``work``, which ran before so that everything is compiled.

    Not through ``torch.cuda.graph``: that collects garbage first, half a second each time.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(warm_up):
            work()
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        try:
            work()
        finally:
            graph.capture_end()
    torch.cuda.synchronize()
    return graph


def time_graph(graph: torch.cuda.CUDAGraph, *, replays: int = 8, rounds: int = 7) -> float:
    """Median microseconds of one replay, gap between replays included."""
    for _ in range(2):
        graph.replay()
    times = []
    for _ in range(rounds):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(replays):
            graph.replay()
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3 / replays)
    return statistics.median(times)


def time_work(work: Callable[[], object], *, replays: int = 8, rounds: int = 7) -> float:
    """Microseconds of ``work`` as a graph."""
    return time_graph(capture(work), replays=replays, rounds=rounds)


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    """Norm of the difference over the norm; NaN never passes a comparison with it."""
    wide, reference = found.double(), expected.double()
    return float((wide - reference).norm() / reference.norm())


def require_close(name: str, found: torch.Tensor, expected: torch.Tensor, limit: float) -> float:
    """The relative error; raises ``AssertionError`` above ``limit``."""
    error = relative_error(found, expected)
    assert error < limit, f"{name}: relative error {error:.4g} is not below {limit}"
    return error
