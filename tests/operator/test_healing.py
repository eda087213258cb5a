"""Groups whose service got a spec that is refused are healed as before it."""

from typing import Any

import pytest
from tests.operator.fake_cluster import DEPLOYMENT, STATEFULSET, Call
from tests.operator.fake_operator import (
    FakeOperator,
    condition,
    converge,
    service_manifest,
    started,
)
from tests.operator.test_group_restarts import (
    TWO_NODES,
    assert_rests,
    end_container,
    epochs,
    not_ready,
    uids,
    workers,
)

from mizzen_operator.errors import UnavailableError
from mizzen_operator.store import SERVICE_KIND, ref_of

REFUSED = {"engine": {"args": ["--model", "other"]}}


def refused(**spec: Any) -> FakeOperator:
    """An operator at rest whose service of two ranks was accepted once and is refused now."""
    operator = started(**TWO_NODES)
    operator.cluster.put(SERVICE_KIND, service_manifest(**{**TWO_NODES, **REFUSED, **spec}))
    converge(operator)
    assert condition(operator.cluster, "Accepted")["status"] == "False"
    return operator


@pytest.mark.parametrize("also", [{}, {"replicas": 3}, {"worker": {"parallelism": {"nodes": 1}}}])
def test_a_group_that_lost_a_rank_starts_anew_from_its_own_revision(also: dict[str, Any]) -> None:
    operator = refused(**also)
    cluster = operator.cluster
    before = uids(cluster)
    templates = {
        ref: cluster.find(ref)["spec"]["template"]["spec"]
        for ref in (*cluster.refs(STATEFULSET), *cluster.refs(DEPLOYMENT))
    }
    end_container(cluster, 1)
    converge(operator)
    assert epochs(cluster) == ["1", "1"]
    assert not uids(cluster) & before
    assert operator.restarts == ["RankRestarted"]
    assert {ref: cluster.find(ref)["spec"]["template"]["spec"] for ref in templates} == templates
    assert set(cluster.refs(STATEFULSET)) <= set(templates), "and nothing else begins"
    assert condition(cluster, "Available")["status"] == "True"
    assert condition(cluster, "Accepted")["status"] == "False"
    assert_rests(operator)


def test_it_starts_anew_again_after_the_back_off_that_the_refused_spec_names() -> None:
    operator = refused(worker={**TWO_NODES["worker"], "restart": {"backoffBaseSeconds": 500}})
    cluster, clock = operator.cluster, operator.clock
    end_container(cluster, 0)
    converge(operator)
    end_container(cluster, 0)
    cluster.edit(ref_of(workers(cluster)[0]), not_ready)
    operator.run()
    assert epochs(cluster) == ["1", "1"]
    (wait_s,) = operator.waits_s.values()
    assert wait_s is not None
    assert 400 < wait_s <= 500
    clock.now_s += wait_s
    operator.reconcile_all()
    converge(operator)
    assert epochs(cluster) == ["2", "2"]


def test_a_pod_on_a_lost_node_is_given_up() -> None:
    operator = refused()
    cluster, clock = operator.cluster, operator.clock
    cluster.now = clock.now
    pod = workers(cluster)[0]
    cluster.lost_nodes.add("node0")
    cluster.end_pod(ref_of(pod))
    clock.now_s += 10_000
    operator.reconcile_all()
    converge(operator)
    assert pod["metadata"]["uid"] not in uids(cluster)
    assert operator.restarts == ["NodeLost"]


def test_without_its_tokenizers_a_refused_service_is_not_available() -> None:
    operator = refused()
    cluster = operator.cluster
    assert condition(cluster, "Available")["status"] == "True"
    (ref,) = cluster.refs(DEPLOYMENT)
    cluster.remove(ref)
    converge(operator)
    found = condition(cluster, "Available")
    assert (found["status"], found["reason"]) == ("False", "NoReadyTokenizer")
    assert_rests(operator)


def test_a_service_that_is_paused_is_left_alone() -> None:
    operator = refused(paused=True)
    cluster = operator.cluster
    end_container(cluster, 1)
    converge(operator)
    assert epochs(cluster) == ["0", "0"]
    assert_rests(operator)


def test_a_group_without_its_stored_revision_is_left_alone() -> None:
    operator = refused()
    cluster = operator.cluster
    for ref in cluster.refs():
        if ref.kind.kind == "ControllerRevision":
            cluster.remove(ref)
    end_container(cluster, 1)
    converge(operator)
    assert epochs(cluster) == ["0", "0"]
    assert operator.errors == []


def test_what_fails_is_tried_again_and_keeps_no_status_waiting() -> None:
    operator = started(**TWO_NODES)
    cluster = operator.cluster
    num_failures = 0

    def fail(call: Call) -> None:
        nonlocal num_failures
        if call.is_write and call.ref.kind == STATEFULSET and num_failures < 3:
            num_failures += 1
            assert num_failures == 1 or condition(cluster, "Accepted")["status"] == "False"
            raise UnavailableError("503")

    cluster.before = fail
    end_container(cluster, 1)
    cluster.put(SERVICE_KIND, service_manifest(**TWO_NODES, **REFUSED))
    converge(operator)
    assert num_failures == 3
    assert epochs(cluster) == ["1", "1"]
