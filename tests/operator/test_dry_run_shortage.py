"""Pods of a template that lives are missing: it is found out why, told, and nothing is held up."""

from itertools import pairwise
from typing import Any

import pytest
from tests.operator.fake_cluster import DEPLOYMENT, STATEFULSET, Call, FakeCluster
from tests.operator.fake_operator import (
    FakeOperator,
    cluster_with_claim,
    condition,
    converge,
    service_ref,
    started,
)
from tests.operator.test_dry_run import BIG, NO_RIGHT, QUOTA, SAID, change, limit_range, refuse_pods

from mizzen_operator.errors import ForbiddenError, ThrottledError, UnavailableError
from mizzen_operator.store import POD

POD_SECURITY = (
    'pods "x" is forbidden: violates PodSecurity "restricted:latest": allowPrivilegeEscalation '
    '!= false (container "mizzen" must set securityContext.allowPrivilegeEscalation=false)'
)
NO_WEBHOOK = 'failed calling webhook "pods.example": connection refused'


def lose_worker_pod(operator: FakeOperator) -> None:
    """A worker pod is deleted; whatever the cluster is against keeps the next one away."""
    (ref,) = [ref for ref in operator.cluster.refs(POD) if "-w-" in ref.name]
    operator.cluster.remove(ref)
    for stateful_set in operator.cluster.refs(STATEFULSET):
        operator.cluster.edit(stateful_set, lambda item: item["status"].update(readyReplicas=0))
    converge(operator)


def wait_and_look(operator: FakeOperator) -> None:
    """Let the time pass that the last reconcile asked for, and a little more."""
    (wait_s,) = operator.waits_s.values()
    assert wait_s is not None
    operator.clock.now_s += wait_s
    operator.reconcile_all()


def groups(cluster: FakeCluster) -> list[dict[str, Any]]:
    service = cluster.find(service_ref())
    assert service is not None
    rows: list[dict[str, Any]] = service["status"]["groups"]
    return rows


def webhook_does_not_answer(call: Call) -> None:
    if call.is_dry_run:
        raise UnavailableError(f"create {call.ref.name}: {NO_WEBHOOK} (HTTP 500 InternalError)")


@pytest.mark.parametrize(
    ("said", "reason", "words"),
    [
        (QUOTA, "QuotaPending", "exceeded quota: team"),
        (f'pods "x" is forbidden: {SAID}', "PodsRefused", SAID),
        (POD_SECURITY, "PodsRefused", 'violates PodSecurity "restricted:latest"'),
        ('admission webhook "w.example" denied the request: no', "PodsRefused", "w.example"),
    ],
)
def test_row_16_what_came_after_the_template_and_keeps_its_pods_away_is_told(
    said: str, reason: str, words: str
) -> None:
    operator = started(worker=BIG)
    cluster = operator.cluster
    asked = len(cluster.dry_runs)
    cluster.admit = refuse_pods("worker", ForbiddenError("403", said=said))
    lose_worker_pod(operator)
    assert len(cluster.dry_runs) == asked, "its controller gets some time first"
    assert groups(cluster)[0]["reason"] == "PodMissing"
    wait_and_look(operator)
    assert [call.ref.kind for call in cluster.dry_runs[asked:]] == [POD]
    placed = condition(cluster, "Placed")
    assert (placed["status"], placed["reason"]) == ("False", reason)
    assert words in placed["message"]
    assert words in condition(cluster, "Ready")["message"]
    assert condition(cluster, "Accepted")["status"] == "True"
    (row,) = groups(cluster)
    assert (row["state"], row["reason"]) == ("Pending", reason)
    assert words in row["message"]
    assert operator.errors == []
    cluster.admit = lambda ref, manifest: None
    converge(operator)
    assert condition(cluster, "Ready")["status"] == "True"
    asked = len(cluster.dry_runs)
    operator.clock.now_s += 1000
    operator.reconcile_all()
    assert len(cluster.dry_runs) == asked


def test_it_is_asked_about_after_growing_delays_and_nothing_is_written() -> None:
    operator = started(worker=BIG)
    cluster = operator.cluster
    cluster.admit = limit_range()
    lose_worker_pod(operator)
    wait_and_look(operator)
    moments: list[float] = []

    def note(call: Call) -> None:
        if call.is_dry_run:
            moments.append(operator.clock.now_s)

    cluster.before = note
    written = len(cluster.writes)
    for _ in range(10):
        wait_and_look(operator)
    gaps = [later - sooner for sooner, later in pairwise(moments)]
    for gap_s, delay_s in zip(gaps, (20, 40, 80, 160, 300, 300, 300), strict=False):
        assert delay_s <= gap_s < delay_s + 5
    kinds = {call.ref.kind.kind for call in cluster.writes[written:]}
    assert kinds <= {"Secret"}, "the keys of a service that is not well are looked after as ever"


