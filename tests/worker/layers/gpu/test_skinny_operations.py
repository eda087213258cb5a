"""A whole step in skinny operations equals plain torch: biases, head norms, windows, both heads."""

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
)
from tests.worker.layers.gpu import small_steps
from tests.worker.layers.gpu.small_steps import (
    DEPENDENCE,
    DEVICE,
    HEADS,
    expected_of,
    require_best,
    require_keys,
)

from mizzen_worker.layers.gpu.skinny_operations import SkinnyOperations
from mizzen_worker.layers.gpu.step import HeadResult
from mizzen_worker.models.architecture import Architecture
from mizzen_worker.models.llama import LLAMA
from mizzen_worker.models.qwen3 import QWEN3

BATCHES = {
    "two decode rows": [(5, 1), (70, 1)],
    "five decode rows": [(255, 1), (3, 1), (16, 1), (15, 1), (100, 1)],
    "decode rows and a few new tokens": [(0, 9), (64, 1), (12, 7)],
}


found_of = partial(small_steps.found_of, SkinnyOperations)
check = partial(small_steps.check, SkinnyOperations)


@pytest.mark.parametrize(
    "rows", [*BATCHES.values(), slow_case([(0, 125), (33, 4)])], ids=[*BATCHES, "beyond any tile"]
)
@pytest.mark.parametrize("architecture", [LLAMA, QWEN3, WINDOWED], ids=lambda it: it.name)
@pytest.mark.parametrize("is_dependent", DEPENDENCE)
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
    found, pool = found_of(HEADS, QWEN3, batch, head=head)
    require_keys(pool, expected, batch)
    made = found.logits if head is HeadResult.LOGITS else found.best_values
    assert made is not None
    assert len(made) == 0


@pytest.mark.parametrize("rows", [[(5, 1), (70, 1)], slow_case([(0, 129)])])
def test_the_best_of_blocks_is_the_best_logit(rows: list[tuple[int, int]]) -> None:
    batch = on(DEVICE, batch_of(HEADS, rows))
    expected, _ = expected_of(HEADS, QWEN3, batch)
    found, _ = found_of(HEADS, QWEN3, batch, head=HeadResult.BEST)
    require_best(found, expected)


def test_all_tokens_sampled_is_no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = on(DEVICE, batch_of(HEADS, [(5, 1), (70, 1)]))
    batch = dataclasses.replace(batch, is_all_sampled=True)

    def refuse(*_: object) -> None:
        pytest.fail("rows were gathered")

    monkeypatch.setattr(torch.Tensor, "index_select", refuse)
    found_of(HEADS, LLAMA, batch)
