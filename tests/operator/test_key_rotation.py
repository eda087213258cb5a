"""Rotation of a service's CURVE keys: another generation is another cohort with its own Secret."""

from typing import Any

import pytest
from tests.operator.fake_cluster import (
    DEPLOYMENT,
    STATEFULSET,
    Call,
    FakeCluster,
    OperatorDied,
)
from tests.operator.fake_operator import (
    NAMESPACE,
    Clock,
    FakeOperator,
    cluster_with_claim,
    condition,
    converge,
    service_manifest,
    started,
)

from mizzen_operator.errors import ForbiddenError
from mizzen_operator.render import labels
from mizzen_operator.store import POD, SECRET, SERVICE_KIND, ObjectRef

FIRST = "chat-curve"


def rotation(value: str | None, **spec: Any) -> dict[str, Any]:
    security = {} if value is None else {"security": {"keyRotation": value}}
    return service_manifest(**security, **spec)


def secrets(cluster: FakeCluster) -> dict[str, dict[str, str]]:
    return {item["metadata"]["name"]: item["data"] for item in cluster.objects(SECRET)}


def mounted(cluster: FakeCluster) -> set[str]:
    """Secrets that pods of the present workloads mount."""
    return {
        volume["secret"]["secretName"]
        for workload in cluster.objects(STATEFULSET) + cluster.objects(DEPLOYMENT)
        for volume in workload["spec"]["template"]["spec"]["volumes"]
        if "secret" in volume
    }


def rotate(operator: FakeOperator, value: str | None, **spec: Any) -> None:
    operator.cluster.put(SERVICE_KIND, rotation(value, **spec))
    converge(operator)


def test_each_value_gives_other_keys_and_the_former_go() -> None:
    operator = started(replicas=2)
    cluster = operator.cluster
    seen = [secrets(cluster)]
    assert set(seen[0]) == {FIRST}
    for value in ("2027-01-01", "2027-01-02", None):
        rotate(operator, value, replicas=2)
        seen.append(secrets(cluster))
        assert mounted(cluster) == set(seen[-1])
        assert condition(cluster, "Ready")["status"] == "True"
    assert [len(found) for found in seen] == [1, 1, 1, 1]
    assert set(seen[3]) == {FIRST}
    assert len({data["server.key"] for found in seen for data in found.values()}) == 4


def test_at_rest_nobody_asks_for_secrets() -> None:
    operator = started(replicas=2)
    rotate(operator, "2027-01-01", replicas=2)
    num_calls = len(operator.cluster.calls)
    operator.reconcile_all()
    assert not [call for call in operator.cluster.calls[num_calls:] if call.ref.kind == SECRET]


def test_the_former_keys_stay_until_the_last_pod_with_them_has_ended() -> None:
    operator = started()
    cluster = operator.cluster
    cluster.put(SERVICE_KIND, rotation("2027-01-01"))
    converge(operator, pods_drain=True)
    assert mounted(cluster) == set(secrets(cluster))
    assert len(secrets(cluster)) == 2
    converge(operator)
    assert mounted(cluster) == set(secrets(cluster))
    assert len(secrets(cluster)) == 1


def test_going_back_at_once_finds_the_former_keys() -> None:
    operator = started()
    cluster = operator.cluster
    before = secrets(cluster)
    cluster.put(SERVICE_KIND, rotation("2027-01-01"))
    converge(operator, pods_drain=True)
    rotate(operator, None)
    assert secrets(cluster) == before


def test_another_change_takes_the_rotated_keys_along() -> None:
    operator = started()
    cluster = operator.cluster
    rotate(operator, "2027-01-01")
    before = secrets(cluster)
    rotate(operator, "2027-01-01", engine={"args": ["--queue-ageing=60"]})
    assert secrets(cluster) == before


@pytest.mark.parametrize("value", ["2027-01-02", None])
def test_no_secret_is_forgotten_whenever_another_is_asked_for(value: str | None) -> None:
    """The operator dies after any write of a rotation, and then something else is wanted."""
    for die_after in range(1, 100):
        cluster, clock = cluster_with_claim(), Clock()
        cluster.put(SERVICE_KIND, service_manifest())
        operator = FakeOperator(cluster, clock)
        converge(operator)
        left = die_after

        def count(call: Call) -> None:
            nonlocal left
            left -= 1
            if left == 0:
                raise OperatorDied

        cluster.after_write = count
        try:
            rotate(operator, "2027-01-01")
        except OperatorDied:
            pass
        else:
            assert die_after > 10
            return
        operator.die()
        cluster.after_write = lambda call: None
        cluster.put(SERVICE_KIND, rotation(value))
        converge(FakeOperator(cluster, clock))
        assert set(secrets(cluster)) == mounted(cluster), f"after write {die_after}"
        assert len(secrets(cluster)) == 1, f"after write {die_after}"
    raise AssertionError("a rotation takes a hundred writes")


