"""A whole step of one token equals plain torch: biases, head norms, windows, both heads, a sink."""

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
from mizzen_worker.layers.gpu.gemv_operations import GemvOperations, GemvValue
from mizzen_worker.layers.gpu.gemv_tiles import GemvProduct, gemv_tile, qkv_tile, split_tile
from mizzen_worker.layers.gpu.step import GpuSettings, GpuStep, HeadOutput, HeadResult
from mizzen_worker.layers.gpu.weights import GpuWeight, GpuWeightPreparer
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
DEPENDENCE = [False, True] if DEVICE.type == "cuda" else [False]


def table_of(heads: Heads) -> torch.Tensor:
    return rotary_table(facts_of(heads, LLAMA).rotary, CONTEXT).to(DEVICE)


def one_token(heads: Heads, start: int) -> ForwardBatch:
    return on(DEVICE, batch_of(heads, [(start, 1)]))


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


def never(_layer: int, _queries: torch.Tensor, _window: int | None) -> torch.Tensor:
    pytest.fail("one token's attention is its own")


def step_of(
    heads: Heads,
    batch: ForwardBatch,
    pool: DevicePool,
    head: HeadResult = HeadResult.LOGITS,
    *,
    is_dependent: bool = False,
) -> GpuStep:
    settings = GpuSettings(
        num_heads=heads.num_heads,
        num_kv_heads=heads.num_kv_heads,
        head_dim=heads.head_dim,
        eps=EPS,
        table=table_of(heads),
    )
    return GpuStep(
        batch=batch,
        pool=pool,
        attend=never,
        settings=settings,
        head=head,
        is_dependent=is_dependent,
    )


def model_of(heads: Heads, architecture: Architecture) -> DenseDecoder[GpuWeight]:
    prepare = GpuWeightPreparer(DTYPE, DEVICE)
    return DenseDecoder(architecture, facts_of(heads, architecture), RandomSource(), prepare)


def output_of(value: GemvValue) -> HeadOutput:
    assert isinstance(value, HeadOutput)
    return value


def require_close(found: torch.Tensor, expected: torch.Tensor) -> None:
    difference = (found.double() - expected.double()).norm()
    assert float(difference / expected.double().norm()) < LIMIT


def check(
    heads: Heads, architecture: Architecture, batch: ForwardBatch, *, is_dependent: bool = False
) -> None:
    expected, expected_pool = expected_of(heads, architecture, batch)
    pool = pool_of(heads, DTYPE, DEVICE)
    step = step_of(heads, batch, pool, is_dependent=is_dependent)
    found = output_of(model_of(heads, architecture).forward(GemvOperations(step)))
    assert found.logits is not None
    assert found.logits.dtype == torch.float32
    assert found.logits.shape == expected.shape
    require_close(found.logits, expected)
    for layer in range(2):
        require_close(pool.keys(layer), expected_pool.keys(layer))
        require_close(pool.values(layer), expected_pool.values(layer))


@pytest.mark.parametrize(
    ("architecture", "start"),
    [
        (LLAMA, 69),
        (QWEN3, 0),
        (WINDOWED, 300),
        slow_case(LLAMA, 0),
        slow_case(LLAMA, 300),
        slow_case(QWEN3, 69),
        slow_case(QWEN3, 300),
        slow_case(WINDOWED, 0),
        slow_case(WINDOWED, 69),
    ],
)
@pytest.mark.parametrize("is_dependent", DEPENDENCE)
def test_a_step_equals_plain_torch(
    architecture: Architecture, start: int, *, is_dependent: bool
) -> None:
    check(HEADS, architecture, one_token(HEADS, start), is_dependent=is_dependent)


@pytest.mark.parametrize("heads", [Heads(3, 3, 16, 1), Heads(5, 1, 48, 3), Heads(2, 1, 128, 7)])
def test_other_heads_equal_plain_torch(heads: Heads) -> None:
    check(heads, QWEN3, one_token(heads, 70))


