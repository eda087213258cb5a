"""Prefill: the extend attention, the SwiGLU product, and whole models in large operations.

Predicted (H200): llama8b, chunks of 8192 tokens as two whole prompts of 4096, all 32 layers and the
head in a graph: 44,500 input tok/s through cuDNN's attention, 43,700 through ours with pages of 64
(tensor maps), 43,000 with pages of 16. One prompt of 1024 tokens: llama8b 21 ms, qwen06b 2.4 ms.
qwen06b 16 x 512: 14.0 ms (585,000 tok/s). Extend attention of 32/8 heads: 4 x 4096 new tokens
1,090 us, 64 x 128 new behind 2048 780 us (pages of 16). SwiGLU 623, 1,384, 2,845 us at 2048, 4096,
8192 tokens.
"""

import json
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from tests.gpu.measure.harness import Readings, capture, require_close, time_graph, time_work

from mizzen_worker.attention.torch_native import TorchNativeAttention
from mizzen_worker.attention.triton_attention import TritonAttention
from mizzen_worker.attention.triton_extend import TritonExtend
from mizzen_worker.bench.shapes import SHAPES
from mizzen_worker.kernels.gpu.attention_tile import ScoreRule
from mizzen_worker.kernels.gpu.extend_attention import extend_attention
from mizzen_worker.kernels.gpu.extend_plan import (
    ExtendRows,
    ExtendTile,
    HeadShape,
    choose_tile,
    plan_extend,
)
from mizzen_worker.kernels.gpu.launching import PLAIN, shared_memory
from mizzen_worker.kernels.gpu.persistent_gemm import NARROW, WIDE, GemmTile, swiglu_gemm
from mizzen_worker.kernels.gpu.residual_norm import rms_norm
from mizzen_worker.kernels.gpu.rotary_store import RotaryTarget, rotary_store
from mizzen_worker.kernels.reference.swiglu import swiglu
from mizzen_worker.layers.gpu.large_operations import LargeOperations
from mizzen_worker.layers.gpu.step import AttendFunction, GpuSettings, GpuStep, HeadOutput
from mizzen_worker.layers.gpu.weights import GpuWeightPreparer
from mizzen_worker.layers.rotary import rotary_table
from mizzen_worker.layers.torch_operations import TorchOperations, TorchWeightPreparer
from mizzen_worker.memory.device_pool import DevicePool, PoolShape
from mizzen_worker.memory.forward_batch import ForwardBatch
from mizzen_worker.model_executor.weights.dummy_source import DummySource
from mizzen_worker.model_executor.weights.hf_config import read_folder_facts
from mizzen_worker.model_executor.weights.progress import ByteProgress
from mizzen_worker.models.dense_decoder import DenseDecoder
from mizzen_worker.models.known_architectures import ARCHITECTURE_BY_NAME
from mizzen_worker.models.model_facts import ModelFacts

BF16 = {"device": "cuda", "dtype": torch.bfloat16}
SECONDS = 100
SCALE = 128**-0.5
Rows = Sequence[tuple[int, int]]
"""(positions computed before, new tokens) of every row."""


def facts_of(name: str, num_layers: int | None = None) -> ModelFacts:
    config = dict(SHAPES[name])
    if num_layers is not None:
        config["num_hidden_layers"] = num_layers
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config))
        return read_folder_facts(Path(folder), has_weights=False)


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
    check_attention(readings)
    check_swiglu(readings)
    for name in ("llama8b", "qwen06b"):
        check_model(readings, name)
    torch.cuda.empty_cache()
    for work in (time_llama, time_qwen, time_attention, time_swiglu, time_small):
        if readings.seconds() > SECONDS:
            readings.add(f"{work.__name__} left out: no time")
            continue
        work(readings)
        torch.cuda.empty_cache()


@dataclass(frozen=True)
class Attention:
    """Random queries and cache of one layer."""

    heads: HeadShape
    rows: ExtendRows
    batch: ForwardBatch
    queries: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor

    def run(self, rule: ScoreRule, tile: ExtendTile | None = None) -> torch.Tensor:
        tile = tile or choose_tile(self.heads, torch.bfloat16, shared_memory())
        plan = plan_extend(self.rows, self.heads, len(self.queries), tile)
        out = torch.full_like(self.queries, float("nan")).flatten(1)
        return extend_attention(self.queries, self.keys, self.values, plan, rule, out)


