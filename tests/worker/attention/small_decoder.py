"""A small random decoder, a pool of keys and values, and batches over scrambled pages."""

import dataclasses
import functools
from dataclasses import dataclass

import numpy as np
import torch

from mizzen_worker.layers.rotary_config import RotaryConfig
from mizzen_worker.memory.device_pool import DevicePool, PoolShape
from mizzen_worker.memory.forward_batch import ForwardBatch
from mizzen_worker.models.architecture import Architecture, Bias
from mizzen_worker.models.model_facts import ExpertShape, ModelFacts, ModelShape
from mizzen_worker.models.qwen3 import QWEN3

CONTEXT = 1024
WINDOWED = dataclasses.replace(QWEN3, mlp_bias=Bias.ALWAYS)
"""Everything that a block can have: biases, head norms, and windows through the facts below."""
NUM_POSITIONS = 4096
EPS = 1e-5
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Heads:
    """Query heads, KV heads, head size, page size."""

    num_heads: int
    num_kv_heads: int
    head_dim: int
    page_size: int


class RandomSource:
    """Weights large enough that attention is not nearly uniform."""

    def vector(self, name: str, length: int) -> torch.Tensor:
        return torch.rand(length, generator=self._generator(name)) + 0.5

    def matrix(self, name: str, rows: int, columns: int) -> torch.Tensor:
        return torch.randn(rows, columns, generator=self._generator(name)) * columns**-0.5 * 1.5

    def _generator(self, name: str) -> torch.Generator:
        return torch.Generator().manual_seed(sum(name.encode()))


def facts_of(
    heads: Heads, architecture: Architecture, experts: ExpertShape | None = None
) -> ModelFacts:
    return ModelFacts(
        architecture=architecture.name,
        has_attention_bias=architecture is WINDOWED,
        has_mlp_bias=False,
        windows=(29, 70) if architecture is WINDOWED else (None, None),
        shape=ModelShape(
            num_layers=2,
            hidden_size=48,
            intermediate_size=40,
            num_heads=heads.num_heads,
            num_kv_heads=heads.num_kv_heads,
            head_dim=heads.head_dim,
            vocab_size=101,
            experts=experts,
        ),
        rotary=RotaryConfig(head_dim=heads.head_dim, theta=10000.0),
        rms_norm_eps=EPS,
        context_length=CONTEXT,
        tie_embeddings=True,
        eos_token_ids=(),
        fingerprint="",
    )


def pool_of(heads: Heads, dtype: torch.dtype, device: torch.device = CPU) -> DevicePool:
    shape = PoolShape(
        num_layers=2,
        num_pages=NUM_POSITIONS // heads.page_size,
        page_size=heads.page_size,
        num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
    )
    pool = DevicePool(shape, dtype, device)
    for layer in range(2):
        keys, values = _contents(pool.keys(layer).shape, layer)
        pool.keys(layer).copy_(keys)
        pool.values(layer).copy_(values)
    return pool


@functools.cache
def _contents(shape: torch.Size, layer: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random keys and values, made once: they take longer than a step."""
    generator = torch.Generator().manual_seed(layer)
    return torch.randn(shape, generator=generator), torch.randn(shape, generator=generator)


def batch_of(heads: Heads, rows: list[tuple[int, int]]) -> ForwardBatch:
    """``rows``: (positions computed before, new tokens). Pages are scrambled."""
    page_size = heads.page_size
    max_pages = CONTEXT // page_size + 1
    order = np.random.default_rng(1).permutation(NUM_POSITIONS // page_size) + 1
    table = torch.zeros(len(rows) + 1, max_pages, dtype=torch.int32)
    used = 0
    for slot, (start, count) in enumerate(rows, 1):
        needed = -(-(start + count) // page_size)
        table[slot, :needed] = torch.from_numpy(order[used : used + needed].astype(np.int32))
        used += needed
    counts = np.array([count for _, count in rows], dtype=np.int32)
    positions = torch.cat([torch.arange(start, start + count) for start, count in rows])
    slots = torch.arange(1, len(rows) + 1)
    token_slots = slots.repeat_interleave(torch.from_numpy(counts.astype(np.int64)))
    row_starts = np.concatenate([[0], counts.cumsum()]).astype(np.int32)
    pages = table[token_slots, positions // page_size].long()
    row_lengths = np.array([start + count for start, count in rows], dtype=np.int32)
    return ForwardBatch(
        token_ids=torch.arange(len(positions)) * 7 % 101,
        positions=positions,
        kv_locations=pages * page_size + positions % page_size,
        page_table=table,
        row_slots=slots,
        sampled_tokens=torch.arange(len(positions)),
        device_row_starts=torch.from_numpy(row_starts),
        device_row_lengths=torch.from_numpy(row_lengths),
        row_starts=row_starts,
        row_lengths=row_lengths,
        page_size=page_size,
    )


def on(device: torch.device, batch: ForwardBatch) -> ForwardBatch:
    """The same batch elsewhere."""
    tensors = {
        field.name: getattr(batch, field.name).to(device)
        for field in dataclasses.fields(batch)
        if isinstance(getattr(batch, field.name), torch.Tensor)
    }
    return dataclasses.replace(batch, **tensors)
