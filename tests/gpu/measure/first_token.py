"""Time to first token of one prompt of 1,024 ids through the engine: who waits for whom.

Predicted (H200): qwen06b 3.85 ms, llama8b 21.95 ms; 4.02 and 22.07 were measured before the forward
was begun ahead of the sampling's preparation, and its tokens were noted by one kernel. Of it the
device takes 2.7 and 21.6 ms from the first to the last kernel of the captured forward; the host
takes 0.5 ms before it (messages, plan, packing, upload), 0.25 ms after the token has arrived;
behind the forward there are four launches and two copies, 30 us.
"""

import itertools
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path

import torch
from tests.gpu.measure.harness import Readings
from tests.gpu.profile_steps import KernelRun, charge, kernel_runs, load_engine

from mizzen_worker.bench.engine import BenchEngine, EngineLimits
from mizzen_worker.bench.workloads import equal_requests
from mizzen_worker.contracts.batch import (
    PendingStep,
    Runner,
    RunnerLimits,
    ScheduleBatch,
    StepResult,
)

_NUM_PROMPT = 1024
_ROUNDS = 15
_LEAST_GAP = 15.0
"""Microseconds."""


class _Marks:
    """Seconds at which something happened in the last call of the engine."""

    def __init__(self) -> None:
        self.launched = self.returned = self.settling = self.settled = 0.0


class _TimedStep:
    """Implements ``PendingStep``."""

    def __init__(self, step: PendingStep, marks: _Marks) -> None:
        self._step = step
        self._marks = marks

    def settle(self) -> StepResult:
        self._marks.settling = time.perf_counter()
        result = self._step.settle()
        self._marks.settled = time.perf_counter()
        return result


class _TimedRunner:
    """Implements ``Runner``."""

    def __init__(self, runner: Runner, marks: _Marks) -> None:
        self._runner = runner
        self._marks = marks

    @property
    def limits(self) -> RunnerLimits:
        return self._runner.limits

    def launch(self, batch: ScheduleBatch) -> PendingStep:
        self._marks.launched = time.perf_counter()
        step = self._runner.launch(batch)
        self._marks.returned = time.perf_counter()
        return _TimedStep(step, self._marks)


def measure(readings: Readings) -> None:
    for shape in ("qwen06b", "llama8b"):
        measure_shape(readings, shape)
        torch.cuda.empty_cache()


def measure_shape(readings: Readings, shape: str) -> None:
    engine, marks = load_engine(shape, 8, _NUM_PROMPT + 64), _Marks()
    limits = EngineLimits(max_running=8, max_chunk_tokens=8192, is_overlapped=True)
    timed = BenchEngine(_TimedRunner(engine._runner, marks), limits)
    parts: dict[str, list[float]] = defaultdict(list)
    for number in range(_ROUNDS + 3):
        prompt = equal_requests(1, num_prompt=_NUM_PROMPT, num_new=1, seed=number)
        began = time.perf_counter()
        wall = timed.run(prompt).wall_s
        ended = time.perf_counter()
        if number >= 3:
            parts["whole"].append(wall)
            parts["a scheduler of its own, not counted"].append(ended - began - wall)
            parts["until the launch"].append(marks.launched - (ended - wall))
            parts["launch"].append(marks.returned - marks.launched)
            parts["launch to token"].append(marks.settled - marks.returned)
            parts["after the token"].append(ended - marks.settled)
    for name, seconds in parts.items():
        us = statistics.median(seconds) * 1e6
        readings.add(f"{shape} first token: {name}", us, least=round(min(seconds) * 1e6, 1))
    runs = _profiled(timed)
    begin, end = runs[0].start, max(run.start + run.duration for run in runs)
    readings.add(f"{shape} first token: device, first to last", end - begin, launches=len(runs))
    charged = charge(runs, end)
    for kernel, us in sorted(charged.items(), key=lambda item: -item[1])[:25]:
        launches = sum(run.name == kernel for run in runs)
        readings.add(f"{shape} first token: {kernel[:70]}", us, launches=launches)
    for before, after in itertools.pairwise(runs):
        gap = after.start - before.start - before.duration
        if gap > _LEAST_GAP:
            at = round(before.start + before.duration - begin)
            name = f"{shape} first token: gap at {at}, {before.name[:40]} to {after.name[:40]}"
            readings.add(name, gap)


def _profiled(engine: BenchEngine) -> list[KernelRun]:
    activities = [torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as profiler:
        engine.run(equal_requests(1, num_prompt=_NUM_PROMPT, num_new=1, seed=-1))
        torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        trace = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(trace))
        return kernel_runs(trace)
