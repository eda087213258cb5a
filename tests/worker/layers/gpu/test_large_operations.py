"""A whole step in operations for many tokens equals plain torch; only what is read is computed."""

import dataclasses
from functools import partial

import pytest
import torch
from tests.scale import slow_case
from tests.worker.attention.small_decoder import (
    WINDOWED,
    Heads,
    batch_of,
    on,
    pool_of,
)
from tests.worker.layers.gpu import small_steps
from tests.worker.layers.gpu.small_steps import (
    DEVICE,
    DTYPE,
    HEADS,
    expected_of,
    model_of,
    require_best,
    step_of,
)

from mizzen_worker.attention.torch_native import TorchNativeAttention
from mizzen_worker.layers.gpu import large_operations, whole_prompts
from mizzen_worker.layers.gpu.large_operations import LargeOperations
from mizzen_worker.layers.gpu.step import HeadResult
from mizzen_worker.layers.gpu.whole_prompts import find_whole_prompts
from mizzen_worker.layers.operations import AttendFunction
from mizzen_worker.memory.forward_batch import ForwardBatch
from mizzen_worker.models.architecture import Architecture
from mizzen_worker.models.llama import LLAMA
from mizzen_worker.models.qwen3 import QWEN3

BATCHES = {
    "one prompt": [(0, 37)],
    "behind prefixes": [(70, 23), (16, 9)],
    "mixed with decode rows": [(0, 19), (64, 5), (300, 1), (12, 1)],
}


found_of = partial(small_steps.found_of, LargeOperations)
check = partial(small_steps.check, LargeOperations)


def sampling(batch: ForwardBatch, tokens: list[int]) -> ForwardBatch:
    sampled = torch.tensor(tokens, dtype=torch.int64, device=batch.sampled_tokens.device)
    return dataclasses.replace(batch, sampled_tokens=sampled)


@pytest.mark.parametrize("rows", BATCHES.values(), ids=BATCHES)
@pytest.mark.parametrize("architecture", [slow_case(LLAMA), QWEN3, WINDOWED])
def test_a_step_equals_plain_torch(architecture: Architecture, rows: list[tuple[int, int]]) -> None:
    batch = on(DEVICE, batch_of(HEADS, rows))
    check(HEADS, architecture, sampling(batch, (batch.row_starts[1:] - 1).tolist()))


@pytest.mark.parametrize("heads", [Heads(3, 3, 16, 1), Heads(5, 1, 48, 3), Heads(2, 1, 128, 7)])
def test_a_step_with_other_heads_equals_plain_torch(heads: Heads) -> None:
    batch = on(DEVICE, batch_of(heads, [(5, 1), (70, 4), (0, 3)]))
    check(heads, WINDOWED, sampling(batch, [7, 2]))


@pytest.mark.parametrize("tokens", [[], [3, 4, 18], [25, 0, 18, 18], list(range(26)) * 2])
@pytest.mark.parametrize("has_own_attention", [True, False])
def test_any_list_of_tokens_may_be_sampled(tokens: list[int], *, has_own_attention: bool) -> None:
    batch = on(DEVICE, batch_of(HEADS, BATCHES["mixed with decode rows"]))
    changes = {} if has_own_attention else {"begin_attention": None}
    check(HEADS, LLAMA, sampling(batch, tokens), **changes)


@pytest.mark.parametrize("architecture", [QWEN3, WINDOWED], ids=lambda it: it.name)
def test_whole_prompts_of_one_length_equal_plain_torch(
    architecture: Architecture, monkeypatch: pytest.MonkeyPatch
) -> None:
    length = 512 if DEVICE.type == "cuda" else 32
    monkeypatch.setattr(whole_prompts, "_LENGTH_STEP", length)
    batch = sampling(on(DEVICE, batch_of(HEADS, [(0, length)] * 2)), [length - 1])
    step = step_of(HEADS, batch, pool_of(HEADS, DTYPE, DEVICE))
    assert find_whole_prompts(step, DTYPE) is not None
    check(HEADS, architecture, batch)


@pytest.mark.parametrize("rows", [[(0, 32), (0, 31)], [(1, 32), (0, 32)], [(0, 33), (0, 33)]])
def test_other_steps_are_no_whole_prompts(
    rows: list[tuple[int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(whole_prompts, "_LENGTH_STEP", 32)
    batch = on(DEVICE, batch_of(HEADS, rows))
    assert find_whole_prompts(step_of(HEADS, batch, pool_of(HEADS, DTYPE, DEVICE)), DTYPE) is None


def test_bounds_are_no_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_prompts, "_LENGTH_STEP", 32)
    batch = on(DEVICE, batch_of(HEADS, [(0, 32)]))
    step = step_of(HEADS, batch, pool_of(HEADS, DTYPE, DEVICE), is_exact=False)
    assert find_whole_prompts(step, DTYPE) is None


def test_the_last_layer_attends_for_sampled_tokens_only() -> None:
    batch = sampling(on(DEVICE, batch_of(HEADS, BATCHES["behind prefixes"])), [22])
    pool = pool_of(HEADS, DTYPE, DEVICE)
    step, seen = step_of(HEADS, batch, pool), []

    def begin(other: ForwardBatch) -> AttendFunction:
        seen.append((other.num_tokens, other.device_row_lengths.tolist()))
        return TorchNativeAttention(pool).begin(other).attend

    layers = []

    def attend(layer: int, queries: torch.Tensor, window: int | None) -> torch.Tensor:
        layers.append(layer)
        return step.attend(layer, queries, window)

    watched = dataclasses.replace(step, begin_attention=begin, attend=attend)
    model_of(HEADS, QWEN3).forward(LargeOperations(watched))
    assert layers == [0]
    assert seen == [(1, [93])]


def test_products_that_tensor_maps_cannot_hold_equal_plain_torch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(large_operations, "is_served", lambda *_: False)
    check(HEADS, WINDOWED, on(DEVICE, batch_of(HEADS, BATCHES["one prompt"])))


def test_the_best_of_blocks_is_the_best_logit() -> None:
    batch = sampling(on(DEVICE, batch_of(HEADS, BATCHES["one prompt"])), [36, 20])
    expected, _ = expected_of(HEADS, QWEN3, batch)
    found, _ = found_of(HEADS, QWEN3, batch, head=HeadResult.BEST)
    require_best(found, expected)
