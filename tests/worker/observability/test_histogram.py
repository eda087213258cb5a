"""Our histogram says what the client library's says."""

import prometheus_client
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest

from mizzen_worker.observability.histogram import Histogram

BUCKETS = (0.125, 0.5, 1.0, 10.0)


@given(st.lists(st.tuples(st.sampled_from([0.0, 0.125, 0.25, 1.0, 2.5, 99.0]), st.integers(1, 3))))
def test_exposition_is_the_library_s(observations) -> None:
    ours, theirs = CollectorRegistry(), CollectorRegistry()
    mine = Histogram("waits_seconds", "Waits.", BUCKETS)
    ours.register(mine)
    reference = prometheus_client.Histogram(
        "waits_seconds", "Waits.", registry=theirs, buckets=BUCKETS
    )
    for value, num_times in observations:
        mine.observe(value, num_times)
        for _ in range(num_times):
            reference.observe(value)
    lines = generate_latest(theirs).decode().splitlines()
    assert generate_latest(ours).decode().splitlines() == [
        line for line in lines if "_created" not in line
    ]