def test_a_rotation_whose_workers_are_refused_leaves_nothing_either() -> None:
    """The leader Service is the workers', so what would tell of a Secret is held with them."""
    cluster = cluster_with_claim()
    cluster.put(SERVICE_KIND, rotation("2027-01-01"))
    said = "pods is forbidden: maximum cpu usage per Container is 2, but limit is 4"

    def refuse(ref: ObjectRef, manifest: dict[str, Any]) -> None:
        own = manifest["metadata"].get("labels") or {}
        if ref.kind == POD and own.get(labels.ROLE) == labels.ROLE_WORKER:
            raise ForbiddenError(f"403: {said}", said=said)

    cluster.admit = refuse
    operator = FakeOperator(cluster, Clock())
    converge(operator)
    assert condition(cluster, "Accepted")["reason"] == "InvalidPodTemplate"
    assert secrets(cluster) == {}
    cluster.admit = lambda ref, manifest: None
    rotate(operator, "2027-01-02")
    assert mounted(cluster) == set(secrets(cluster))
    assert len(secrets(cluster)) == 1


def test_a_secret_that_may_not_be_deleted_is_told_and_holds_up_nothing_else() -> None:
    operator = started()
    cluster = operator.cluster

    def refuse(call: Call) -> None:
        if call.ref.kind == SECRET and call.verb == "delete":
            raise ForbiddenError("no right to delete secrets")

    cluster.before = refuse
    cluster.put(SERVICE_KIND, rotation("2027-01-01"))
    with pytest.raises(AssertionError, match="not at rest"):
        converge(operator)
    assert "no right to delete secrets" in condition(cluster, "Degraded")["message"]
    assert FIRST not in mounted(cluster)
    cluster.before = lambda call: None
    converge(operator)
    assert set(secrets(cluster)) == mounted(cluster)
    assert condition(cluster, "Ready")["status"] == "True"


def test_somebody_elses_secret_of_that_name_is_left() -> None:
    operator = started()
    cluster = operator.cluster
    ref = ObjectRef(kind=SECRET, namespace=NAMESPACE, name=FIRST)
    cluster.remove(ref)
    metadata = {"name": FIRST, "namespace": NAMESPACE}
    theirs = cluster.put(SECRET, {"apiVersion": "v1", "kind": "Secret", "metadata": metadata})
    rotate(operator, "2027-01-01")
    assert cluster.find(ref) == theirs
    assert FIRST not in mounted(cluster)


def test_a_secret_that_lingers_holds_up_only_who_wants_it_again() -> None:
    operator = started()
    cluster = operator.cluster
    ref = ObjectRef(kind=SECRET, namespace=NAMESPACE, name=FIRST)
    cluster.edit(ref, lambda manifest: manifest["metadata"].update(finalizers=["example.com/x"]))
    rotate(operator, "2027-01-01")
    assert condition(cluster, "Ready")["status"] == "True"
    assert "deletionTimestamp" in cluster.find(ref)["metadata"]


def test_topology_unified_has_no_keys_any_more() -> None:
    operator = started(security={"keyRotation": "2027-01-01"})
    cluster = operator.cluster
    assert len(secrets(cluster)) == 1
    cluster.put(SERVICE_KIND, service_manifest(topology="Unified"))
    converge(operator, pods_drain=True)
    assert len(secrets(cluster)) == 1
    converge(operator)
    assert secrets(cluster) == {}


def test_stopped_services_rotate_too() -> None:
    operator = started(stopped=True)
    rotate(operator, "2027-01-01", stopped=True)
    assert mounted(operator.cluster) == set(secrets(operator.cluster))


def test_a_deleted_leader_service_forgets_no_keys() -> None:
    """Pods tell of their keys too."""
    operator = started(replicas=2, security={"keyRotation": "2027-01-01"})
    cluster = operator.cluster
    leaders = [
        item
        for item in cluster.objects()
        if item["kind"] == "Service" and "leaders" in item["metadata"]["name"]
    ]
    cluster.put(SERVICE_KIND, rotation("2027-01-02", replicas=2))
    converge(operator, pods_drain=True)
    (ref,) = [
        ref
        for ref in cluster.refs()
        if ref.kind.kind == "Service" and ref.name == leaders[0]["metadata"]["name"]
    ]
    cluster.remove(ref)
    converge(operator, pods_drain=True)
    assert cluster.find(ref) is not None
    converge(operator)
    assert set(secrets(cluster)) == mounted(cluster)
