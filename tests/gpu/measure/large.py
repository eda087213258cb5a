"""Prefill: whole models in large operations, and the kernels of one replay.

Measured on an H200 with normed rows written out: llama8b, chunks of 8192 tokens as two whole
prompts of 4096, all 32 layers and the head in a graph: 43,600 input tok/s through cuDNN's
attention, 43,200 through ours with pages of 64 (tensor maps), 42,300 with pages of 16. One prompt
of 1024 tokens: llama8b 22.0 ms, qwen06b 2.65 ms. qwen06b 16 x 512: 14.3 ms.

Predicted with factors of rows in their place, which move 64 instead of 128 MB twice a layer: 43,800
to 44,000 through cuDNN's attention, 21.9 ms for 1024 tokens. Chunks of 16384 are no faster.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from tests.benchmark_models import facts_of
from tests.gpu.measure.harness import Readings, capture, require_close, time_graph
from tests.gpu.profile_steps import charge, kernel_runs

from mizzen_worker.attention.torch_native import TorchNativeAttention
from mizzen_worker.attention.triton_attention import TritonAttention
from mizzen_worker.attention.triton_extend import TritonExtend
from mizzen_worker.layers.gpu.large_operations import LargeOperations
from mizzen_worker.layers.gpu.step import GpuSettings, GpuStep, HeadOutput
from mizzen_worker.layers.gpu.weights import GpuWeightPreparer
from mizzen_worker.layers.operations import AttendFunction
from mizzen_worker.layers.rotary import rotary_table
from mizzen_worker.layers.torch_operations import TorchOperations, TorchWeightPreparer
from mizzen_worker.memory.device_pool import DevicePool, PoolShape
from mizzen_worker.memory.forward_batch import ForwardBatch
from mizzen_worker.model_executor.weights.dummy_source import DummySource
from mizzen_worker.model_executor.weights.progress import ByteProgress
from mizzen_worker.models.dense_decoder import DenseDecoder
from mizzen_worker.models.known_architectures import ARCHITECTURE_BY_NAME
from mizzen_worker.models.model_facts import ModelFacts

BF16 = {"device": "cuda", "dtype": torch.bfloat16}
SECONDS = 100
SCALE = 128**-0.5
Rows = Sequence[tuple[int, int]]
"""(positions computed before, new tokens) of every row."""


def model_of(facts: ModelFacts, prepare: GpuWeightPreparer | TorchWeightPreparer) -> DenseDecoder:
    progress = ByteProgress(1, lambda *_: None)
    source = DummySource(progress, torch.device("cuda"))
    return DenseDecoder(ARCHITECTURE_BY_NAME[facts.architecture], facts, source, prepare)


def batch_of(rows: Rows, page_size: int, *, vocab: int = 10_000) -> ForwardBatch:
    """Scrambled pages; the last token of every row is sampled."""
    needed = [-(-(start + count) // page_size) for start, count in rows]
    order = np.random.default_rng(1).permutation(sum(needed)) + 1
    table = np.zeros((len(rows) + 1, max(needed) + 1), dtype=np.int32)
    taken = 0
    for slot, pages in enumerate(needed, 1):
        table[slot, :pages] = order[taken : taken + pages]
        taken += pages
    counts = np.array([count for _, count in rows])
    row_starts = np.concatenate([[0], counts.cumsum()]).astype(np.int32)
    row_lengths = np.array([start + count for start, count in rows], dtype=np.int32)
    positions = np.concatenate([np.arange(start, start + count) for start, count in rows])
    slots = np.arange(1, len(rows) + 1)
    pages = table[slots.repeat(counts), positions // page_size].astype(np.int64)

    def there(values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values).to("cuda")

    return ForwardBatch(
        token_ids=torch.randint(0, vocab, (len(positions),), device="cuda"),
        positions=there(positions.astype(np.int64)),
        kv_locations=there(pages * page_size + positions % page_size),
        page_table=there(table),
        row_slots=there(slots.astype(np.int64)),
        sampled_tokens=there(row_starts[1:].astype(np.int64) - 1),
        device_row_starts=there(row_starts),
        device_row_lengths=there(row_lengths),
        row_starts=row_starts,
        row_lengths=row_lengths,
        page_size=page_size,
    )


def pool_for(facts: ModelFacts, batch: ForwardBatch) -> DevicePool:
    shape = PoolShape(
        num_layers=facts.shape.num_layers,
        num_pages=int(batch.page_table.max()),
        page_size=batch.page_size,
        num_kv_heads=facts.shape.num_kv_heads,
        head_dim=facts.shape.head_dim,
    )
    pool = DevicePool(shape, torch.bfloat16, torch.device("cuda"))
    for layer in range(shape.num_layers):
        pool.keys(layer).normal_()
        pool.values(layer).normal_()
    return pool


@dataclass(frozen=True)
class Prefill:
    """A model, a batch and what a forward needs beside."""

    facts: ModelFacts
    model: DenseDecoder
    batch: ForwardBatch
    pool: DevicePool
    table: torch.Tensor

    def run(self, *, is_exact: bool) -> HeadOutput:
        backend = TritonAttention(self.pool, TritonExtend(self.pool))

        def begin(other: ForwardBatch) -> AttendFunction:
            return backend.begin(other).attend

        shape = self.facts.shape
        settings = GpuSettings(
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            eps=self.facts.rms_norm_eps,
            table=self.table,
        )
        step = GpuStep(
            batch=self.batch,
            pool=self.pool,
            attend=begin(self.batch),
            settings=settings,
            begin_attention=begin,
            is_exact=is_exact,
        )
        return self.model.forward(LargeOperations(step))


def prefill_of(facts: ModelFacts, model: DenseDecoder, rows: Rows, page_size: int) -> Prefill:
    batch = batch_of(rows, page_size)
    table = rotary_table(facts.rotary, max(start + count for start, count in rows)).to("cuda")
    pool = pool_for(facts, batch)
    return Prefill(facts=facts, model=model, batch=batch, pool=pool, table=table)


@torch.inference_mode()
def measure(readings: Readings) -> None:
    for name in ("llama8b", "qwen06b"):
        check_model(readings, name)
    torch.cuda.empty_cache()
    for work in (time_llama, time_qwen, profile_llama):
        if readings.seconds() > SECONDS:
            readings.add(f"{work.__name__} left out: no time")
            continue
        work(readings)
        torch.cuda.empty_cache()


def check_model(readings: Readings, name: str) -> None:
    """Three layers against plain torch in bfloat16, in which rounding alone makes about 1 %."""
    facts = facts_of(name, 3)
    model = model_of(facts, GpuWeightPreparer(torch.bfloat16, torch.device("cuda")))
    plain = model_of(facts, TorchWeightPreparer(torch.bfloat16, torch.device("cuda")))
    for rows, is_exact in (
        ([(0, 700), (512, 300), (2000, 1), (64, 64)], False),
        ([(0, 1024), (0, 1024)], True),
        ([(0, 1024), (0, 1024)], False),
    ):
        prefill = prefill_of(facts, model, rows, 64)
        found = prefill.run(is_exact=is_exact).logits
        batch = prefill.batch
        written = [
            (prefill.pool.keys(i)[batch.kv_locations], prefill.pool.values(i)[batch.kv_locations])
            for i in range(3)
        ]
        attend = TorchNativeAttention(prefill.pool).begin(batch).attend
        ops = TorchOperations(batch, prefill.pool, attend, prefill.table, facts.rms_norm_eps)
        expected = plain.forward(ops)
        error = require_close(f"{name} {rows}", found, expected, 5e-2)
        for i, (keys, values) in enumerate(written):
            for stored, cache in ((keys, prefill.pool.keys(i)), (values, prefill.pool.values(i))):
                require_close(f"{name} {rows} KV", stored, cache[batch.kv_locations], 5e-2)
        readings.add(f"check {name} {rows} exact {is_exact}", error=round(error, 5))


def time_prefill(
    readings: Readings, name: str, prefill: Prefill, *, is_exact: bool, replays: int, rounds: int
) -> None:
    graph = capture(lambda: prefill.run(is_exact=is_exact), warm_up=1)
    us = time_graph(graph, replays=replays, rounds=rounds)
    readings.add(name, us, tokens_per_s=round(prefill.batch.num_tokens / us * 1e6))


def time_eager(readings: Readings, name: str, prefill: Prefill, *, is_exact: bool) -> None:
    """Without a graph: shows whether the host keeps ahead of the device."""
    times = []
    for _ in range(4):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        begin.record()
        prefill.run(is_exact=is_exact)
        end.record()
        end.synchronize()
        times.append(begin.elapsed_time(end) * 1e3)
    us = min(times)
    readings.add(name, us, tokens_per_s=round(prefill.batch.num_tokens / us * 1e6))


def time_llama(readings: Readings) -> None:
    facts = facts_of("llama8b")
    started = readings.seconds()
    model = model_of(facts, GpuWeightPreparer(torch.bfloat16, torch.device("cuda")))
    torch.cuda.synchronize()
    readings.add("llama8b made up", seconds=round(readings.seconds() - started, 2))
    short = prefill_of(facts, model, [(0, 1024)], 64)
    for is_exact in (False, True):
        name = f"llama8b 1 x 1024, whole model, one replay, exact {is_exact}"
        time_prefill(readings, name, short, is_exact=is_exact, replays=1, rounds=9)
    time_eager(readings, "llama8b 1 x 1024, eager", short, is_exact=False)
    for page_size, is_exact in ((64, True), (64, False), (16, False)):
        prefill = prefill_of(facts, model, [(0, 4096)] * 2, page_size)
        name = f"llama8b 2 x 4096, whole model, pages of {page_size}, exact {is_exact}"
        time_prefill(readings, name, prefill, is_exact=is_exact, replays=8, rounds=2)
        if is_exact:
            time_eager(readings, "llama8b 2 x 4096, eager", prefill, is_exact=True)
        del prefill
    large = prefill_of(facts, model, [(0, 4096)] * 4, 64)
    name = "llama8b 4 x 4096, whole model, pages of 64, exact True"
    time_prefill(readings, name, large, is_exact=True, replays=4, rounds=2)


def profile_llama(readings: Readings) -> None:
    """Kernel by kernel: where the time of one replay goes, gaps included."""
    facts = facts_of("llama8b")
    model = model_of(facts, GpuWeightPreparer(torch.bfloat16, torch.device("cuda")))
    for rows, is_exact in (([(0, 1024)], False), ([(0, 4096)] * 2, True)):
        prefill = prefill_of(facts, model, rows, 64)
        graph = capture(partial(prefill.run, is_exact=is_exact), warm_up=1)
        graph.replay()
        torch.cuda.synchronize()
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
            graph.replay()
            torch.cuda.synchronize()
        with tempfile.TemporaryDirectory() as folder:
            trace = Path(folder) / "trace.json"
            profiler.export_chrome_trace(str(trace))
            runs = kernel_runs(trace)
        charged = charge(runs, max(run.start + run.duration for run in runs))
        for kernel, us in sorted(charged.items(), key=lambda item: -item[1]):
            launches = sum(run.name == kernel for run in runs)
            name = f"profile {len(rows)} x {rows[0][1]}: {kernel[:70]}"
            readings.add(name, us, launches=launches)
        del graph, prefill
        torch.cuda.empty_cache()


def time_qwen(readings: Readings) -> None:
    facts = facts_of("qwen06b")
    model = model_of(facts, GpuWeightPreparer(torch.bfloat16, torch.device("cuda")))
    for rows, page_size, is_exact in (
        ([(0, 1024)], 64, False),
        ([(0, 1024)], 16, False),
        ([(0, 1024)], 64, True),
        ([(0, 512)] * 16, 64, True),
        ([(0, 512)] * 16, 64, False),
        ([(0, 512)] * 16, 16, False),
    ):
        prefill = prefill_of(facts, model, rows, page_size)
        name = f"qwen06b {len(rows)} x {rows[0][1]}, pages of {page_size}, exact {is_exact}"
        time_prefill(readings, name, prefill, is_exact=is_exact, replays=4, rounds=5)
        if page_size == 64:
            time_eager(readings, f"{name}, eager", prefill, is_exact=is_exact)
