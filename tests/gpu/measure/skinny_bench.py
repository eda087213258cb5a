"""Weights, batches and stages of a model's step of few tokens, to be checked and timed.

Knows no list of configurations; see ``skinny.py``.
"""

from dataclasses import dataclass

import numpy as np
import torch
from tests.gpu.measure.harness import require_close, time_work

from mizzen_worker.kernels.gpu.skinny_tile import Tile
from mizzen_worker.kernels.reference.rms_norm import rms_norm
from mizzen_worker.kernels.reference.rotary_store import rotated_heads
from mizzen_worker.layers.gpu.skinny_operations import SkinnyOperations, SkinnyValue
from mizzen_worker.layers.gpu.skinny_tiles import Matrix, SkinnyProduct
from mizzen_worker.layers.gpu.step import GpuSettings, GpuStep, HeadResult
from mizzen_worker.layers.gpu.weights import GpuWeight
from mizzen_worker.layers.operations import HeadNorms
from mizzen_worker.layers.rotary import RotaryConfig, rotary_table
from mizzen_worker.memory.device_pool import DevicePool, PoolShape
from mizzen_worker.memory.forward_batch import ForwardBatch

DEVICE = torch.device("cuda")
DTYPE = torch.bfloat16
EPS = 1e-6
CONTEXT = 2048
HEAD_DIM = 128
LIMIT = 1.2e-2
"""Relative error of one bfloat16 stage against float32."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """A model; ``layers`` distinct ones stand for ``all_layers``."""

    name: str
    layers: int
    all_layers: int
    hidden: int
    heads: int
    kv_heads: int
    inner: int
    vocab: int
    has_norms: bool


QWEN = Sizes(
    name="qwen06b",
    layers=28,
    all_layers=28,
    hidden=1024,
    heads=16,
    kv_heads=8,
    inner=3072,
    vocab=151936,
    has_norms=True,
)
LLAMA = Sizes(
    name="llama8b",
    layers=8,
    all_layers=32,
    hidden=4096,
    heads=32,
    kv_heads=8,
    inner=14336,
    vocab=128256,
    has_norms=False,
)


def matrices(sizes: Sizes) -> dict[str, Matrix]:
    heads = (sizes.heads + 2 * sizes.kv_heads) * HEAD_DIM
    shapes = {
        "qkv": (SkinnyProduct.QKV, heads, sizes.hidden),
        "o": (SkinnyProduct.ADD, sizes.hidden, sizes.heads * HEAD_DIM),
        "gate_up": (SkinnyProduct.GATE_UP, 2 * sizes.inner, sizes.hidden),
        "down": (SkinnyProduct.ADD, sizes.hidden, sizes.inner),
        "head": (SkinnyProduct.BEST, sizes.vocab, sizes.hidden),
    }
    return {
        stage: Matrix(product=product, outputs=outputs, inputs=inputs)
        for stage, (product, outputs, inputs) in shapes.items()
    }


class FixedTile(SkinnyOperations):
    """The shipped operations with one given configuration; None: the library's product."""

    def __init__(self, step: GpuStep, tile: Tile | None) -> None:
        super().__init__(step)
        self._fixed = tile

    def _tile(self, rows: torch.Tensor, weight: GpuWeight, product: SkinnyProduct) -> Tile | None:
        return None if product is SkinnyProduct.LOGITS else self._fixed


def random(*shape: int, scale: float = 1.0) -> torch.Tensor:
    return torch.randn(*shape, device=DEVICE, dtype=DTYPE) * scale


def matrix_of(outputs: int, inputs: int) -> GpuWeight:
    return GpuWeight(values=random(outputs, inputs, scale=inputs**-0.5))


class Bench:
    """Weights of a model and one batch."""

    def __init__(self, sizes: Sizes) -> None:
        self.sizes = sizes
        shapes = matrices(sizes)
        self.weights = {
            stage: [
                matrix_of(matrix.outputs, matrix.inputs)
                for _ in range(1 if stage == "head" else sizes.layers)
            ]
            for stage, matrix in shapes.items()
        }
        self.embedding = GpuWeight(values=random(4096, sizes.hidden))
        norms = [GpuWeight(values=1 + 0.1 * random(HEAD_DIM)) for _ in range(2)]
        self.head_norms = HeadNorms(query=norms[0], key=norms[1]) if sizes.has_norms else None
        self.norm = GpuWeight(values=1 + 0.1 * random(sizes.hidden))
        config = RotaryConfig(head_dim=HEAD_DIM, theta=1e6)
        self.table = rotary_table(config, CONTEXT).to(DEVICE)
        shape = PoolShape(
            num_layers=sizes.layers,
            num_pages=64,
            page_size=16,
            num_kv_heads=sizes.kv_heads,
            head_dim=HEAD_DIM,
        )
        self.pool = DevicePool(shape, DTYPE, DEVICE)

    def step(self, rows: int, *, is_dependent: bool = True) -> GpuStep:
        sizes = self.sizes
        index = torch.arange(rows, device=DEVICE)
        starts = np.arange(rows + 1, dtype=np.int32)
        lengths = np.full(rows, 1000, dtype=np.int32)
        batch = ForwardBatch(
            token_ids=torch.randint(4096, (rows,), device=DEVICE),
            positions=torch.randint(CONTEXT, (rows,), device=DEVICE),
            kv_locations=16 + torch.randperm(1024, device=DEVICE)[:rows],
            page_table=torch.zeros(rows + 1, 64, dtype=torch.int32, device=DEVICE),
            row_slots=index + 1,
            sampled_tokens=index,
            device_row_starts=torch.from_numpy(starts).to(DEVICE),
            device_row_lengths=torch.from_numpy(lengths).to(DEVICE),
            row_starts=starts,
            row_lengths=lengths,
            is_all_sampled=True,
            page_size=16,
        )
        settings = GpuSettings(
            num_heads=sizes.heads,
            num_kv_heads=sizes.kv_heads,
            head_dim=HEAD_DIM,
            eps=EPS,
            table=self.table,
        )
        return GpuStep(
            batch=batch,
            pool=self.pool,
            attend=lambda _layer, queries, _window: queries,
            settings=settings,
            head=HeadResult.BEST,
            is_dependent=is_dependent,
        )

    def queries(self, ops: SkinnyOperations, hidden: SkinnyValue, layer: int) -> SkinnyValue:
        qkv = self.weights["qkv"][layer]
        if self.head_norms is None:
            return ops.norm_qkv_rotary_store(hidden, qkv, layer)
        return ops.norm_qkv_head_norm_rotary_store(hidden, qkv, self.head_norms, layer)

    def whole(self, ops: SkinnyOperations) -> object:
        """A step without attention."""
        hidden = ops.embed(self.embedding)
        weights = self.weights
        for layer in range(self.sizes.layers):
            attended = ops.attend(self.queries(ops, hidden, layer), layer, None)
            hidden = ops.linear_add(attended, weights["o"][layer], hidden)
            inner = ops.norm_gate_up_silu(hidden, weights["gate_up"][layer])
            hidden = ops.linear_add(inner, weights["down"][layer], hidden)
        return ops.norm_head(hidden, self.norm, weights["head"][0])


