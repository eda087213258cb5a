import pytest
from tests.bench.bench_fleet import bound_of_quantile, buckets_of
from tests.bench.fleet_load import FleetSize, SizeError

EXPOSITION = """
wait_bucket{kind="a",le="0.1"} 1.0
wait_bucket{kind="a",le="+Inf"} 2.0
wait_bucket{kind="b",le="0.1"} 7.0
wait_bucket{kind="b",le="+Inf"} 8.0
wait_sum{kind="b"} 8.0
"""


def test_owned_pods_are_shared_out_over_services() -> None:
    size = FleetSize(services=500, owned=10_000, foreign=20_000)
    assert size.tokenizers == 16
    assert len(size.namespaces) == len(size.foreign_namespaces) == 10


@pytest.mark.parametrize("owned", [11, 8])
def test_a_size_that_cannot_be_shared_out_names_the_remedy(owned: int) -> None:
    with pytest.raises(SizeError, match=rf"--owned: {owned} .* multiple of --services \(2\), 10"):
        FleetSize(services=2, owned=owned, foreign=1)


def test_buckets_are_summed_over_labels() -> None:
    assert buckets_of(EXPOSITION, "wait") == {0.1: 8.0, float("inf"): 10.0}


def test_a_quantile_is_of_what_came_between() -> None:
    before, after = {0.1: 5.0, 1.0: 5.0}, {0.1: 5.0, 1.0: 105.0}
    assert bound_of_quantile(before, after, 0.5) == 1.0
    assert bound_of_quantile(after, after, 0.5) == 0.0
