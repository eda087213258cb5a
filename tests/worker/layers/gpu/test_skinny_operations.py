"""A whole step in skinny operations equals plain torch: biases, head norms, windows, both heads."""

import dataclasses

import pytest
import torch
from tests.scale import slow_case
from tests.worker.attention.test_backends import (
    CONTEXT,
    EPS,
    WINDOWED,
    Heads,
    RandomSource,
    batch_of,
    facts_of,
    on,
    pool_of,
)

from mizzen_worker.attention.torch_native import TorchNativeAttention
from mizzen_worker.layers.gpu.skinny_operations import SkinnyOperations
from mizzen_worker.layers.gpu.step import GpuSettings, GpuStep, HeadOutput, HeadResult
from mizzen_worker.layers.gpu.weights import GpuWeightPreparer
from mizzen_worker.layers.rotary import rotary_table
from mizzen_worker.layers.torch_operations import TorchOperations, TorchWeightPreparer
from mizzen_worker.memory.device_pool import DevicePool
from mizzen_worker.memory.forward_batch import ForwardBatch
from mizzen_worker.models.architecture import Architecture
from mizzen_worker.models.dense_decoder import DenseDecoder
from mizzen_worker.models.llama import LLAMA
from mizzen_worker.models.qwen3 import QWEN3

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
DTYPE = torch.bfloat16 if DEVICE.type == "cuda" else torch.float32
"""Interpreted products are right in float32 only."""
LIMIT = 5e-2 if torch.bfloat16 == DTYPE else 1e-4
"""Relative error of logits and caches: bfloat16 activations through two layers."""
HEADS = Heads(4, 2, 32, 16)
BATCHES = {
    "two decode rows": [(5, 1), (70, 1)],
    "five decode rows": [(255, 1), (3, 1), (16, 1), (15, 1), (100, 1)],
    "decode rows and a few new tokens": [(0, 9), (64, 1), (12, 7)],
}


def table_of(heads: Heads) -> torch.Tensor:
    return rotary_table(facts_of(heads, LLAMA).rotary, CONTEXT).to(DEVICE)


def expected_of(
    heads: Heads, architecture: Architecture, batch: ForwardBatch
) -> tuple[torch.Tensor, DevicePool]:
    """Logits and pool of float32 plain torch."""
    pool = pool_of(heads, torch.float32, DEVICE)
    prepare = TorchWeightPreparer(torch.float32, DEVICE)
    model = DenseDecoder(architecture, facts_of(heads, architecture), RandomSource(), prepare)
    attend = TorchNativeAttention(pool).begin(batch).attend
    ops = TorchOperations(batch, pool, attend, table_of(heads), EPS)
    return model.forward(ops), pool


def found_of(
    heads: Heads,
    architecture: Architecture,
    batch: ForwardBatch,
    head: HeadResult = HeadResult.LOGITS,
    *,
    is_dependent: bool = False,
) -> tuple[HeadOutput, DevicePool]:
    pool = pool_of(heads, DTYPE, DEVICE)
    prepare = GpuWeightPreparer(DTYPE, DEVICE)
    model = DenseDecoder(architecture, facts_of(heads, architecture), RandomSource(), prepare)
    settings = GpuSettings(
        num_heads=heads.num_heads,
        num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
        eps=EPS,
        table=table_of(heads),
    )
    step = GpuStep(
        batch=batch,
        pool=pool,
        attend=TorchNativeAttention(pool).begin(batch).attend,
        settings=settings,
        head=head,
        is_dependent=is_dependent,
    )
    return model.forward(SkinnyOperations(step)), pool


def require_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    difference = (found.double() - expected.double()).norm()
    assert float(difference / expected.double().norm()) < LIMIT


def check(heads: Heads, architecture: Architecture, batch: ForwardBatch, **facts: bool) -> None:
    expected, expected_pool = expected_of(heads, architecture, batch)
    found, pool = found_of(heads, architecture, batch, **facts)
    assert found.logits is not None
    assert found.logits.dtype == torch.float32
    require_close(found.logits, expected)
    for layer in range(2):
        written = batch.kv_locations
        require_close(pool.keys(layer)[written], expected_pool.keys(layer)[written])
        require_close(pool.values(layer)[written], expected_pool.values(layer)[written])


