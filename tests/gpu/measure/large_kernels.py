"""Prefill, kernel by kernel: the extend attention, SwiGLU, the library's products, small kernels.

Predicted (H200). Factors of rows 16 us at 8192 x 4096 where their norm takes 31, 2.5 instead of 4.5
at 1024. SwiGLU scaled costs less than 1 % more: factors come from L1. Of the library's products for
1024 tokens that of queries, keys and values is the slowest (192 tiles of 128 x 256 on 132
multiprocessors): 75 to 91 us, 680 to 566 TFLOP/s. Extend attention of 32/8 heads with pages of 64:
4 x 4096 new tokens 1,120 us, 64 x 128 new behind 2048 580 us, 1 x 1024 new 28 us.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from tests.benchmark_models import DENSE, HEADS, LLAMA8B, QWEN06B, qkv_size
from tests.gpu.measure.harness import Readings, require_close, time_work
from tests.gpu.measure.large import Rows, batch_of

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
from mizzen_worker.kernels.gpu.persistent_gemm import NARROW, WIDE, swiglu_gemm
from mizzen_worker.kernels.gpu.residual_norm import rms_norm, row_scales
from mizzen_worker.kernels.gpu.rotary_store import RotaryTarget, rotary_store
from mizzen_worker.kernels.reference.swiglu import swiglu
from mizzen_worker.memory.forward_batch import ForwardBatch

BF16 = {"device": "cuda", "dtype": torch.bfloat16}
SCALE = 128**-0.5


@torch.inference_mode()
def measure(readings: Readings) -> None:
    check_attention(readings)
    check_swiglu(readings)
    for work in (time_small, time_library, time_swiglu, time_attention):
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
        (8, 128, 64, ScoreRule(scale=SCALE, window=29)),
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
    for tokens, shape in ((1000, LLAMA8B), (1024, QWEN06B), (3, LLAMA8B)):
        size, inner = shape.hidden_size, shape.intermediate_size
        inputs = torch.randn(tokens, size, **BF16)
        weight = torch.randn(2 * inner, size, **BF16) * size**-0.5
        bias = torch.randn(2 * inner, device="cuda")
        scales = torch.rand(tokens, device="cuda") + 0.5
        scaled = inputs.float() * scales[:, None]
        for tile in (WIDE, NARROW):
            for given in (None, bias):
                name = f"swiglu {tokens} x {inner}, {tile.columns} columns, bias {given is bias}"
                found = swiglu_gemm(inputs, weight, given, tile, scales)
                error = require_close(name, found, swiglu(scaled, weight, given), 1e-2)
                readings.add(f"check {name}", error=round(error, 5))


def time_attention(readings: Readings) -> None:
    num_heads, num_kv_heads, head_dim = HEADS[0]
    heads = HeadShape(num_heads=num_heads, num_kv_heads=num_kv_heads, head_dim=head_dim)
    tile = choose_tile(heads, torch.bfloat16, shared_memory())
    for rows in ([(0, 1024)], [(0, 4096)] * 4, [(2048, 128)] * 64, [(0, 560)] * 14):
        products = sum(count * (start + (count + 1) / 2) for start, count in rows)
        flops = 4 * heads.num_heads * heads.head_dim * products
        for page_size in (64, 16):
            case = attention_of(heads, rows, page_size)
            us = _time_attention(case, tile)
            name = f"extend {len(rows)} x {rows[0]}, pages of {page_size}"
            readings.add(name, us, tflops=round(flops / us * 1e-6))


def _time_attention(case: Attention, tile: ExtendTile) -> float:
    plan = plan_extend(case.rows, case.heads, len(case.queries), tile)

    def work() -> None:
        for _ in range(4):
            extend_attention(case.queries, case.keys, case.values, plan, ScoreRule(scale=SCALE))

    return time_work(work, replays=3, rounds=3) / 4


def time_library(readings: Readings) -> None:
    """The library's products of llama8b, with the residual where it is added."""
    hidden_size = LLAMA8B.hidden_size
    shapes = {
        "qkv": (hidden_size, qkv_size(LLAMA8B), False),
        "output": (LLAMA8B.num_heads * LLAMA8B.head_dim, hidden_size, True),
        "down": (LLAMA8B.intermediate_size, hidden_size, True),
    }
    for tokens in (1024, 8192):
        for name, (size, columns, is_added) in shapes.items():
            inputs, hidden = torch.randn(tokens, size, **BF16), torch.randn(tokens, columns, **BF16)
            weights = [torch.randn(columns, size, **BF16) * size**-0.5 for _ in range(4)]
            product = _added(inputs, hidden) if is_added else _library(inputs)
            us = _time_each(weights, product)
            flops = 2 * tokens * size * columns
            readings.add(f"library {name} of {tokens}", us, tflops=round(flops / us * 1e-6))


def time_swiglu(readings: Readings) -> None:
    for shape in DENSE:
        size, inner = shape.hidden_size, shape.intermediate_size
        weights = [torch.randn(2 * inner, size, **BF16) * size**-0.5 for _ in range(2)]
        for tokens in (1024, 8192):
            inputs = torch.randn(tokens, size, **BF16)
            scales = torch.rand(tokens, device="cuda") + 0.5
            flops = 4 * tokens * size * inner
            us = _time_each(weights, _library(inputs))
            readings.add(f"library {tokens} x {inner}", us, tflops=round(flops / us * 1e-6))
            for given in (None, scales):
                us = _time_each(weights, _ours(inputs, given))
                name = f"swiglu {tokens} x {inner}, scaled {given is scales}"
                readings.add(name, us, tflops=round(flops / us * 1e-6))


def _library(inputs: torch.Tensor) -> Callable[[torch.Tensor], object]:
    """The product alone, without SwiGLU."""
    return lambda weight: torch.mm(inputs, weight.t())


def _added(inputs: torch.Tensor, hidden: torch.Tensor) -> Callable[[torch.Tensor], object]:
    return lambda weight: torch.addmm(hidden, inputs, weight.t(), out=hidden)


def _ours(inputs: torch.Tensor, scales: torch.Tensor | None) -> Callable[[torch.Tensor], object]:
    return lambda weight: swiglu_gemm(inputs, weight, None, scales=scales)


def _time_each(weights: list[torch.Tensor], product: Callable[[torch.Tensor], object]) -> float:
    def work() -> None:
        for weight in weights:
            product(weight)

    return time_work(work, replays=3, rounds=3) / len(weights)


def time_small(readings: Readings) -> None:
    """The kernels that only read and write."""
    tokens, (heads, kv_heads, head_dim) = 8192, HEADS[0]
    batch = batch_of([(0, tokens // 2)] * 2, 64)
    for count in (1024, tokens):
        rows = [torch.randn(count, heads * head_dim, **BF16) for _ in range(4)]
        for kernel, num_passes in ((rms_norm, 2), (row_scales, 1)):
            us = _time_each(rows, partial(kernel, eps=1e-5, launch=PLAIN))
            name = f"{kernel.__name__} of {count} x 4096"
            readings.add(name, us, num_bytes=num_passes * rows[0].nbytes)
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
