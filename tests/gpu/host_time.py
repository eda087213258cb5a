"""Times what the host does for prompts, on any machine: kernels and copies are left out.

``python -m tests.gpu.host_time [--model qwen06b] [--chunk 8192]`` runs 256 mixed requests, then one
of 1,024 ids at a time, through the engine over a device that holds no values. What torch does for a
tensor without values costs more than its launch, so times behind a captured forward are too long;
those before it have none of that. Not timed: launches of kernels and graphs, copies.
"""

import argparse
import gc
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
import triton
from tests.benchmark_models import write_config
from triton.runtime.jit import KernelInterface

from mizzen_worker.bench.engine import BenchEngine, EngineLimits
from mizzen_worker.bench.shapes import SHAPES
from mizzen_worker.bench.workloads import BenchRequest, equal_requests, mixed_requests
from mizzen_worker.contracts.batch import (
    BoolArray,
    Int32Array,
    PendingStep,
    RunnerLimits,
    ScheduleBatch,
    StepResult,
)
from mizzen_worker.kernels.gpu.claimed_driver import ClaimedDriver
from mizzen_worker.layers.gpu.weights import GpuWeightPreparer
from mizzen_worker.model_executor.device_link import PendingDownload
from mizzen_worker.model_executor.gpu_model import load_gpu_model, step_capture
from mizzen_worker.model_executor.graph_buckets import longest_padded
from mizzen_worker.model_executor.graphs import Graph
from mizzen_worker.model_executor.model_runner import ModelRunner
from mizzen_worker.model_executor.runner_parts import build_pool, pool_shape
from mizzen_worker.model_executor.valueless import VALUELESS, ValuelessGraphs, ValuelessSource
from mizzen_worker.model_executor.weights.checkpoint import OpenWeights, open_checkpoint

_MAX_RUNNING = 256
_PAGE_SIZE = 64
_NUM_NEW = 8
_ROUNDS = 30


class _Zeros:
    """Implements ``PendingDownload``."""

    def __init__(self, tensors: Sequence[torch.Tensor]) -> None:
        self._tensors = tensors

    def wait(self) -> list[np.ndarray]:
        return [np.zeros(tensor.shape, dtype=np.int64) for tensor in self._tensors]


class _Link:
    """Implements ``DeviceLink``; what comes back is zeros."""

    def upload(self, words: Int32Array) -> torch.Tensor:
        return torch.empty(len(words), dtype=torch.int32, device=VALUELESS)

    def download(self, tensors: Sequence[torch.Tensor]) -> PendingDownload:
        return _Zeros(tensors)


class _Step:
    """Implements ``PendingStep``: of decode rows alone without a runner."""

    def __init__(self, step: int, is_finished: BoolArray, pending: PendingStep | None) -> None:
        self._step, self._is_finished, self._pending = step, is_finished, pending

    def settle(self) -> StepResult:
        if self._pending is not None:
            return replace(self._pending.settle(), is_finished=self._is_finished)
        ids = np.zeros(len(self._is_finished), dtype=np.int32)
        return StepResult(step=self._step, sampled_ids=ids, is_finished=self._is_finished)


class _TimedRunner:
    """Implements ``Runner``: notes when prompts came to it and when it was ready again."""

    def __init__(self, runner: ModelRunner) -> None:
        self.limits = runner.limits
        self.seconds: dict[str, list[float]] = defaultdict(list)
        self.began = self.captured = 0.0
        self._runner = runner
        self._ended: float | None = None
        self._most = np.zeros(self.limits.max_slots + 1, dtype=np.int64)

    def begin(self) -> None:
        self._ended, self.began = None, time.perf_counter()

    def launch(self, batch: ScheduleBatch) -> PendingStep:
        for init in batch.slot_inits:
            self._most[init.slot] = init.max_tokens
        rows = [row for row in batch.extends if row.is_sampled]
        known = [self._most[row.slot] <= row.start + row.num_new + 1 for row in rows]
        decodes = batch.decodes
        known += (self._most[decodes.slots] <= decodes.starts + 2).tolist()
        is_finished = np.array(known, dtype=np.bool_)
        if not batch.extends:
            return _Step(batch.step, is_finished, None)
        launched = time.perf_counter()
        pending = self._runner.launch(batch)
        since = self.began if self._ended is None else self._ended
        name = "arrival to runner" if self._ended is None else "runner to runner"
        self.seconds[name].append(launched - since)
        self.seconds["runner to captured forward"].append(self.captured - launched)
        self._ended = time.perf_counter()
        self.seconds["captured forward to return"].append(self._ended - self.captured)
        return _Step(batch.step, is_finished, pending)


