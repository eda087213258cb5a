import copy
from typing import Any

import pytest
from tests.operator.fake_cluster import (
    DEPLOYMENT,
    STATEFULSET,
    Call,
    Controllers,
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
    service_ref,
)

from mizzen_operator.cluster.events import EVENT
from mizzen_operator.errors import (
    ConflictError,
    ForbiddenError,
    RejectedError,
    ThrottledError,
    UnavailableError,
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


def started(cluster: FakeCluster | None = None, **spec: Any) -> FakeOperator:
    cluster = cluster or cluster_with_claim()
    cluster.put(SERVICE_KIND, service_manifest(**spec))
    operator = FakeOperator(cluster, Clock())
    converge(operator)
    return operator


def what_matters(cluster: FakeCluster) -> list[Any]:
    """Every object without what differs between two equal worlds."""
    found = []
    for manifest in copy.deepcopy(cluster.objects()):
        if manifest["kind"] == "Event":
            continue
        for name in ("uid", "resourceVersion", "generation"):
            manifest["metadata"].pop(name, None)
        for owner in manifest["metadata"].get("ownerReferences") or ():
            owner.pop("uid")
        if manifest["kind"] == "Secret":
            assert len(manifest.pop("data")) == 4
        for item in (manifest.get("status") or {}).get("conditions") or ():
            item.pop("lastTransitionTime", None)
        found.append(manifest)
    return found


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


def test_a_restarted_operator_writes_nothing_but_asks_for_its_secret() -> None:
    operator = started()
    operator.die()
    num_writes = len(operator.cluster.writes)
    successor = FakeOperator(operator.cluster, operator.clock)
    successor.run()
    later = operator.cluster.writes[num_writes:]
    assert {(call.verb, call.ref.kind) for call in later} == {("create", SECRET), ("patch", SECRET)}
    before = operator.cluster.objects()
    successor.reconcile_all()
    assert operator.cluster.objects() == before


def all_changes(cluster: FakeCluster) -> None:
    """A life with creation, a rolling change, scaling down and up."""
    yield lambda: cluster.put(SERVICE_KIND, service_manifest(replicas=2))
    engine = {"args": ["--seed", "1"]}
    yield lambda: cluster.put(SERVICE_KIND, service_manifest(replicas=2, engine=engine))
    yield lambda: cluster.put(SERVICE_KIND, service_manifest(replicas=1, engine=engine))


def live(cluster: FakeCluster, *, die_after: int | None) -> int:
    """Live through all changes, dying once after the given number of writes; number of writes."""
    clock = Clock()
    operator = FakeOperator(cluster, clock)
    num_writes = 0

    def count(call: Call) -> None:
        nonlocal num_writes
        num_writes += 1
        if num_writes == die_after:
            raise OperatorDied

    cluster.after_write = count
    for change in all_changes(cluster):
        change()
        try:
            converge(operator)
        except OperatorDied:
            operator.die()
            operator = FakeOperator(cluster, clock)
            converge(operator)
    operator.die()
    return num_writes


def test_dying_after_any_write_leads_to_the_same_world() -> None:
    undisturbed = cluster_with_claim()
    num_writes = live(undisturbed, die_after=None)
    assert num_writes > 20
    expected = what_matters(undisturbed)
    for die_after in range(1, num_writes + 1):
        cluster = cluster_with_claim()
        live(cluster, die_after=die_after)
        assert what_matters(cluster) == expected, f"after write {die_after}"


@pytest.mark.parametrize(
    "error",
    [
        ConflictError("changed"),
        UnavailableError("away"),
        ThrottledError("slowly", retry_after_s=1.0),
    ],
)
def test_every_call_may_fail_once(error) -> None:
    expected = what_matters(started().cluster)
    num_calls = len(started().cluster.calls)
    for number in range(num_calls):
        cluster = cluster_with_claim()
        cluster.put(SERVICE_KIND, service_manifest())
        operator = FakeOperator(cluster, Clock())
        operator.run_lists()
        left = number

        def fail(call: Call) -> None:
            nonlocal left
            left -= 1
            if left == -1:
                raise error

        cluster.before = fail
        converge(operator)
        assert what_matters(cluster) == expected, f"call {number}"


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


def test_a_deletion_planned_from_old_news_is_not_carried_out() -> None:
    operator = started(replicas=2)
    cluster = operator.cluster
    cluster.put(SERVICE_KIND, service_manifest(replicas=1))
    victims = set(cluster.refs(STATEFULSET))

    def interfere(call: Call) -> None:
        if call.verb == "get" and call.ref in victims:
            cluster.before = lambda call: None
            cluster.edit(call.ref, lambda manifest: manifest["metadata"].update(annotations={}))

    cluster.before = interfere
    converge(operator)
    assert any("changed since its deletion was planned" in str(e) for e in operator.errors)
    assert len(cluster.refs(STATEFULSET)) == 1


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
    assert all("of an earlier life" in str(error) for error in operator.errors)
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


@pytest.mark.parametrize("error", [ForbiddenError("quota"), RejectedError("spec: invalid")])
def test_what_a_person_must_see_is_in_the_status_and_retried(error) -> None:
    cluster = cluster_with_claim()
    cluster.put(SERVICE_KIND, service_manifest())
    is_failing = True

    def refuse(call: Call) -> None:
        nonlocal num_refused
        if is_failing and call.ref.kind == DEPLOYMENT and call.is_write:
            num_refused += 1
            raise error

    num_refused = 0
    cluster.before = refuse
    operator = FakeOperator(cluster, Clock())
    with pytest.raises(AssertionError, match="not at rest"):
        operator.run()
    degraded = condition(cluster, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "ReconcileError")
    assert str(error) in degraded["message"]
    is_failing = False
    converge(operator)
    assert condition(cluster, "Degraded")["status"] == "False"


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


def test_one_event_per_transition_also_across_a_crash() -> None:
    cluster = cluster_with_claim()
    cluster.put(SERVICE_KIND, service_manifest())
    operator = FakeOperator(cluster, Clock())

    def die_at_status(call: Call) -> None:
        if call.subresource == "status" and cluster.refs(EVENT):
            cluster.before = lambda call: None
            raise OperatorDied

    operator.run()
    Controllers(cluster).settle()
    cluster.before = die_at_status
    with pytest.raises(OperatorDied):
        operator.run()
    operator.die()
    converge(FakeOperator(cluster, operator.clock))
    texts = [event["message"] for event in cluster.objects(EVENT)]
    assert len(texts) == len(set(texts))
    assert any(text.startswith("Ready is True") for text in texts)


def test_a_change_missed_by_the_watch_is_found_by_a_list() -> None:
    operator = started()
    cluster = operator.cluster
    operator.die()
    cluster.remove(cluster.refs(DEPLOYMENT)[0])
    operator.run_lists()
    operator.run()
    assert len(cluster.refs(DEPLOYMENT)) == 1
    assert sum(operator.resync.num_repairs.values()) > 0
