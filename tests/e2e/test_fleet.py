"""A fleet beside many pods of others: nothing is written at rest, and no news is lost in churn.

A small run of `tests/bench/bench_fleet.py`, whose numbers are in `docs/benchmarks.md`.
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.bench.bench_fleet import (
    NODE_GRACE_S,
    REPAIRS,
    REST_WRITES,
    START_WRITES,
    FleetRun,
    values,
)
from tests.bench.fleet_load import FleetSize
from tests.devcluster.cluster import Cluster
from tests.devcluster.config import ClusterConfig
from tests.devcluster.requirements import RequirementError
from tests.e2e.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

SIZE = FleetSize(services=20, owned=100, foreign=200)
RESYNC_S = 4.0
"""So that LISTs find within the test what the watch has missed."""
CALM_S = 2.0


@pytest.fixture
def run(tmp_path: Path) -> Iterator[FleetRun]:
    """In a cluster of its own, where every pod goes to fake nodes."""
    try:
        started = Cluster.start(ClusterConfig(name="fleet-test", node_grace_seconds=NODE_GRACE_S))
    except RequirementError as error:
        pytest.skip(f"missing: {error}")
    with started as cluster:
        found = FleetRun(cluster, SIZE, tmp_path, resync_s=RESYNC_S, calm_s=CALM_S)
        yield found
        found.end()


def test_a_fleet_is_still_at_rest_and_loses_no_news(run: FleetRun) -> None:
    run.prepare()
    run.create()

    at_rest = values(run.rest(2 * RESYNC_S))
    assert at_rest[REST_WRITES] == 0

    run.churn(2 * RESYNC_S)
    wait_for("all pods came back", lambda: run.fleet.num_ready() == SIZE.services)
    run.settle()
    assert run.operator.metric("mizzen_operator_services") == SIZE.services
    assert run.operator.metric(REPAIRS) == 0

    anew = values(run.restart())
    assert anew[START_WRITES] == 0
    assert run.fleet.num_ready() == SIZE.services
