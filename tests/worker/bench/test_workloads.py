"""The workloads are the very ones that published numbers were taken with."""

import pytest

from mizzen_worker.bench.workloads import (
    PrefixSizes,
    equal_requests,
    mixed_requests,
    prefix_requests,
)


@pytest.mark.parametrize(
    ("count", "num_input", "num_output"), [(256, 142_827, 133_966), (128, 71_296, 66_720)]
)
def test_mixed_requests_have_the_published_token_counts(
    count: int, num_input: int, num_output: int
) -> None:
    requests = mixed_requests(count)
    assert sum(len(request.prompt_ids) for request in requests) == num_input
    assert sum(request.num_new for request in requests) == num_output


def test_prompts_that_warm_a_server_up_share_no_page_with_those_that_are_timed() -> None:
    timed = {request.prompt_ids[:1] for request in mixed_requests(256)}
    warming = equal_requests(4, num_prompt=100, num_new=20, seed=1)
    assert not timed & {request.prompt_ids[:1] for request in warming}


def test_a_prefix_group_shares_exactly_its_prefix() -> None:
    sizes = PrefixSizes(num_groups=2, group_size=3, num_shared=20, num_own=5)
    requests = prefix_requests(sizes, is_shuffled=False)
    first = requests[0].prompt_ids
    assert [request.prompt_ids[:20] == first[:20] for request in requests] == [True] * 3 + [
        False
    ] * 3
    assert len({request.prompt_ids for request in requests}) == 6
    shuffled = prefix_requests(sizes, is_shuffled=True)
    assert shuffled != requests
    assert set(shuffled) == set(requests)


def test_the_best_hit_rate_is_the_published_one() -> None:
    assert PrefixSizes().best_hit_rate == pytest.approx(0.912, abs=5e-4)


def test_equal_requests_differ_by_seed_only() -> None:
    one, other = (equal_requests(2, num_prompt=8, num_new=3, seed=seed) for seed in (1, 2))
    assert one != other
    assert one == equal_requests(2, num_prompt=8, num_new=3, seed=1)
