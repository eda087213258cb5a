"""Sizes of captured steps: they rise, end where they must, and are counted."""

from dataclasses import replace

import pytest

from mizzen_worker.model_executor.graph_buckets import (
    decode_buckets,
    is_worth_padding,
    longest_padded,
    num_graphs,
    prefill_buckets,
    uncaptured_tokens,
)
from mizzen_worker.models.model_facts import ExpertShape, ModelShape


@pytest.mark.parametrize(
    ("max_rows", "last"), [(1, (1,)), (3, (2, 3)), (256, (240, 256)), (300, (288, 300))]
)
def test_decode_buckets_end_with_the_most_rows_there_can_be(
    max_rows: int, last: tuple[int, ...]
) -> None:
    sizes = decode_buckets(max_rows)
    assert sizes[-len(last) :] == last
    assert list(sizes) == sorted(set(sizes))
    assert decode_buckets(5000)[-1] == 1024


def test_prefill_buckets_stay_within_the_context_and_have_no_more_rows_than_tokens() -> None:
    assert prefill_buckets(200) == ((64, 16), (64, 64), (128, 16), (128, 64))
    assert prefill_buckets(63) == ()
    assert prefill_buckets(100_000)[-1] == (8192, 256)
    assert prefill_buckets(100_000, longest=600)[-4:] == (
        (1024, 16),
        (1024, 256),
        (2048, 16),
        (2048, 256),
    )
    assert all(rows <= tokens for tokens, rows in prefill_buckets(100_000))
    assert prefill_buckets(100_000)[-2] == (6144, 256)


@pytest.mark.parametrize(
    ("longest", "last"),
    [(825, 2048), (4095, 3072), (4096, 8192), (6000, 8192), (11_443, 8192)],
    ids=["8 B", "just fast enough", "just too slow", "1 B", "0.6 B"],
)
def test_whole_chunks_are_captured_where_launching_them_takes_half_their_time(
    longest: int, last: int
) -> None:
    buckets = prefill_buckets(100_000, longest)
    assert buckets[-1][0] == last
    # Only whole ones, or nearly, unless padding costs less than launching.
    assert is_worth_padding(8000, 8192, longest)
    assert is_worth_padding(6200, 8192, longest) is (longest > 8192)


def test_padding_is_worth_it_while_the_host_would_take_longer() -> None:
    small = ModelShape(
        num_layers=28,
        hidden_size=1024,
        intermediate_size=3072,
        num_heads=16,
        num_kv_heads=8,
        head_dim=128,
        vocab_size=151_936,
    )
    large = replace(small, hidden_size=4096, intermediate_size=14_336, num_heads=32)
    assert longest_padded(small) >= 8192
    assert 512 <= longest_padded(large) < 1024
    experts = ExpertShape(
        num_experts=128,
        num_chosen=8,
        intermediate_size=768,
        is_normalised=True,
        layers=frozenset(range(28)),
    )
    assert longest_padded(replace(large, experts=experts)) > longest_padded(large)
    assert is_worth_padding(300, 512, longest=600)
    assert not is_worth_padding(600, 1024, longest=600)
    assert [uncaptured_tokens(9000, longest) for longest in (10, 600, 9000)] == [65, 513, 8193]
    assert is_worth_padding(1000, 1024, longest=600)
    assert is_worth_padding(600, 1024, longest=None)


def test_every_bucket_counts() -> None:
    assert num_graphs(3, 200) == 3 * 3 + 4
    assert num_graphs(16, 10) == 5 * 3 + 2
