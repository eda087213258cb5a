from typing import Any

import pytest
from tests.operator.fake_cluster import (
    DEPLOYMENT,
    STATEFULSET,
    Call,
    FakeCluster,
)
from tests.operator.fake_operator import (
    NAMESPACE,
    Clock,
    FakeOperator,
    cluster_with_claim,
    condition,
    converge,
    linger,
    service_manifest,
    service_ref,
    started,
)

from mizzen_operator.cluster.events import EVENT
from mizzen_operator.cluster.failures import UnfitObjectError
from mizzen_operator.cluster.undone_edits import QUIET_S
from mizzen_operator.reconcile import CLAIM_RECHECK_S
from mizzen_operator.store import (
    CLAIM,
    OWNED_KINDS,
    POD,
    ROLE_SCALER,
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


def test_at_rest_nothing_is_written_nor_asked_in_a_dry_run() -> None:
    operator = started()
    num_calls = len(operator.cluster.calls)
    for _ in range(5):
        operator.clock.now_s += 1000
        operator.reconcile_all()
    later = operator.cluster.calls[num_calls:]
    assert [call for call in later if call.is_write or call.is_dry_run] == []


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


def test_row_54_an_edited_child_is_put_right() -> None:
    operator = started()
    cluster = operator.cluster
    ref = cluster.refs(DEPLOYMENT)[0]
    before = cluster.find(ref)
    cluster.edit(ref, lambda manifest: manifest["spec"].update(replicas=7))
    converge(operator)
    assert cluster.find(ref)["spec"] == before["spec"]


def _undone(cluster: FakeCluster) -> list[str]:
    return [e["message"] for e in cluster.objects(EVENT) if e["reason"] == "EditUndone"]


def test_row_54_who_fights_is_told_of_once_in_a_while() -> None:
    operator = started()
    cluster = operator.cluster
    (ref,) = cluster.refs(DEPLOYMENT)

    def fight(rounds: int, *managers: str) -> None:
        for number in range(rounds):
            for manager in managers:
                cluster.edit(ref, lambda item, n=number: item["spec"].update(replicas=7 + n),
                             by=manager)  # fmt: skip
                converge(operator)

    fight(5, "kubectl-edit")
    (told,) = _undone(cluster)
    assert told.startswith(f"kubectl-edit changed .spec.replicas of Deployment {ref.name}")
    fight(5, "kubectl-edit", "argocd")
    assert len(_undone(cluster)) == 2
    operator.clock.now_s += QUIET_S
    fight(5, "kubectl-edit")
    assert len(_undone(cluster)) == 3
    num_writes = len(cluster.writes)
    operator.reconcile_all()
    assert cluster.writes[num_writes:] == []


def test_row_54_what_the_spec_or_a_webhook_changes_is_no_edit() -> None:
    cluster = cluster_with_claim()
    operator = started(cluster, tokenizer={"replicas": 2})
    cluster.put(SERVICE_KIND, service_manifest(tokenizer={"replicas": 3}))
    converge(operator)

    def mutate(ref: ObjectRef, manifest: dict[str, Any]) -> None:
        if ref.kind == DEPLOYMENT:
            manifest["spec"]["replicas"] = 5

    cluster.mutate = mutate
    (ref,) = cluster.refs(DEPLOYMENT)
    cluster.edit(ref, lambda manifest: None)
    converge(operator)
    assert cluster.find(ref)["spec"]["replicas"] == 5
    assert _undone(cluster) == []


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


def test_a_new_group_waits_until_the_pods_of_the_former_one_have_ended() -> None:
    operator = started()
    cluster = operator.cluster
    (former,) = cluster.refs(STATEFULSET)
    cluster.put(SERVICE_KIND, service_manifest(engine={"contextLength": 512}))
    converge(operator, pods_drain=True)
    assert cluster.refs(STATEFULSET) == [former], "its GPUs are taken until it has ended"
    progressing = condition(cluster, "Progressing")
    assert progressing["status"] == "True"
    assert f"waiting until {former.name} has ended" in progressing["message"]

    converge(operator)
    (new,) = cluster.refs(STATEFULSET)
    assert new != former
    assert condition(cluster, "Ready")["status"] == "True"


def test_a_bad_spec_is_a_condition_not_a_retry() -> None:
    cluster = cluster_with_claim()
    operator = started(cluster, engine={"args": ["--model", "other"]})
    accepted = condition(cluster, "Accepted")
    assert accepted["status"] == "False"
    assert "spec.engine.args" in accepted["message"]
    assert not [ref for ref in cluster.refs() if ref.kind in OWNED_KINDS and ref.kind != CLAIM]
    assert operator.errors == []
    assert list(operator.waits_s.values()) == [None]


def test_a_spec_that_turns_bad_leaves_what_runs() -> None:
    operator = started()
    cluster = operator.cluster
    # Those of role scalers tell of the refusal too.
    kinds = set(OWNED_KINDS) - {ROLE_SCALER}
    children = {ref: cluster.find(ref) for ref in cluster.refs() if ref.kind in kinds}
    cluster.put(SERVICE_KIND, service_manifest(engine={"args": ["--model", "other"]}))
    converge(operator)
    assert condition(cluster, "Ready")["status"] == "False"
    assert condition(cluster, "Available")["status"] == "True"
    roles = cluster.find(service_ref())["status"]["roles"]
    assert roles["worker"]["summary"] == "1/1"
    assert {ref: cluster.find(ref) for ref in children} == children


def test_row_54_paused_leaves_children_alone_but_keeps_the_status() -> None:
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
    assert condition(cluster, "ResolvedRefs")["reason"] == "ClaimNotFound"
    (wait_s,) = operator.waits_s.values()
    assert wait_s is not None
    assert 0 < wait_s <= CLAIM_RECHECK_S


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


def test_row_9_an_object_that_its_definition_does_not_fit_any_more_is_told_so() -> None:
    cluster = cluster_with_claim()
    cluster.put(SERVICE_KIND, service_manifest(tokenizer={"replicas": "2"}))

    def refuse_apply(call: Call) -> None:
        if call.ref == service_ref() and call.manager == "mizzen-status":
            raise UnfitObjectError("failed to create typed live object")

    cluster.before = refuse_apply
    operator = FakeOperator(cluster, Clock())
    converge(operator)
    assert operator.errors == []
    accepted = condition(cluster, "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "InvalidSpec")
    assert "spec.tokenizer.replicas" in accepted["message"]
    num_writes = len(cluster.writes)
    operator.reconcile_all()
    assert len(cluster.writes) == num_writes
