from typing import Any

import pytest
from tests.operator.fake_cluster import (
    DEPLOYMENT,
    STATEFULSET,
    FakeCluster,
)
from tests.operator.fake_operator import (
    NAMESPACE,
    Clock,
    FakeOperator,
    cluster_with_claim,
    condition,
    converge,
    service_manifest,
    service_ref,
    started,
)

from mizzen_operator.store import (
    CLAIM,
    OWNED_KINDS,
    POD,
    SECRET,
    SERVICE_KIND,
    ObjectRef,
    kind_named,
)


def test_a_service_becomes_ready() -> None:
    operator = started()
    assert condition(operator.cluster, "Ready")["status"] == "True"
    kinds = {ref.kind.kind for ref in operator.cluster.refs()}
    assert {"ServiceAccount", "Service", "StatefulSet", "Deployment", "Secret", "Pod"} <= kinds


def test_at_rest_nothing_is_written() -> None:
    operator = started()
    num_writes = len(operator.cluster.writes)
    for _ in range(5):
        operator.clock.now_s += 1000
        operator.reconcile_all()
    assert operator.cluster.writes[num_writes:] == []


def test_a_foreign_object_is_never_touched_and_the_condition_names_it() -> None:
    cluster = cluster_with_claim()
    service_kind = kind_named("v1", "Service")
    foreign = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": "chat", "namespace": NAMESPACE},
        "spec": {"ports": [{"port": 1}]},
    }
    stored = cluster.put(service_kind, foreign)
    operator = started(cluster)
    ref = ObjectRef(kind=service_kind, namespace=NAMESPACE, name="chat")
    assert cluster.find(ref) == stored
    accepted = condition(cluster, "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "NameConflict")
    assert "Service chat exists in this namespace" in accepted["message"]
    assert list(operator.waits_s.values()) == [60.0]

    cluster.remove(ref)
    operator.reconcile_all()
    converge(operator)
    assert condition(cluster, "Ready")["status"] == "True"


def test_a_foreign_secret_is_a_name_conflict_too() -> None:
    cluster = cluster_with_claim()
    metadata = {"name": "chat-curve", "namespace": NAMESPACE}
    stored = cluster.put(SECRET, {"apiVersion": "v1", "kind": "Secret", "metadata": metadata})
    started(cluster)
    assert condition(cluster, "Accepted")["reason"] == "NameConflict"
    ref = ObjectRef(kind=SECRET, namespace=NAMESPACE, name="chat-curve")
    assert cluster.find(ref) == stored


def test_an_edited_child_is_put_right() -> None:
    operator = started()
    cluster = operator.cluster
    ref = cluster.refs(DEPLOYMENT)[0]
    before = cluster.find(ref)
    cluster.edit(ref, lambda manifest: manifest["spec"].update(replicas=7))
    converge(operator)
    assert cluster.find(ref)["spec"] == before["spec"]


def test_what_the_first_creation_wrote_can_be_taken_back() -> None:
    limits = {"limits": {"cpu": "2"}}
    operator = started(tokenizer={"resources": limits})
    cluster = operator.cluster
    (ref,) = cluster.refs(DEPLOYMENT)
    assert _resources(cluster.find(ref))["limits"] == {"cpu": "2"}
    cluster.put(SERVICE_KIND, service_manifest(tokenizer={}))
    converge(operator)
    assert "limits" not in _resources(cluster.find(ref))
    num_writes = len(cluster.writes)
    operator.reconcile_all()
    assert cluster.writes[num_writes:] == []


def _resources(deployment: dict[str, Any]) -> dict[str, Any]:
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    return container["resources"]


def test_fields_of_others_are_left_alone() -> None:
    operator = started()
    cluster = operator.cluster
    ref = cluster.refs(DEPLOYMENT)[0]
    num_writes = len(cluster.writes)

    def change(manifest: dict[str, Any]) -> None:
        manifest["metadata"]["annotations"]["example.com/note"] = "mine"
        manifest["spec"]["progressDeadlineSeconds"] = 3

    cluster.edit(ref, change)
    converge(operator)
    assert not [call for call in cluster.writes[num_writes:] if call.ref == ref]


def test_a_webhook_that_changes_our_fields_is_not_fought_for_ever() -> None:
    cluster = cluster_with_claim()

    def mutate(ref: ObjectRef, manifest: dict[str, Any]) -> None:
        if ref.kind == DEPLOYMENT:
            for container in manifest["spec"]["template"]["spec"]["containers"]:
                container["imagePullPolicy"] = "Always"

    cluster.mutate = mutate
    operator = started(cluster)
    num_writes = len(cluster.writes)
    operator.reconcile_all()
    assert cluster.writes[num_writes:] == []


def test_what_is_not_wanted_any_more_is_deleted_with_preconditions() -> None:
    operator = started(replicas=2)
    cluster = operator.cluster
    cluster.put(SERVICE_KIND, service_manifest(replicas=1))
    converge(operator)
    assert len(cluster.refs(STATEFULSET)) == 1
    cluster.put(SERVICE_KIND, service_manifest(topology="Unified"))
    converge(operator)
    assert cluster.refs(DEPLOYMENT) == []
    assert condition(cluster, "Ready")["status"] == "True"


def test_deletion_leaves_nothing_behind() -> None:
    operator = started()
    cluster = operator.cluster
    cluster.remove(service_ref())
    converge(operator)
    left = {ref.kind.kind for ref in cluster.refs()} - {"PersistentVolumeClaim", "Event"}
    assert left == set()


def test_a_namesake_waits_for_the_remnants_of_the_former_service() -> None:
    operator = started()
    cluster = operator.cluster
    ref = next(ref for ref in cluster.refs() if ref.kind.kind == "ServiceAccount")
    remnant = cluster.find(ref)
    cluster.remove(service_ref())
    cluster.put(ref.kind, remnant)
    cluster.put(SERVICE_KIND, service_manifest())
    with pytest.raises(AssertionError, match="not at rest"):
        operator.run()
    assert all("is being deleted" in str(error) for error in operator.errors)
    cluster.remove(ref)
    converge(operator)
    assert condition(cluster, "Ready")["status"] == "True"


def test_an_object_that_lingers_is_named_and_holds_up_nothing_else() -> None:
    operator = started()
    cluster = operator.cluster
    ref = ObjectRef(kind=kind_named("v1", "Service"), namespace=NAMESPACE, name="chat")

    def linger(manifest: dict[str, Any]) -> None:
        manifest["metadata"] |= {
            "finalizers": ["example.com/x"],
            "deletionTimestamp": "2026-01-01T00:00:00Z",
        }

    cluster.edit(ref, linger)
    cluster.put(SERVICE_KIND, service_manifest(replicas=2))
    with pytest.raises(AssertionError, match="not at rest"):
        operator.run()
    assert len(cluster.refs(STATEFULSET)) == 2
    assert condition(cluster, "RoutingReady")["reason"] == "ServiceMissing"
    progressing = condition(cluster, "Progressing")
    assert progressing["status"] == "True"
    assert "Service chat is being deleted; if it stays" in progressing["message"]
    assert condition(cluster, "Degraded")["status"] == "False"

    cluster.remove(ref)
    converge(operator)
    assert condition(cluster, "Ready")["status"] == "True"


def test_a_bad_spec_is_a_condition_not_a_retry() -> None:
    cluster = cluster_with_claim()
    operator = started(cluster, engine={"args": ["--model", "other"]})
    accepted = condition(cluster, "Accepted")
    assert accepted["status"] == "False"
    assert "spec.engine.args" in accepted["message"]
    assert not [ref for ref in cluster.refs() if ref.kind in OWNED_KINDS]
    assert operator.errors == []
    assert list(operator.waits_s.values()) == [None]


def test_a_spec_that_turns_bad_leaves_what_runs() -> None:
    operator = started()
    cluster = operator.cluster
    children = {ref: cluster.find(ref) for ref in cluster.refs() if ref.kind in OWNED_KINDS}
    cluster.put(SERVICE_KIND, service_manifest(engine={"args": ["--model", "other"]}))
    converge(operator)
    assert condition(cluster, "Ready")["status"] == "False"
    assert condition(cluster, "Available")["status"] == "True"
    roles = cluster.find(service_ref())["status"]["roles"]
    assert roles["worker"]["summary"] == "1/1"
    assert {ref: cluster.find(ref) for ref in children} == children


def test_paused_leaves_children_alone_but_keeps_the_status() -> None:
    operator = started()
    cluster = operator.cluster
    cluster.put(SERVICE_KIND, service_manifest(replicas=3, paused=True))
    converge(operator)
    assert len(cluster.refs(STATEFULSET)) == 1
    assert condition(cluster, "Progressing")["reason"] == "Paused"


def test_a_missing_claim_is_looked_for_again() -> None:
    cluster = FakeCluster()
    cluster.put(SERVICE_KIND, service_manifest())
    operator = FakeOperator(cluster, Clock())
    operator.run()
    assert condition(cluster, "ModelReady")["reason"] == "ClaimNotFound"
    assert list(operator.waits_s.values()) == [15.0]


def test_a_claim_that_cannot_be_shared_is_refused() -> None:
    cluster = cluster_with_claim()
    claim = ObjectRef(kind=CLAIM, namespace=NAMESPACE, name="weights")
    cluster.edit(claim, lambda manifest: manifest["spec"].update(accessModes=["ReadWriteOnce"]))
    started(cluster, replicas=2)
    assert condition(cluster, "Accepted")["reason"] == "ClaimNotShareable"


def test_a_lost_secret_is_made_again_once_the_service_is_not_well() -> None:
    operator = started()
    cluster = operator.cluster
    ref = ObjectRef(kind=SECRET, namespace=NAMESPACE, name="chat-curve")
    cluster.remove(ref)
    operator.reconcile_all()
    assert cluster.find(ref) is None
    for pod in cluster.refs(POD):
        cluster.edit(pod, lambda manifest: manifest.update(status={"phase": "Pending"}))
    for workload in cluster.refs(STATEFULSET) + cluster.refs(DEPLOYMENT):
        cluster.edit(workload, lambda manifest: manifest["status"].update(readyReplicas=0))
    operator.clock.now_s += 100
    operator.run()
    operator.clock.now_s += 100
    operator.reconcile_all()
    assert cluster.find(ref) is not None