def test_lengths_come_from_the_device() -> None:
    """In a captured batch the host's length is a bound."""
    batch = one_token(HEADS, 40)
    expected, _ = expected_of(HEADS, QWEN3, batch)
    bound = dataclasses.replace(batch, row_lengths=batch.row_lengths * 0 + CONTEXT)
    step = step_of(HEADS, bound, pool_of(HEADS, DTYPE, DEVICE))
    found = output_of(model_of(HEADS, QWEN3).forward(GemvOperations(step)))
    assert found.logits is not None
    require_close(found.logits, expected)


def test_a_token_without_logits_is_stored_only() -> None:
    batch = one_token(HEADS, 20)
    nothing = dataclasses.replace(batch, sampled_tokens=batch.sampled_tokens[:0])
    _, expected_pool = expected_of(HEADS, LLAMA, batch)
    for head in HeadResult:
        pool = pool_of(HEADS, DTYPE, DEVICE)
        step = step_of(HEADS, nothing, pool, head)
        found = output_of(model_of(HEADS, LLAMA).forward(GemvOperations(step)))
        given = found.logits if head is HeadResult.LOGITS else found.best_values
        assert given is not None
        assert len(given) == 0
        require_close(pool.keys(1), expected_pool.keys(1))


def test_the_best_of_blocks_is_the_best_logit() -> None:
    batch = one_token(HEADS, 33)
    expected, _ = expected_of(HEADS, LLAMA, batch)
    step = step_of(HEADS, batch, pool_of(HEADS, DTYPE, DEVICE), HeadResult.BEST)
    found = output_of(model_of(HEADS, LLAMA).forward(GemvOperations(step)))
    assert found.logits is None
    assert found.best_values is not None
    assert found.best_ids is not None
    assert found.best_values.shape == found.best_ids.shape
    value, block = found.best_values[0].max(0)
    require_close(value, expected.max())
    # A near tie may fall either way in bfloat16.
    require_close(expected[0, found.best_ids[0, block].long()], expected.max())


def test_a_masked_row_touches_the_sink_only() -> None:
    batch = one_token(HEADS, 33)
    masked = dataclasses.replace(
        batch,
        kv_locations=torch.full_like(batch.kv_locations, 5),
        row_slots=torch.zeros_like(batch.row_slots),
        device_row_lengths=torch.zeros_like(batch.device_row_lengths),
        token_ids=torch.full_like(batch.token_ids, -2),
    )
    pool = pool_of(HEADS, DTYPE, DEVICE)
    before = pool.keys(0).clone()
    model_of(HEADS, LLAMA).forward(GemvOperations(step_of(HEADS, masked, pool)))
    torch.testing.assert_close(pool.keys(0)[16:], before[16:], rtol=0, atol=0)
    changed = (pool.keys(0)[:16] != before[:16]).flatten(1).any(1)
    assert changed.nonzero().flatten().tolist() == [5]


def test_more_than_one_token_is_refused() -> None:
    batch = on(DEVICE, batch_of(HEADS, [(5, 1), (70, 1)]))
    with pytest.raises(ValueError, match="2 tokens, 2 rows"):
        GemvOperations(step_of(HEADS, batch, pool_of(HEADS, DTYPE, DEVICE)))


@pytest.mark.parametrize("head_dim", [16, 48, 64, 80, 128, 256])
@pytest.mark.parametrize("num_kv_heads", [1, 2, 3, 8, 32])
def test_rules_give_tiles_that_fit(num_kv_heads: int, head_dim: int) -> None:
    num_rows = (2 * num_kv_heads + 8) * head_dim
    tile = qkv_tile(num_rows, 4096, head_dim)
    assert head_dim % (tile.warps * tile.rows) == 0
    for num_multiprocessors in (4, 46, 108, 132):
        splits = split_tile(num_kv_heads, head_dim, num_multiprocessors).splits
        assert splits in (4, 8, 16, 32, 64)
    for product in GemvProduct:
        tile = gemv_tile(product, 5000, 777)
        assert tile.warps * tile.rows > 0
    assert gemv_tile(GemvProduct.GATE_UP, 5000, 777).rows % 2 == 0