def _runner(model: str, folder: Path) -> _TimedRunner:
    write_config(folder, model)
    valueless = OpenWeights(source=ValuelessSource(), finish=lambda: None)
    checkpoint = replace(open_checkpoint(folder, is_dummy=True), open_weights=lambda _: valueless)
    facts = checkpoint.facts
    limits = RunnerLimits(
        max_slots=_MAX_RUNNING + _MAX_RUNNING // 8 + 1,
        num_pages=16_000,
        page_size=_PAGE_SIZE,
        context_length=facts.context_length,
        vocab_size=facts.shape.vocab_size,
    )
    prepare = GpuWeightPreparer(torch.bfloat16, VALUELESS)
    made = load_gpu_model(checkpoint, prepare, limits.context_length, lambda done, total: None)
    forward = made.forward(build_pool(pool_shape(facts, limits), torch.bfloat16, VALUELESS))
    timed: list[_TimedRunner] = []

    class NotingGraph:
        def replay(self) -> None:
            if timed:
                timed[0].captured = time.perf_counter()

    class Graphs(ValuelessGraphs):
        def capture(self, work, rehearse) -> tuple[Graph, torch.Tensor | None]:
            return NotingGraph(), super().capture(work, rehearse)[1]

    capture = step_capture(forward, limits, Graphs, longest_padded(facts.shape), _MAX_RUNNING)
    runner = ModelRunner(forward, limits, VALUELESS, _Link(), capture)
    runner.warm_up(lambda done, total: None)
    timed.append(_TimedRunner(runner))
    return timed[0]


def _report(title: str, timed: _TimedRunner) -> None:
    print(title)
    for name, seconds in timed.seconds.items():
        us = [1e6 * value for value in seconds]
        print(f"  {name:<28}{statistics.median(us):>9.0f} us, {min(us):.0f} at least, {len(us)}")
    timed.seconds.clear()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", choices=tuple(SHAPES), default="qwen06b")
    parser.add_argument("--chunk", type=int, default=8192)
    given = parser.parse_args()
    torch.set_num_threads(1)
    triton.runtime.driver.set_active(ClaimedDriver(90))
    KernelInterface.__getitem__ = lambda kernel, grid: lambda *arguments, **options: None
    with tempfile.TemporaryDirectory() as folder:
        timed = _runner(given.model, Path(folder))
    limits = EngineLimits(
        max_running=_MAX_RUNNING,
        max_chunk_tokens=given.chunk,
        is_overlapped=True,
        decode_patience_s=0.5,
    )
    engine = BenchEngine(timed, limits)
    gc.collect()
    gc.freeze()

    def run(requests: Sequence[BenchRequest]) -> None:
        timed.begin()
        engine.run(requests)

    crowd = [replace(request, num_new=_NUM_NEW) for request in mixed_requests(_MAX_RUNNING)]
    run(crowd)
    timed.seconds.clear()
    for _ in range(5):
        run(crowd)
    _report(f"{_MAX_RUNNING} requests at once, chunks of {given.chunk}:", timed)
    for number in range(_ROUNDS):
        run(equal_requests(1, num_prompt=1024, num_new=1, seed=number))
    _report("one request of 1,024 ids:", timed)


if __name__ == "__main__":
    main()