def attention_of(heads: HeadShape, rows: Rows, page_size: int) -> Attention:
    batch = batch_of(rows, page_size)
    num_positions = (int(batch.page_table.max()) + 1) * page_size
    keys, values = torch.randn(2, num_positions, heads.num_kv_heads, heads.head_dim, **BF16)
    return Attention(
        heads=heads,
        rows=ExtendRows(
            page_table=batch.page_table,
            row_slots=batch.row_slots,
            row_starts=batch.device_row_starts,
            row_lengths=batch.device_row_lengths,
            page_size=page_size,
        ),
        batch=batch,
        queries=torch.randn(batch.num_tokens, heads.num_heads, heads.head_dim, **BF16),
        keys=keys,
        values=values,
    )


def expected_row(case: Attention, row: int, rule: ScoreRule) -> torch.Tensor:
    """Float32 attention of one row's tokens."""
    batch = case.batch
    first, after = int(batch.row_starts[row]), int(batch.row_starts[row + 1])
    length = int(batch.row_lengths[row])
    places = batch.row_locations(row)
    positions = torch.arange(length - (after - first), length, device="cuda")[:, None]
    index = torch.arange(length, device="cuda")[None, :]
    is_seen = index <= positions
    if rule.window is not None:
        is_seen &= index > positions - rule.window
    queries = case.queries[first:after].float().transpose(0, 1)
    keys, values = (
        cache[places].float().repeat_interleave(case.heads.group, 1).transpose(0, 1)
        for cache in (case.keys, case.values)
    )
    scores = queries @ keys.transpose(1, 2) * rule.scale
    if rule.soft_cap:
        scores = rule.soft_cap * torch.tanh(scores / rule.soft_cap)
    scores = scores.masked_fill(~is_seen, float("-inf"))
    if rule.sinks is not None:
        sinks = rule.sinks[:, None, None].expand(-1, len(positions), 1)
        scores = torch.cat([scores, sinks], dim=2)
    weights = torch.softmax(scores, dim=2)[:, :, :length]
    return (weights @ values).transpose(0, 1).flatten(1)


def check_attention(readings: Readings) -> None:
    rows = [(0, 777), (2048, 128), (1000, 300), (5, 1), (1500, 1)]
    sinks = torch.randn(32, device="cuda")
    for kv_heads, head_dim, page_size, rule in (
        (8, 128, 16, ScoreRule(scale=SCALE)),
        (8, 128, 64, ScoreRule(scale=SCALE)),
        (4, 128, 64, ScoreRule(scale=SCALE)),
        (8, 128, 16, ScoreRule(scale=SCALE, window=300, soft_cap=20.0, sinks=sinks)),
        (8, 64, 1, ScoreRule(scale=SCALE)),
        (8, 256, 16, ScoreRule(scale=SCALE)),
    ):
        heads = HeadShape(num_heads=32, num_kv_heads=kv_heads, head_dim=head_dim)
        case = attention_of(heads, rows, page_size)
        found = case.run(rule)
        name = f"extend 32/{kv_heads} x {head_dim}, pages of {page_size}, window {rule.window}"
        errors = []
        for row in range(len(rows)):
            part = slice(int(case.batch.row_starts[row]), int(case.batch.row_starts[row + 1]))
            expected = expected_row(case, row, rule)
            errors.append(require_close(f"{name}, row {row}", found[part], expected, 1e-2))
        readings.add(f"check {name}", error=round(max(errors), 5))


def check_swiglu(readings: Readings) -> None:
    for tokens, size, inner in ((1000, 4096, 14336), (1024, 1024, 3072), (3, 4096, 14336)):
        inputs = torch.randn(tokens, size, **BF16)
        weight = torch.randn(2 * inner, size, **BF16) * size**-0.5
        bias = torch.randn(2 * inner, device="cuda")
        for tile in (WIDE, NARROW):
            for given in (None, bias):
                name = f"swiglu {tokens} x {inner}, {tile.columns} columns, bias {given is bias}"
                found = swiglu_gemm(inputs, weight, given, tile)
                error = require_close(name, found, swiglu(inputs, weight, given), 1e-2)
                readings.add(f"check {name}", error=round(error, 5))


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
    silent = prefill_of(facts, model, [(0, 4096)] * 2, 64)
    silent = replace(silent, batch=replace(silent.batch, sampled_tokens=_none()))
    name = "llama8b 2 x 4096, nothing sampled, exact True"
    time_prefill(readings, name, silent, is_exact=True, replays=8, rounds=2)


