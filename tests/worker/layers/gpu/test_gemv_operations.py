"""A whole step of one token equals plain torch: biases, head norms, windows, both heads, a sink."""

import dataclasses
from functools import partial

import pytest
import torch
from tests.scale import slow_case
from tests.worker.attention.small_decoder import (
    CONTEXT,
    WINDOWED,
    Heads,
    batch_of,
    on,
    pool_of,
)
from tests.worker.layers.gpu import small_steps
from tests.worker.layers.gpu.small_steps import (
    DEPENDENCE,
    DEVICE,
    DTYPE,
    HEADS,
    expected_of,
    require_best,
    require_keys,
    require_logits,
    step_of,
)

from mizzen_worker.layers.gpu.gemv_operations import GemvOperations
from mizzen_worker.layers.gpu.gemv_tiles import GemvProduct, gemv_tile, qkv_tile, split_tile
from mizzen_worker.layers.gpu.step import HeadResult
from mizzen_worker.memory.forward_batch import ForwardBatch
from mizzen_worker.models.architecture import Architecture
from mizzen_worker.models.llama import LLAMA
from mizzen_worker.models.qwen3 import QWEN3


def one_token(heads: Heads, start: int) -> ForwardBatch:
    return on(DEVICE, batch_of(heads, [(start, 1)]))


def never(_layer: int, _queries: torch.Tensor, _window: int | None) -> torch.Tensor:
    pytest.fail("one token's attention is its own")


found_of = partial(small_steps.found_of, GemvOperations, attend=never)
check = partial(small_steps.check, GemvOperations, attend=never)


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
    found, _ = found_of(HEADS, QWEN3, bound, is_exact=False)
    require_logits(found, expected)


def test_a_token_without_logits_is_stored_only() -> None:
    batch = one_token(HEADS, 20)
    nothing = dataclasses.replace(batch, sampled_tokens=batch.sampled_tokens[:0])
    _, expected_pool = expected_of(HEADS, LLAMA, batch)
    for head in HeadResult:
        found, pool = found_of(HEADS, LLAMA, nothing, head=head)
        given = found.logits if head is HeadResult.LOGITS else found.best_values
        assert given is not None
        assert len(given) == 0
        require_keys(pool, expected_pool, batch)


def test_the_best_of_blocks_is_the_best_logit() -> None:
    batch = one_token(HEADS, 33)
    expected, _ = expected_of(HEADS, LLAMA, batch)
    found, _ = found_of(HEADS, LLAMA, batch, head=HeadResult.BEST)
    require_best(found, expected)


def test_a_masked_row_touches_the_sink_only() -> None:
    batch = one_token(HEADS, 33)
    masked = dataclasses.replace(
        batch,
        kv_locations=torch.full_like(batch.kv_locations, 5),
        row_slots=torch.zeros_like(batch.row_slots),
        device_row_lengths=torch.zeros_like(batch.device_row_lengths),
        token_ids=torch.full_like(batch.token_ids, -2),
    )
    before = pool_of(HEADS, DTYPE, DEVICE).keys(0)
    _, pool = found_of(HEADS, LLAMA, masked)
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
