"""Whole steps of one token at real shapes, with any tiles, on the device or only noted.

Tiles are what ``layers/gpu/gemv_tiles.py`` says unless a variant says otherwise.
"""

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from unittest import mock

import numpy as np
import torch
from tests.benchmark_models import facts_of

from mizzen_worker.attention.torch_native import TorchNativeAttention
from mizzen_worker.kernels.gpu.gemv import GemvTile
from mizzen_worker.kernels.gpu.single_row_attention import SplitTile
from mizzen_worker.layers.gpu import gemv_operations, gemv_tiles
from mizzen_worker.layers.gpu.gemv_operations import GemvOperations
from mizzen_worker.layers.gpu.gemv_tiles import GemvProduct
from mizzen_worker.layers.gpu.step import GpuSettings, GpuStep, HeadOutput, HeadResult
from mizzen_worker.layers.gpu.weights import GpuWeightPreparer
from mizzen_worker.layers.rotary import rotary_table
from mizzen_worker.layers.torch_operations import TorchOperations, TorchWeightPreparer
from mizzen_worker.memory.device_pool import DevicePool, PoolShape
from mizzen_worker.memory.forward_batch import ForwardBatch
from mizzen_worker.models.architecture import Architecture
from mizzen_worker.models.dense_decoder import DenseDecoder
from mizzen_worker.models.known_architectures import ARCHITECTURE_BY_NAME
from mizzen_worker.models.model_facts import ModelFacts, ModelShape

PAGE_SIZE = 16
MAX_CONTEXT = 32_768


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A model, or its first layers; ``context`` positions, the token's own included."""

    name: str
    num_layers: int | None = None
    context: int = 1100

    @property
    def facts(self) -> ModelFacts:
        return facts_of(self.name, self.num_layers)

    @property
    def shape(self) -> ModelShape:
        return self.facts.shape

    @property
    def architecture(self) -> Architecture:
        return ARCHITECTURE_BY_NAME[self.facts.architecture]

    def with_layers(self, num_layers: int) -> "Subject":
        return dataclasses.replace(self, num_layers=num_layers)

    def key(self, product: GemvProduct, *, is_down: bool = False) -> tuple[GemvProduct, int, int]:
        """Where the tile of one of its products stands in the table."""
        shape = self.shape
        queries = shape.num_heads * shape.head_dim
        num_rows = {
            GemvProduct.QKV: queries + 2 * shape.num_kv_heads * shape.head_dim,
            GemvProduct.ADD: shape.hidden_size,
            GemvProduct.GATE_UP: 2 * shape.intermediate_size,
            GemvProduct.HEAD: shape.vocab_size,
        }[product]
        if product is GemvProduct.ADD:
            return product, num_rows, shape.intermediate_size if is_down else queries
        return product, num_rows, shape.hidden_size


QWEN06B, LLAMA8B = Subject(name="qwen06b"), Subject(name="llama8b")

Tiles = dict[str, GemvTile | SplitTile]
"""By factor: "attention", "qkv", "output", "gate_up", "down", "head"; what is left out: shipped."""


@contextlib.contextmanager
def using(subject: Subject, tiles: Tiles) -> Iterator[None]:
    """Operations made inside are cut by these tiles."""
    keys = {
        "qkv": subject.key(GemvProduct.QKV),
        "output": subject.key(GemvProduct.ADD),
        "gate_up": subject.key(GemvProduct.GATE_UP),
        "down": subject.key(GemvProduct.ADD, is_down=True),
        "head": subject.key(GemvProduct.HEAD),
    }
    table = {keys[name]: tile for name, tile in tiles.items() if name != "attention"}
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch.dict(gemv_tiles._TILE_BY_SHAPE, table))
        if "attention" in tiles:
            tile = tiles["attention"]
            patch = mock.patch.object(gemv_operations, "split_tile", return_value=tile)
            stack.enter_context(patch)
        yield


@contextlib.contextmanager
def without(subject: Subject, part: str) -> Iterator[None]:
    """Operations made inside leave a kernel out: a factor's name, or "head"."""
    names = {
        "qkv": "rotary_linear",
        "attention": "single_row_attention",
        "gate_up": "gated",
        "head": "best_of_blocks",
    }
    if part in names:
        with mock.patch.object(gemv_operations, names[part]):
            yield
        return
    left_out = subject.key(GemvProduct.ADD, is_down=part == "down")[1:]
    linear = gemv_operations.linear

    def others(x: torch.Tensor, weight: torch.Tensor, *rest: object, **options: object) -> None:
        if tuple(weight.shape) != left_out:
            linear(x, weight, *rest, **options)  # type: ignore[arg-type]

    with mock.patch.object(gemv_operations, "linear", others):
        yield