def _none() -> torch.Tensor:
    return torch.empty(0, dtype=torch.int64, device="cuda")


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


def time_attention(readings: Readings) -> None:
    heads = HeadShape(num_heads=32, num_kv_heads=8, head_dim=128)
    tiles = (
        choose_tile(heads, torch.bfloat16, shared_memory()),
        ExtendTile(query_rows=128, key_block=64, num_stages=3, num_warps=8),
    )
    for rows in ([(0, 4096)] * 4, [(2048, 128)] * 64, [(0, 560)] * 14, [(1000, 1)] * 64):
        products = sum(count * (start + (count + 1) / 2) for start, count in rows)
        flops = 4 * heads.num_heads * heads.head_dim * products
        for page_size in (64, 16):
            case = attention_of(heads, rows, page_size)
            for tile in tiles if page_size == 64 else tiles[:1]:
                name = f"extend {len(rows)} x {rows[0]}, pages of {page_size}, {tile}"
                us = _time_attention(case, tile)
                readings.add(name, us, tflops=round(flops / us * 1e-6))


def _time_attention(case: Attention, tile: ExtendTile) -> float:
    plan = plan_extend(case.rows, case.heads, len(case.queries), tile)

    def work() -> None:
        for _ in range(4):
            extend_attention(case.queries, case.keys, case.values, plan, ScoreRule(scale=SCALE))

    return time_work(work, replays=3, rounds=3) / 4


def time_swiglu(readings: Readings) -> None:
    tiles = (WIDE, NARROW, replace(WIDE, num_stages=4), replace(NARROW, num_warps=8))
    for size, inner, counts in ((1024, 3072, (1024, 8192)), (4096, 14336, (1024, 2048, 8192))):
        weights = [torch.randn(2 * inner, size, **BF16) * size**-0.5 for _ in range(2)]
        for tokens in counts:
            inputs = torch.randn(tokens, size, **BF16)
            flops = 4 * tokens * size * inner
            us = _time_each(weights, _library(inputs))
            readings.add(f"library {tokens} x {inner}", us, tflops=round(flops / us * 1e-6))
            for tile in tiles:
                us = _time_each(weights, _ours(inputs, tile))
                name = f"swiglu {tokens} x {inner}, {tile}"
                readings.add(name, us, tflops=round(flops / us * 1e-6))


def _library(inputs: torch.Tensor) -> Callable[[torch.Tensor], object]:
    """The product alone, without SwiGLU."""
    return lambda weight: torch.mm(inputs, weight.t())


def _ours(inputs: torch.Tensor, tile: GemmTile) -> Callable[[torch.Tensor], object]:
    return lambda weight: swiglu_gemm(inputs, weight, None, tile)


def _time_each(weights: list[torch.Tensor], product: Callable[[torch.Tensor], object]) -> float:
    def work() -> None:
        for weight in weights:
            product(weight)

    return time_work(work, replays=3, rounds=3) / len(weights)


def time_small(readings: Readings) -> None:
    """The kernels that only read and write."""
    tokens, heads, kv_heads, head_dim = 8192, 32, 8, 128
    batch = batch_of([(0, tokens // 2)] * 2, 64)
    hidden = torch.randn(tokens, heads * head_dim, **BF16)
    us = time_work(lambda: rms_norm(hidden, 1e-5, PLAIN), replays=8, rounds=3)
    readings.add("norm of 8192 x 4096", us, num_bytes=2 * hidden.nbytes)
    columns = (heads + 2 * kv_heads) * head_dim
    projected = torch.randn(tokens, columns, **BF16)
    keys, values = torch.zeros(2, 2 * tokens, kv_heads, head_dim, **BF16)
    target = RotaryTarget(
        table=torch.randn(tokens, 2, head_dim // 2, device="cuda"),
        positions=batch.positions,
        locations=batch.kv_locations,
        keys=keys,
        values=values,
    )
    for replaces_new in (False, True):

        def work(*, replaces_new: bool = replaces_new) -> torch.Tensor:
            return rotary_store(
                projected,
                None,
                None,
                target,
                dtype=torch.bfloat16,
                launch=PLAIN,
                replaces_new=replaces_new,
            )

        us = time_work(work, replays=8, rounds=3)
        name = f"rotation and store of 8192, in place too {replaces_new}"
        readings.add(name, us, num_bytes=2 * projected.nbytes)
