"""FP8 weights and KV of llama8b: kernels checked at real shapes, steps timed beside bfloat16.

Predictions (H200; whole steps in a graph, head included, best of blocks; contexts 1,100 / 1,150):

| | batch 1 | 32 | 128 | prefill 2 x 4096 |
|---|---|---|---|---|
| bfloat16 | 3.75 ms | 5.6 | 9.5 | 187 |
| KV FP8 | 3.75 | 5.1 | 7.6 | 190 |
| weights FP8 by rows | 2.2 | 4.0 | 8.3 | 197 |
| weights FP8 by blocks | 2.3 | 4.2 | 9.0 | 199 |
| both (rows) | 2.2 | 3.5 | 6.4 | 200 |

Weights of layers are 14 of 15 GB read a token; FP8 halves them, at some 85 % of the bandwidth that
bfloat16 reaches, since a number costs one more instruction. Prefill converts matrices to bfloat16
before each product (1.1 GB a layer moved, 0.3 ms). Errors of logits beside bfloat16, random
weights: KV 1 %, weights 4 to 8 %.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from tests.benchmark_models import LLAMA8B, facts_of, qkv_size
from tests.gpu.measure.harness import (
    Readings,
    capture,
    precompile,
    relative_error,
    require_close,
    time_graph,
    time_work,
)
from tests.gpu.measure.large import batch_of, model_of, pool_for

from mizzen_worker.attention.triton_attention import TritonAttention
from mizzen_worker.attention.triton_extend import TritonExtend
from mizzen_worker.kernels.fp8_matrix import FP8, dequantise, quantise_blocks, quantise_rows
from mizzen_worker.kernels.gpu import gemv, skinny_gemm
from mizzen_worker.kernels.gpu.gemv import GemvTile
from mizzen_worker.kernels.gpu.launching import dependent, shared_memory
from mizzen_worker.kernels.gpu.skinny_tile import Tile
from mizzen_worker.kernels.reference.swiglu import swiglu
from mizzen_worker.layers.gpu.gemv_operations import tile_of
from mizzen_worker.layers.gpu.gemv_tiles import GemvProduct
from mizzen_worker.layers.gpu.skinny_tiles import Matrix, SkinnyProduct, choose_fp8
from mizzen_worker.layers.gpu.step import GpuSettings, HeadOutput, HeadResult
from mizzen_worker.layers.gpu.weights import GpuWeight, GpuWeightPreparer, Quantise
from mizzen_worker.layers.rotary import rotary_table
from mizzen_worker.memory.device_pool import DevicePool
from mizzen_worker.memory.forward_batch import ForwardBatch
from mizzen_worker.model_executor.gpu_forward import GpuForward
from mizzen_worker.model_executor.gpu_model import _REGIMES
from mizzen_worker.models.dense_decoder import DenseDecoder
from mizzen_worker.models.model_facts import ModelFacts

SECONDS = 110
PAGE = 64
CONTEXT = 8192
BF16 = torch.bfloat16
DEVICE = torch.device("cuda")
FORMS: dict[str, Quantise | None] = {
    "bf16": None,
    "fp8": quantise_rows,
    "fp8-block": quantise_blocks,
}
CASES = {
    "batch 1": [(1099, 1)],
    "batch 32": [(1149, 1)] * 32,
    "batch 128": [(1149, 1)] * 128,
    "prefill 2 x 4096": [(0, 4096)] * 2,
}
PAIRS = [("bf16", BF16), ("bf16", FP8), ("fp8", BF16), ("fp8-block", BF16), ("fp8", FP8)]
"""Weights and KV; the first is what the others are compared with."""
_HIDDEN = LLAMA8B.hidden_size
SHAPES = {
    "qkv": (SkinnyProduct.QKV, qkv_size(LLAMA8B), _HIDDEN),
    "o": (SkinnyProduct.ADD, _HIDDEN, LLAMA8B.num_heads * LLAMA8B.head_dim),
    "gate_up": (SkinnyProduct.GATE_UP, 2 * LLAMA8B.intermediate_size, _HIDDEN),
    "down": (SkinnyProduct.ADD, _HIDDEN, LLAMA8B.intermediate_size),
}
COPIES = 8


def stored(outputs: int, inputs: int, quantise: Quantise) -> GpuWeight:
    dense = torch.randn(outputs, inputs, device=DEVICE, dtype=BF16) * inputs**-0.5
    values, scale = quantise(dense)
    return GpuWeight(values=values, scale=scale)


@dataclass(frozen=True)
class Work:
    """A product over ``COPIES`` matrices, and what the first of them should give."""

    name: str
    run: Callable[[int], torch.Tensor]
    expected: Callable[[], torch.Tensor]
    num_bytes: int

    def chain(self) -> None:
        for copy in range(COPIES):
            self.run(copy)


class Products:
    """FP8 matrices of one stage, and products with them."""

    def __init__(self, stage: str, form: str) -> None:
        self.stage, self.form = stage, form
        self.product, outputs, inputs = SHAPES[stage]
        quantise = FORMS[form]
        assert quantise is not None
        self.weights = [stored(outputs, inputs, quantise) for _ in range(COPIES)]

    def expected(self, inputs: torch.Tensor) -> torch.Tensor:
        weight = self.weights[0]
        assert weight.scale is not None
        dense = dequantise(weight.values, weight.scale, torch.float32)
        if self.product is SkinnyProduct.GATE_UP:
            return swiglu(inputs.float(), dense, None)
        return inputs.float() @ dense.t()

    def work(self, rows: int, tile: Tile | GemvTile | None = None) -> Work:
        outputs, inputs = self.weights[0].values.shape
        batch = torch.randn(rows, inputs, device=DEVICE, dtype=BF16)
        chosen = tile or self.shipped(rows)
        name = f"{self.form} {self.stage} {rows}"
        run = self._one(batch, chosen) if isinstance(chosen, GemvTile) else self._few(batch, chosen)
        size = outputs * inputs
        return Work(f"{name} {chosen}", run, lambda: self.expected(batch), COPIES * size)

    def shipped(self, rows: int) -> Tile | GemvTile:
        weight = self.weights[0]
        if rows == 1:
            is_gated = self.product is SkinnyProduct.GATE_UP
            return tile_of(weight, GemvProduct.GATE_UP if is_gated else GemvProduct.ADD)
        assert weight.scale is not None
        outputs, inputs = weight.values.shape
        matrix = Matrix(product=self.product, outputs=outputs, inputs=inputs)
        tile = choose_fp8(matrix, rows, is_grouped=len(weight.scale) > 1)
        assert tile is not None
        return tile.fitted(shared_memory(), 2, 1)

    def _one(self, batch: torch.Tensor, tile: GemvTile) -> Callable[[int], torch.Tensor]:
        def run(copy: int) -> torch.Tensor:
            weight, launch = self.weights[copy], dependent()
            is_gated = self.product is SkinnyProduct.GATE_UP
            size = len(weight.values) // (2 if is_gated else 1)
            out = torch.empty(1, size, device=DEVICE, dtype=BF16)
            if is_gated:
                gemv.gated(
                    batch, weight.values, None, out,
                    norm_eps=None, tile=tile, launch=launch, scale=weight.scale,
                )  # fmt: skip
            else:
                gemv.linear(
                    batch, weight.values, None, None, out,
                    norm_eps=None, tile=tile, launch=launch, scale=weight.scale,
                )  # fmt: skip
            return out

        return run

    def _few(self, batch: torch.Tensor, tile: Tile) -> Callable[[int], torch.Tensor]:
        def run(copy: int) -> torch.Tensor:
            weight, launch = self.weights[copy], dependent()
            if self.product is SkinnyProduct.GATE_UP:
                return skinny_gemm.gated(
                    batch, weight.values, tile, launch=launch, scale=weight.scale
                )
            dtype = torch.float32 if tile.splits > 1 else BF16
            return skinny_gemm.multiply(
                batch, weight.values, tile, dtype=dtype, launch=launch, scale=weight.scale
            )

        return run


def variants(products: Products, rows: int) -> Iterator[Tile | GemvTile]:
    """Other tiles worth trying."""
    shipped = products.shipped(rows)
    if isinstance(shipped, GemvTile):
        step = 2 if products.product is SkinnyProduct.GATE_UP else 1
        for warps, per_warp, ahead in ((8, 2, 4), (8, 2, 8), (8, 1, 8), (8, 1, 16), (4, 4, 4)):
            if per_warp % step == 0:
                yield GemvTile(warps=warps, rows=per_warp, ahead=ahead)
        return
    is_grouped = products.form == "fp8-block"
    for columns, depth, stages, splits in (
        (64, 128, 6, 1), (64, 128, 6, 2), (128, 128, 4, 1), (128, 128, 4, 2), (64, 256, 4, 2),
    ):  # fmt: skip
        if is_grouped and depth > 128:
            continue
        tile = replace(shipped, columns=columns, depth=depth, stages=stages, splits=splits)
        if products.product is SkinnyProduct.GATE_UP:
            if splits > 1 or (rows > 64 and columns > 64):
                continue
            tile = replace(tile, accumulators=2 if columns > 64 else 1)
        yield tile.fitted(shared_memory(), 2, 1)


def check_products(readings: Readings, stages: list[Products]) -> list[Work]:
    """Shipped tiles against float32; gives those to be timed, then others to be tried."""
    shipped = {(each, rows): each.work(rows) for each in stages for rows in (1, 5, 32, 128, 256)}
    tried = [
        each.work(rows, tile)
        for rows in (1, 32, 128)
        for each in stages
        if each.form == "fp8"
        for tile in variants(each, rows)
    ]

    def launch_all() -> None:
        for work in [*shipped.values(), *tried]:
            work.run(0)

    count = precompile(launch_all)
    readings.add("products compiled", count=count, seconds=round(readings.seconds(), 1))
    for work in shipped.values():
        torch.full((1 << 26,), torch.nan, device=DEVICE)
        found = work.run(0).float()
        found = found.sum(0) if found.dim() == 3 else found
        require_close(work.name, found, work.expected(), 0.01)
    readings.add("products correct", count=len(shipped), seconds=round(readings.seconds(), 1))
    return [work for (_, rows), work in shipped.items() if rows in (1, 32, 128)] + tried


def time_products(readings: Readings, works: list[Work]) -> None:
    for work in works:
        if readings.seconds() > SECONDS:
            return
        us = time_work(work.chain, replays=4, rounds=3) / COPIES
        readings.add(work.name, us, num_bytes=work.num_bytes / COPIES)


@dataclass(frozen=True)
class Model:
    facts: ModelFacts
    model: DenseDecoder[GpuWeight]

    def forward(self, pool: DevicePool) -> GpuForward:
        shape = self.facts.shape
        settings = GpuSettings(
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            eps=self.facts.rms_norm_eps,
            table=rotary_table(self.facts.rotary, CONTEXT).to(DEVICE),
        )
        attention = TritonAttention(pool, TritonExtend(pool))
        return GpuForward(self.model, pool, attention, settings, _REGIMES)


def runner(forward: GpuForward, batch: ForwardBatch) -> Callable[[], HeadOutput]:
    """A step as it is captured; a prefill with its exact lengths."""
    is_prefill = batch.num_tokens > batch.num_rows

    def run() -> HeadOutput:
        step = forward._step(
            batch, HeadResult.BEST, is_dependent=not is_prefill, is_exact=is_prefill
        )
        return forward._run(step)

    return run


def packed(pool: DevicePool) -> DevicePool:
    """The same keys and values as FP8."""
    found = DevicePool(pool.shape, FP8, DEVICE)
    for layer in range(pool.shape.num_layers):
        found.keys(layer).copy_(pool.keys(layer))
        found.values(layer).copy_(pool.values(layer))
    return found


def time_steps(readings: Readings) -> None:
    facts = facts_of("llama8b")
    models = {
        name: Model(facts, model_of(facts, GpuWeightPreparer(BF16, DEVICE, quantise)))
        for name, quantise in FORMS.items()
    }
    readings.add("models made", seconds=round(readings.seconds(), 1))
    for case, rows in CASES.items():
        if readings.seconds() > SECONDS:
            return
        batch = batch_of(rows, PAGE)
        exact = pool_for(facts, batch)
        pools = {BF16: exact, FP8: packed(exact)}
        works = {pair: (models[pair[0]].forward(pools[pair[1]]), batch) for pair in PAIRS}

        def launch_all(works: dict = works) -> None:  # type: ignore[type-arg]
            for forward, batch in works.values():
                runner(forward, batch)()
                forward.run(batch)

        precompile(launch_all)
        expected = None
        for pair, (forward, _) in works.items():
            logits = forward.run(batch)
            if expected is None:
                expected = logits
            error = relative_error(logits, expected)
            same = int((logits.argmax(1) == expected.argmax(1)).sum())
            assert error < 0.5, f"{case} {pair}: logits are {error} away"
            replays, rounds = (2, 3) if "prefill" in case else (4, 5)
            us = time_graph(capture(runner(forward, batch)), replays=replays, rounds=rounds)
            name = f"{case}: weights {pair[0]}, KV {str(pair[1]).removeprefix('torch.')}"
            readings.add(name, us, error=round(error, 4), same=f"{same} of {len(logits)}")
        del works, pools, exact
        torch.cuda.empty_cache()


def measure(readings: Readings) -> None:
    """See the module."""
    torch.manual_seed(0)
    stages = [Products(stage, form) for form in ("fp8", "fp8-block") for stage in SHAPES]
    works = check_products(readings, stages)
    time_steps(readings)
    time_products(readings, works)
