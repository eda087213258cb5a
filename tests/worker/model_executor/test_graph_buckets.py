"""Sizes of captured steps: they rise, end where they must, and are counted."""

import pytest

from mizzen_worker.model_executor.graph_buckets import (
    decode_buckets,
    num_graphs,
    prefill_buckets,
)


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
    assert prefill_buckets(100_000)[-1] == (2048, 256)


def test_every_bucket_counts() -> None:
    assert num_graphs(3, 200) == 3 * 3 + 4
    assert num_graphs(16, 10) == 5 * 3 + 2