def test_a_webhook_that_does_not_answer_is_told_and_stops_nothing_else() -> None:
    operator = started(worker=BIG)
    cluster = operator.cluster
    cluster.admit = limit_range()
    cluster.before = webhook_does_not_answer
    lose_worker_pod(operator)
    wait_and_look(operator)
    placed = condition(cluster, "Placed")
    assert placed["reason"] == "PodsRefused"
    assert NO_WEBHOOK in placed["message"]
    assert operator.errors == []
    (deployment,) = cluster.refs(DEPLOYMENT)
    cluster.edit(deployment, lambda item: item["spec"].update(replicas=9))
    operator.run()
    found = cluster.find(deployment)
    assert found is not None
    assert found["spec"]["replicas"] == 2


def test_a_throttled_question_is_no_answer() -> None:
    operator = started(worker=BIG)
    cluster = operator.cluster
    cluster.admit = limit_range()
    lose_worker_pod(operator)
    wait_and_look(operator)

    def throttle(call: Call) -> None:
        if call.is_dry_run:
            raise ThrottledError("slowly", retry_after_s=1.0)

    cluster.before = throttle
    wait_and_look(operator)
    assert SAID in condition(cluster, "Placed")["message"]
    assert operator.errors == []


def test_without_the_right_to_ask_it_is_said_where_to_look() -> None:
    operator = started(worker=BIG)
    cluster = operator.cluster
    cluster.admit = limit_range()

    def fail(call: Call) -> None:
        if call.is_dry_run:
            raise ForbiddenError("403", said=NO_RIGHT)

    cluster.before = fail
    lose_worker_pod(operator)
    wait_and_look(operator)
    (row,) = groups(cluster)
    assert (row["state"], row["reason"]) == ("Pending", "PodMissing")
    assert f"kubectl describe statefulset {row['name']} says why" in row["message"]


def test_a_pod_that_drains_makes_nobody_ask() -> None:
    operator = started()
    cluster = operator.cluster
    (ref,) = [ref for ref in cluster.refs(POD) if "-w-" in ref.name]
    ending = {"deletionTimestamp": "2026-01-01T00:30:00Z"}
    cluster.edit(ref, lambda pod: pod["metadata"].update(ending))
    asked = len(cluster.dry_runs)
    for _ in range(3):
        operator.clock.now_s += 100
        operator.reconcile_all()
    assert len(cluster.dry_runs) == asked


def test_a_paused_service_keeps_the_answer_and_asks_nothing() -> None:
    operator = started(worker=BIG)
    cluster = operator.cluster
    cluster.admit = limit_range()
    lose_worker_pod(operator)
    wait_and_look(operator)
    asked = len(cluster.dry_runs)
    change(operator, worker=BIG, paused=True)
    operator.clock.now_s += 1000
    operator.reconcile_all()
    assert len(cluster.dry_runs) == asked
    assert condition(cluster, "Placed")["reason"] == "PodsRefused"


def test_a_deployment_tells_it_itself() -> None:
    cluster = cluster_with_claim()
    operator = started(cluster)
    (deployment,) = cluster.refs(DEPLOYMENT)
    asked = len(cluster.dry_runs)
    for ref in [ref for ref in cluster.refs(POD) if "tokenizer" in ref.name]:
        cluster.remove(ref)
    failure = {
        "type": "ReplicaFailure",
        "status": "True",
        "reason": "FailedCreate",
        "message": QUOTA,
    }

    def fail(manifest: dict[str, Any]) -> None:
        manifest["status"] |= {"readyReplicas": 0, "updatedReplicas": 0, "conditions": [failure]}

    cluster.edit(deployment, fail)
    operator.run()
    placed = condition(cluster, "Placed")
    assert placed["reason"] == "QuotaPending"
    assert placed["message"].startswith("exceeded quota: team")
    available = condition(cluster, "Available")
    assert (available["reason"], "exceeded quota" in available["message"]) == (
        "NoReadyTokenizer",
        True,
    )
    operator.clock.now_s += 1000
    operator.reconcile_all()
    assert len(cluster.dry_runs) == asked
    cluster.edit(deployment, lambda manifest: manifest["status"].pop("conditions"))
    converge(operator)
    assert condition(cluster, "Ready")["status"] == "True"