def poison() -> None:
    """Let the next buffers be cut from memory full of NaN."""
    torch.cuda.empty_cache()
    torch.full((1 << 28,), torch.nan, device=DEVICE)


class Stage:
    """One kind of product on one batch: checks and times a configuration."""

    def __init__(self, bench: Bench, name: str, rows: int) -> None:
        self.bench, self.name, self.rows = bench, name, rows
        self.weights = bench.weights[name]
        width = self.weights[0].values.shape[1]
        self.inputs = random(rows, width)
        self.hidden = random(rows, bench.sizes.hidden)
        self.step = bench.step(rows)
        self._expected: list[torch.Tensor] | None = None

    def launch(self, tile: Tile | None, layer: int, hidden: torch.Tensor) -> list[torch.Tensor]:
        """One stage; what it made, but for keys and values."""
        ops, weight = FixedTile(self.step, tile), self.weights[layer]
        value = SkinnyValue(rows=hidden, normed=self.inputs)
        match self.name:
            case "qkv":
                return [self.bench.queries(ops, value, layer).rows]
            case "gate_up":
                return [ops.norm_gate_up_silu(value, weight).rows]
            case "head":
                best = ops.norm_head(SkinnyValue(rows=hidden), self.bench.norm, weight)
                assert best.best_values is not None
                assert best.best_ids is not None
                return [best.best_values, best.best_ids]
            case _:
                added = ops.linear_add(SkinnyValue(rows=self.inputs), weight, value)
                normed = ops._normed(added)
                return [added.rows, normed]

    def time(self, tile: Tile | None) -> float:
        """Microseconds of one layer's stage, in a chain over all layers."""
        hidden = self.hidden.clone()
        # A head is larger than any cache, so one does for a chain.
        layers = [0] * 4 if self.name == "head" else range(len(self.weights))

        def chain() -> None:
            for layer in layers:
                self.launch(tile, layer, hidden)

        return time_work(chain, replays=4, rounds=5) / len(layers)

    def check(self, tile: Tile | None) -> None:
        name = f"{self.bench.sizes.name} {self.name} {self.rows} {tile}"
        expected = self.expected()
        self.step.pool.keys(0).fill_(torch.nan)
        self.step.pool.values(0).fill_(torch.nan)
        poison()
        found = self.launch(tile, 0, self.hidden.clone())
        if self.name == "qkv":
            locations, pool = self.step.batch.kv_locations, self.step.pool
            found += [pool.keys(0)[locations], pool.values(0)[locations]]
        if self.name == "head":
            best = found[0].max(-1)
            require_close(name, best.values, expected[0].max(-1).values, 4e-3)
            ids = found[1].long().gather(1, best.indices[:, None])
            require_close(name, expected[0].gather(1, ids)[:, 0], best.values, 4e-3)
            return
        for got, wanted in zip(found, expected, strict=True):
            require_close(name, got.reshape(wanted.shape), wanted, LIMIT)

    def expected(self) -> list[torch.Tensor]:
        if self._expected is None:
            self._expected = self._reference()
        return self._expected

    def _reference(self) -> list[torch.Tensor]:
        sizes, batch = self.bench.sizes, self.step.batch
        weight = self.weights[0].values.float()
        product = self.inputs.float() @ weight.t()
        match self.name:
            case "qkv":
                heads = self.bench.head_norms
                norms = (
                    None
                    if heads is None
                    else (heads.query.values.float(), heads.key.values.float(), EPS)
                )
                table = self.bench.table[batch.positions]
                made = rotated_heads(product, (sizes.heads, sizes.kv_heads), norms, table)
                return list(made)
            case "gate_up":
                return [torch.nn.functional.silu(product[:, ::2]) * product[:, 1::2]]
            case "head":
                normed = rms_norm(self.hidden, self.bench.norm.values, EPS)
                return [normed.float() @ weight.t()]
            case _:
                total = self.hidden.float() + product
                return [total, rms_norm(total, torch.ones(sizes.hidden, device=DEVICE), EPS)]