@pytest.mark.parametrize(
    "rows", [*BATCHES.values(), slow_case([(0, 125), (33, 4)])], ids=[*BATCHES, "beyond any tile"]
)
@pytest.mark.parametrize("architecture", [LLAMA, QWEN3, WINDOWED], ids=lambda it: it.name)
@pytest.mark.parametrize("is_dependent", [False, True] if DEVICE.type == "cuda" else [False])
def test_a_step_equals_plain_torch(
    architecture: Architecture, rows: list[tuple[int, int]], *, is_dependent: bool
) -> None:
    check(HEADS, architecture, on(DEVICE, batch_of(HEADS, rows)), is_dependent=is_dependent)


@pytest.mark.parametrize("heads", [Heads(3, 3, 16, 1), Heads(5, 1, 48, 3), Heads(2, 1, 128, 7)])
def test_a_step_with_other_heads_equals_plain_torch(heads: Heads) -> None:
    check(heads, QWEN3, on(DEVICE, batch_of(heads, [(5, 1), (70, 1), (0, 3)])))


def test_only_sampled_tokens_reach_the_head() -> None:
    batch = on(DEVICE, batch_of(HEADS, [(0, 9), (64, 1), (12, 7)]))
    sampled = torch.tensor([8, 9, 16], device=DEVICE)
    check(HEADS, WINDOWED, dataclasses.replace(batch, sampled_tokens=sampled))


def test_sampled_tokens_may_be_all_in_another_order() -> None:
    batch = on(DEVICE, batch_of(HEADS, [(0, 3), (64, 1)]))
    sampled = torch.tensor([3, 2, 0, 1], device=DEVICE)
    check(HEADS, WINDOWED, dataclasses.replace(batch, sampled_tokens=sampled))


@pytest.mark.parametrize("head", HeadResult)
def test_keys_and_values_are_written_where_no_token_is_sampled(head: HeadResult) -> None:
    batch = on(DEVICE, batch_of(HEADS, [(0, 9), (12, 7)]))
    none = torch.zeros(0, dtype=torch.int64, device=DEVICE)
    batch = dataclasses.replace(batch, sampled_tokens=none)
    _, expected = expected_of(HEADS, QWEN3, batch)
    found, pool = found_of(HEADS, QWEN3, batch, head)
    require_close(pool.keys(1)[batch.kv_locations], expected.keys(1)[batch.kv_locations])
    made = found.logits if head is HeadResult.LOGITS else found.best_values
    assert made is not None
    assert len(made) == 0


@pytest.mark.parametrize("rows", [[(5, 1), (70, 1)], slow_case([(0, 129)])])
def test_the_best_of_blocks_is_the_best_logit(rows: list[tuple[int, int]]) -> None:
    batch = on(DEVICE, batch_of(HEADS, rows))
    expected, _ = expected_of(HEADS, QWEN3, batch)
    found, _ = found_of(HEADS, QWEN3, batch, HeadResult.BEST)
    assert found.logits is None
    assert found.best_values is not None
    assert found.best_ids is not None
    best = found.best_values.max(-1)
    require_close(best.values, expected.max(-1).values)
    ids = found.best_ids.long().gather(1, best.indices[:, None])
    chosen = expected.gather(1, ids)[:, 0]
    # Near ties may fall either way in bfloat16.
    require_close(chosen, expected.max(-1).values)


def test_all_tokens_sampled_is_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = on(DEVICE, batch_of(HEADS, [(5, 1), (70, 1)]))
    batch = dataclasses.replace(batch, is_all_sampled=True)

    def refuse(*_: object) -> None:
        pytest.fail("rows were gathered")

    monkeypatch.setattr(torch.Tensor, "index_select", refuse)
    found_of(HEADS, LLAMA, batch)
