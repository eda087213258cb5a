"""Attention of new tokens equals the reference, alone and beside the decode kernels, and captured.

A captured batch knows bounds on the host only, and its rows are padded.
"""

import dataclasses

import numpy as np
import pytest
import torch
from tests.worker.attention.test_triton_attention import batch_of, pool_of, queries_of

from mizzen_worker.attention.torch_reference import TorchReferenceAttention
from mizzen_worker.attention.triton_attention import AttentionRule, TritonAttention
from mizzen_worker.attention.triton_extend import TritonExtend

BATCHES = {
    "one prompt": [(0, 21)],
    "behind prefixes": [(33, 9), (4, 40)],
    "mixed": [(0, 5), (17, 3), (30, 1), (0, 1)],
}


@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("is_alone", [True, False])
@pytest.mark.parametrize("rows", BATCHES.values(), ids=BATCHES)
def test_equals_the_reference(
    rows: list[tuple[int, int]], window: int | None, *, is_alone: bool
) -> None:
    batch = batch_of(rows)
    pool, queries = pool_of(int(batch.page_table.max())), queries_of(batch)
    extend = TritonExtend(pool)
    backend = extend if is_alone else TritonAttention(pool, extend)
    step, reference = backend.begin(batch), TorchReferenceAttention(pool).begin(batch)
    for layer in range(2):
        expected = reference.attend(layer, queries, window)
        found = step.attend(layer, queries, window)
        torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5)


def test_a_rule_is_of_every_layer() -> None:
    batch = batch_of(BATCHES["mixed"])
    pool, queries = pool_of(int(batch.page_table.max())), queries_of(batch)
    sinks = torch.randn(2, queries.shape[1], device=queries.device)
    rule = AttentionRule(scale=0.5, soft_cap=3.0, sinks=list(sinks))
    mixed = TritonAttention(pool, TritonExtend(pool, rule), rule).begin(batch)
    alone = TritonExtend(pool, rule).begin(batch)
    for layer in range(2):
        expected = alone.attend(layer, queries, None)
        found = mixed.attend(layer, queries, None)
        torch.testing.assert_close(found, expected, rtol=2e-5, atol=2e-5)
        plain = TritonExtend(pool).begin(batch).attend(layer, queries, None)
        assert not torch.allclose(plain, expected, atol=1e-2)


def test_bounds_on_the_host_are_enough() -> None:
    batch = batch_of(BATCHES["behind prefixes"])
    pool, queries = pool_of(int(batch.page_table.max())), queries_of(batch)
    num_tokens, rows = batch.num_tokens, batch.num_rows
    padding = (0, 7)
    starts = torch.nn.functional.pad(batch.device_row_starts, (0, 3), value=num_tokens + 7)
    captured = dataclasses.replace(
        batch,
        row_slots=torch.nn.functional.pad(batch.row_slots, (0, 3)),
        device_row_starts=starts,
        device_row_lengths=torch.nn.functional.pad(batch.device_row_lengths, (0, 3), value=7),
        row_starts=np.array([0] * (rows + 3) + [num_tokens + 7], dtype=np.int32),
        row_lengths=np.full(rows + 3, 64, dtype=np.int32),
    )
    padded = torch.nn.functional.pad(queries, (0, 0, 0, 0, *padding), value=1.0)
    found = TritonAttention(pool, TritonExtend(pool)).begin(captured).attend(0, padded, None)
    expected = TorchReferenceAttention(pool).begin(batch).attend(0, queries, None)
    torch.testing.assert_close(found[:num_tokens], expected, rtol=2e-5, atol=2e-5)
    assert bool(found.isfinite().all())
