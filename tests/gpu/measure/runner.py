"""Times the runner around the model on a GPU: host time of a launch, gap between captured steps.

Predictions for 4 layers in the shape of qwen06b, bfloat16: a greedy launch keeps the host 35 us at
batch 1 and 60 us at batch 256 with 16 page writes; two captured steps in flight follow each other
within 10 us beyond the graph's own time (itself with the 5 us between two graphs); a prompt of
1,024 tokens takes its kernels' time plus 0.5 ms; capturing takes less than 2 s.
"""

import statistics
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from tests.benchmark_models import write_config
from tests.gpu.measure.harness import Readings

from mizzen_worker.contracts.batch import (
    DecodeRows,
    ExtendRow,
    PageWrite,
    PendingStep,
    ScheduleBatch,
    SlotInit,
)
from mizzen_worker.contracts.request import SamplingParams
from mizzen_worker.model_executor.decode_graphs import _Kind
from mizzen_worker.model_executor.factory import load_runner
from mizzen_worker.model_executor.model_runner import ModelRunner
from mizzen_worker.model_executor.runner_options import RunnerOptions, WeightFormat
from mizzen_worker.model_executor.tail import Tail

_LAYERS = 4
_PAGE = 16
_MAX_SLOTS = 288
_CONTEXT = 2048
_START = 700
_KINDS = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 0.6},
    "filtered": {"temperature": 0.6, "top_k": 50, "top_p": 0.95},
    "penalised": {"temperature": 0.6, "presence_penalty": 0.5},
}


class _Bench:
    """One runner; every slot's pages are its own."""

    def __init__(self, readings: Readings) -> None:
        self._folder = tempfile.TemporaryDirectory()
        folder = Path(self._folder.name)
        write_config(folder, "qwen06b", _LAYERS)
        started = time.monotonic()
        loaded = load_runner(
            RunnerOptions(
                model=folder,
                kv_tokens=(_MAX_SLOTS + 1) * _CONTEXT,
                page_size=_PAGE,
                max_slots=_MAX_SLOTS,
                context_length=_CONTEXT,
                weight_format=WeightFormat.DUMMY,
                device="cuda",
                max_chunk_tokens=2048,
            ),
            lambda done, total: None,
        )
        assert isinstance(loaded.runner, ModelRunner)
        self.runner = loaded.runner
        readings.add("load", (time.monotonic() - started) * 1e6)
        self._step = 0

    def batch(self, **parts: object) -> ScheduleBatch:
        self._step += 1
        nobody = np.empty(0, dtype=np.int32)
        values: dict[str, object] = {
            "extends": (),
            "decodes": DecodeRows(slots=nobody, starts=nobody),
            "slot_inits": (),
            "page_writes": (),
        }
        return ScheduleBatch(step=self._step, **{**values, **parts})

    def enter(self, num_rows: int, num_tokens: int, kind: str) -> float:
        """Seconds that prompts take, first one included; slots 1 to ``num_rows``."""
        dice = np.random.default_rng(0)
        pages = _CONTEXT // _PAGE
        spent = 0.0
        for slot in range(1, num_rows + 1):
            ids = dice.integers(0, 10_000, num_tokens).astype(np.int32)
            step = self.batch(
                extends=(
                    ExtendRow(
                        request_id=str(slot),
                        slot=slot,
                        start=0,
                        num_new=num_tokens,
                        token_ids=ids,
                        is_sampled=True,
                    ),
                ),
                slot_inits=(
                    SlotInit(
                        slot=slot,
                        sampling=SamplingParams(max_new_tokens=1 << 20, seed=slot, **_KINDS[kind]),
                        num_prompt_tokens=num_tokens,
                        num_generated_tokens=0,
                        eos_token_ids=(),
                        max_tokens=1 << 20,
                        history=ids if kind == "penalised" else None,
                    ),
                ),
                page_writes=(
                    PageWrite(
                        slot=slot,
                        first_page=0,
                        pages=np.arange(pages, dtype=np.int32) + (slot - 1) * pages + 1,
                    ),
                ),
            )
            started = time.perf_counter()
            self.runner.launch(step).settle()
            spent = time.perf_counter() - started
        return spent

    def decode(self, num_rows: int, number: int, num_writes: int = 0) -> ScheduleBatch:
        pages = _CONTEXT // _PAGE
        return self.batch(
            decodes=DecodeRows(
                slots=np.arange(1, num_rows + 1, dtype=np.int32),
                starts=np.full(num_rows, _START + number, dtype=np.int32),
            ),
            page_writes=tuple(
                PageWrite(
                    slot=slot, first_page=0, pages=np.array([(slot - 1) * pages + 1], np.int32)
                )
                for slot in range(1, num_writes + 1)
            ),
        )


def _host_and_step(bench: _Bench, num_rows: int, num_steps: int = 64) -> tuple[float, float, float]:
    """Medians in us: launch, settle, and a step with two in flight."""
    launches, settles = [], []
    pending: list[PendingStep] = []
    batches = [bench.decode(num_rows, number, num_rows // 16) for number in range(num_steps)]
    torch.cuda.synchronize()
    started = time.perf_counter()
    for batch in batches:
        before = time.perf_counter()
        pending.append(bench.runner.launch(batch))
        launched = time.perf_counter()
        if len(pending) > 1:
            pending.pop(0).settle()
        launches.append(launched - before)
        settles.append(time.perf_counter() - launched)
    pending.pop().settle()
    step = (time.perf_counter() - started) / num_steps
    return statistics.median(launches) * 1e6, statistics.median(settles) * 1e6, step * 1e6


def _graph_alone(bench: _Bench, num_rows: int, tail: Tail, replays: int = 32) -> float:
    """us of a graph that follows itself, without the host between."""
    captured = bench.runner._captured
    assert captured is not None
    decode = captured._decode  # type: ignore[attr-defined]
    size = decode._sizes[decode._bucket_by_rows[num_rows]]
    graph = decode._graphs[_Kind(num_rows=size, tail=tail, is_shared=False)].graph
    # The ring keeps the words of steps that ran. The device counts these replays and the host does
    # not, so their number is a multiple of the ring's places.
    torch.cuda.synchronize()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    for _ in range(4):
        graph.replay()
    begin.record()
    for _ in range(replays):
        graph.replay()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) * 1e3 / replays


def measure(readings: Readings) -> None:
    """See the module."""
    bench = _Bench(readings)
    for num_rows in (1, 32, 256):
        for kind, tail in (
            ("greedy", Tail.BEST),
            ("drawn", Tail.DRAWN),
            ("filtered", Tail.DRAWN),
            ("penalised", Tail.LOGITS),
        ):
            if readings.seconds() > 50:
                return
            bench.enter(num_rows, 16, kind)
            _host_and_step(bench, num_rows, 16)
            launch, settle, step = _host_and_step(bench, num_rows)
            alone = _graph_alone(bench, num_rows, tail)
            readings.add(
                f"decode {num_rows} {kind}",
                step,
                launch_us=round(launch, 1),
                settle_us=round(settle, 1),
                graph_us=round(alone, 1),
                gap_us=round(step - alone, 1),
            )
    for num_tokens in (64, 1024, 2048):
        bench.enter(1, num_tokens, "greedy")
        times = [bench.enter(1, num_tokens, "greedy") for _ in range(5)]
        readings.add(f"prompt {num_tokens}", statistics.median(times) * 1e6)