class RandomSource:
    """Normal weights of variance 1 / inputs, made where they are used; the same by name."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    def vector(self, name: str, length: int) -> torch.Tensor:
        if self._device.type == "meta":
            return torch.empty(length, device=self._device)
        return torch.rand(length, generator=self._generator(name), device=self._device) + 0.5

    def matrix(self, name: str, rows: int, columns: int) -> torch.Tensor:
        if self._device.type == "meta":
            return torch.empty(rows, columns, device=self._device)
        generator = self._generator(name)
        values = torch.empty(rows, columns, device=self._device, dtype=torch.bfloat16)
        return values.normal_(std=columns**-0.5, generator=generator)

    def _generator(self, name: str) -> torch.Generator:
        return torch.Generator(self._device).manual_seed(sum(name.encode()))


class Bench:
    """One model with a pool and a decode row in it."""

    def __init__(
        self, subject: Subject, device: torch.device, dtype: torch.dtype = torch.bfloat16
    ) -> None:
        self.subject, self.device = subject, device
        shape = subject.shape
        source = RandomSource(device)
        prepare = GpuWeightPreparer(dtype, device)
        self.model = DenseDecoder(subject.architecture, subject.facts, source, prepare)
        num_pages = MAX_CONTEXT // PAGE_SIZE
        pool_shape = PoolShape(
            num_layers=shape.num_layers,
            num_pages=num_pages,
            page_size=PAGE_SIZE,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
        )
        self.pool = DevicePool(pool_shape, dtype, device)
        self.table = rotary_table(subject.facts.rotary, MAX_CONTEXT).to(device)
        torch.manual_seed(1)
        pages = torch.stack([torch.zeros(num_pages), torch.randperm(num_pages) + 1]).int()
        self.page_table = pages.to(device)
        if device.type != "meta":
            for layer in range(shape.num_layers):
                self.pool.keys(layer).normal_()
                self.pool.values(layer).normal_()
        self.batch = self.batch_of(pages)

    def batch_of(self, pages: torch.Tensor) -> ForwardBatch:
        length = self.subject.context
        position = length - 1
        location = int(pages[1, position // PAGE_SIZE]) * PAGE_SIZE + position % PAGE_SIZE

        def one(value: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return torch.tensor([value], dtype=dtype).to(self.device)

        return ForwardBatch(
            token_ids=one(7),
            positions=one(position),
            kv_locations=one(location),
            page_table=self.page_table,
            row_slots=one(1),
            sampled_tokens=one(0),
            device_row_starts=torch.tensor([0, 1], dtype=torch.int32).to(self.device),
            device_row_lengths=one(length, torch.int32),
            row_starts=np.array([0, 1], dtype=np.int32),
            row_lengths=np.array([length], dtype=np.int32),
            page_size=PAGE_SIZE,
        )

    def operations(self, head: HeadResult, *, is_dependent: bool = True) -> GemvOperations:
        shape = self.subject.shape
        settings = GpuSettings(
            num_heads=shape.num_heads,
            num_kv_heads=shape.num_kv_heads,
            head_dim=shape.head_dim,
            eps=1e-6,
            table=self.table,
        )
        step = GpuStep(
            batch=self.batch,
            pool=self.pool,
            attend=lambda _layer, queries, _window: queries,
            settings=settings,
            head=head,
            is_dependent=is_dependent,
        )
        return GemvOperations(step)

    def step(
        self, head: HeadResult, tiles: Tiles, *, is_dependent: bool = True
    ) -> Callable[[], HeadOutput]:
        def run() -> HeadOutput:
            with using(self.subject, tiles):
                found = self.model.forward(self.operations(head, is_dependent=is_dependent))
            assert isinstance(found, HeadOutput)
            return found

        return run

    def expected(self) -> torch.Tensor:
        """Logits of float32 plain torch over the same weights and the same pool."""
        subject = self.subject
        pool = DevicePool(self.pool.shape, torch.float32, self.device)
        for layer in range(subject.shape.num_layers):
            pool.keys(layer).copy_(self.pool.keys(layer))
            pool.values(layer).copy_(self.pool.values(layer))
        prepare = TorchWeightPreparer(torch.float32, self.device)
        source = RandomSource(self.device)
        model = DenseDecoder(subject.architecture, subject.facts, source, prepare)
        attend = TorchNativeAttention(pool).begin(self.batch).attend
        return model.forward(TorchOperations(self.batch, pool, attend, self.table, 1e-6))


Job = tuple[str, Tiles, HeadResult, bool]
"""A step to compile: model, tiles, head, whether launched with PDL."""


def launch_all(jobs: list[Job]) -> None:
    """All these steps, of one layer whose tensors hold nothing."""
    bench_by_name: dict[str, Bench] = {}
    for name, tiles, head, is_dependent in jobs:
        if name not in bench_by_name:
            subject = Subject(name=name).with_layers(1)
            bench_by_name[name] = Bench(subject, torch.device("meta"))
        bench_by_name[name].step(head, tiles, is_dependent=is_dependent)()
