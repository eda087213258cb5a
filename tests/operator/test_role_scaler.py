"""Role scalers over the API server in memory: who writes the scale, and that nobody loses it."""

from typing import Any

import pytest
from tests.operator.fake_cluster import DEPLOYMENT, STATEFULSET, Call, FakeCluster
from tests.operator.fake_jobs import end_fetch
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

from mizzen_operator.errors import ConflictError
from mizzen_operator.render import labels
from mizzen_operator.store import POD, ROLE_SCALER, SERVICE_KIND, ObjectRef

WORKER = ObjectRef(kind=ROLE_SCALER, namespace=NAMESPACE, name="chat-worker")
TOKENIZER = ObjectRef(kind=ROLE_SCALER, namespace=NAMESPACE, name="chat-tokenizer")


def scale(operator: FakeOperator, replicas: int, ref: ObjectRef = WORKER) -> None:
    """As a person or an autoscaler does through /scale."""
    operator.cluster.edit(ref, lambda obj: obj["spec"].update(replicas=replicas))


def write_service(operator: FakeOperator, **spec: Any) -> None:
    operator.cluster.put(SERVICE_KIND, service_manifest(**spec))


def asked(operator: FakeOperator, ref: ObjectRef = WORKER) -> tuple[int, str]:
    """Replicas of a scaler and what was propagated last."""
    scaler = operator.cluster.find(ref)
    assert scaler is not None
    return scaler["spec"]["replicas"], scaler["metadata"]["annotations"][labels.PROPAGATED]


def groups(operator: FakeOperator) -> int:
    return len(operator.cluster.refs(STATEFULSET))


def fronts(operator: FakeOperator) -> int:
    (deployment,) = operator.cluster.objects(DEPLOYMENT)
    replicas: int = deployment["spec"]["replicas"]
    return replicas


def granted(operator: FakeOperator, ref: ObjectRef = WORKER) -> tuple[str, str]:
    scaler = operator.cluster.find(ref)
    assert scaler is not None
    (found,) = scaler["status"]["conditions"]
    return found["status"], found["reason"]


def forget_scalers(cluster: FakeCluster) -> None:
    """What a release without role scalers would have left."""
    for ref in cluster.refs(ROLE_SCALER):
        cluster.remove(ref)

    def older(service: dict[str, Any]) -> None:
        for row in service["status"]["roles"].values():
            del row["asked"], row["propagated"]

    cluster.edit(service_ref(), older)


def test_each_role_gets_a_scaler_with_the_seed() -> None:
    operator = started(replicas=3, tokenizer={"replicas": 4})
    assert (asked(operator), asked(operator, TOKENIZER)) == ((3, "3"), (4, "4"))
    scaler = operator.cluster.find(WORKER)
    uid = scaler["metadata"]["ownerReferences"][0]["uid"]
    assert scaler["status"] | {"conditions": []} == {
        "observedGeneration": 1,
        "replicas": 3,
        "readyReplicas": 3,
        "selector": f"apps.kubernetes.io/pod-index=0,serving.mizzen.dev/role=worker,"
        f"serving.mizzen.dev/service-uid={uid}",
        "conditions": [],
    }
    assert granted(operator) == ("True", "AsAsked")
    assert operator.cluster.find(TOKENIZER)["status"]["readyReplicas"] == 4


def test_unified_has_no_scaler_of_tokenizers() -> None:
    operator = started(topology="Unified")
    assert operator.cluster.refs(ROLE_SCALER) == [WORKER]
    write_service(operator)
    converge(operator)
    assert operator.cluster.refs(ROLE_SCALER) == [TOKENIZER, WORKER]
    write_service(operator, topology="Unified")
    converge(operator)
    assert operator.cluster.refs(ROLE_SCALER) == [WORKER]


def test_the_scaler_is_what_counts() -> None:
    operator = started(replicas=1)
    scale(operator, 3)
    scale(operator, 5, TOKENIZER)
    converge(operator)
    assert (groups(operator), fronts(operator)) == (3, 5)
    assert condition(operator.cluster, "Ready")["status"] == "True"
    scale(operator, 0)
    converge(operator)
    assert groups(operator) == 0
    available = condition(operator.cluster, "Available")
    assert available["reason"] == "ScaledToZero"
    assert "InferenceRoleScaler chat-worker is 0" in available["message"]


def test_a_manifest_applied_again_changes_nothing_and_a_changed_field_is_passed_on() -> None:
    operator = started(replicas=2)
    scale(operator, 3)
    write_service(operator, replicas=2, paused=False)
    converge(operator)
    assert (groups(operator), asked(operator)) == (3, (3, "2"))
    write_service(operator, replicas=1)
    converge(operator)
    assert (groups(operator), asked(operator)) == (1, (1, "1"))
    write_service(operator, replicas=1, tokenizer={"replicas": 3})
    converge(operator)
    assert (fronts(operator), asked(operator, TOKENIZER)) == (3, (3, "3"))


@pytest.mark.slow
def test_row_49_a_thousand_reconciles_never_reset_what_an_autoscaler_wrote() -> None:
    operator = started(replicas=1)
    num_writes = len(operator.cluster.writes)
    for turn in range(1000):
        scale(operator, 1 + turn % 3)
        operator.run()
        assert asked(operator) == (1 + turn % 3, "1")
    converge(operator)
    assert groups(operator) == 1
    written = [call for call in operator.cluster.writes[num_writes:] if call.ref == WORKER]
    assert {call.subresource for call in written} == {"status"}


def test_what_is_written_between_plan_and_apply_is_not_taken_back() -> None:
    operator = started(replicas=1)
    operator.cluster.edit(WORKER, lambda obj: obj["metadata"]["labels"].pop(labels.ROLE))

    def interfere(call: Call) -> None:
        if call.ref == WORKER and call.verb == "patch" and not call.subresource:
            operator.cluster.before = lambda later: None
            scale(operator, 3)

    operator.cluster.before = interfere
    converge(operator)
    assert [type(error) for error in operator.errors] == [ConflictError]
    assert (groups(operator), asked(operator)) == (3, (3, "1"))
    scaler = operator.cluster.find(WORKER)
    assert scaler["metadata"]["labels"][labels.ROLE] == labels.ROLE_WORKER


@pytest.mark.parametrize("note", [None, "many", "-1"])
def test_a_lost_note_is_written_anew_and_the_scale_stays(note: str | None) -> None:
    operator = started(replicas=1)
    scale(operator, 3)

    def lose(obj: dict[str, Any]) -> None:
        annotations = obj["metadata"]["annotations"]
        del annotations[labels.PROPAGATED]
        if note is not None:
            annotations[labels.PROPAGATED] = note

    operator.cluster.edit(WORKER, lose)
    converge(operator)
    assert asked(operator) == (3, "1")


def test_a_deleted_scaler_is_made_anew_with_the_live_number() -> None:
    operator = started(replicas=1)
    scale(operator, 3)
    converge(operator)
    pods = operator.cluster.refs(POD)
    operator.cluster.remove(WORKER)
    converge(operator)
    assert asked(operator) == (3, "1")
    assert operator.cluster.refs(POD) == pods


def test_deleted_while_the_service_is_stopped_or_refused_the_number_is_remembered() -> None:
    operator = started(replicas=1)
    scale(operator, 3)
    write_service(operator, replicas=1, stopped=True)
    converge(operator)
    assert (groups(operator), granted(operator)) == (0, ("False", "Stopped"))
    operator.cluster.remove(WORKER)
    converge(operator)
    assert asked(operator) == (3, "1")
    write_service(operator, replicas=1, stopped=True, engine={"args": ["--model", "x"]})
    converge(operator)
    assert granted(operator) == ("False", "ServiceRefused")
    operator.cluster.remove(WORKER)
    converge(operator)
    write_service(operator, replicas=1)
    converge(operator)
    assert (groups(operator), asked(operator)) == (3, (3, "1"))


def test_deleted_while_the_field_changes_the_field_wins() -> None:
    operator = started(replicas=1)
    scale(operator, 3)
    converge(operator)
    operator.cluster.remove(WORKER)
    write_service(operator, replicas=2)
    converge(operator)
    assert asked(operator) == (2, "2")


def test_an_upgrade_from_a_release_without_scalers_moves_no_pod() -> None:
    operator = started(replicas=2)
    cluster = operator.cluster
    operator.die()
    forget_scalers(cluster)
    before = {ref: cluster.find(ref)["metadata"]["uid"] for ref in cluster.refs(POD)}
    num_writes = len(cluster.writes)
    operator = FakeOperator(cluster, operator.clock)
    converge(operator)
    assert asked(operator) == (2, "2")
    assert {ref: cluster.find(ref)["metadata"]["uid"] for ref in cluster.refs(POD)} == before
    written = {call.ref.kind for call in cluster.writes[num_writes:]}
    assert written <= {ROLE_SCALER, SERVICE_KIND} | {
        ref.kind for ref in cluster.refs() if ref.kind.kind == "Secret"
    }


def test_what_was_edited_during_that_upgrade_is_carried_out() -> None:
    operator = started(replicas=2)
    operator.die()
    forget_scalers(operator.cluster)
    write_service(operator, replicas=1)
    operator = FakeOperator(operator.cluster, operator.clock)
    converge(operator)
    assert (groups(operator), asked(operator)) == (1, (1, "1"))


def test_a_foreign_scaler_is_not_adopted() -> None:
    cluster = cluster_with_claim()
    cluster.put(
        ROLE_SCALER,
        {
            "apiVersion": ROLE_SCALER.api_version,
            "kind": ROLE_SCALER.kind,
            "metadata": {"name": "chat-worker", "namespace": NAMESPACE},
            "spec": {"replicas": 9},
        },
    )
    operator = started(cluster, replicas=1)
    assert condition(operator.cluster, "Accepted")["reason"] == "NameConflict"
    assert operator.cluster.find(WORKER)["spec"] == {"replicas": 9}
    assert groups(operator) == 0


def test_more_or_fewer_than_a_role_takes_is_limited_and_told() -> None:
    operator = started()
    scale(operator, 0, TOKENIZER)
    converge(operator)
    assert (fronts(operator), asked(operator, TOKENIZER)) == (1, (0, "2"))
    assert granted(operator, TOKENIZER) == ("False", "OutOfBounds")
    scale(operator, 2, TOKENIZER)
    converge(operator)
    assert granted(operator, TOKENIZER) == ("True", "AsAsked")


def test_weights_that_one_pod_can_mount_are_not_scaled_over() -> None:
    cache = {"size": "1Gi", "accessMode": "ReadWriteOnce"}
    model = {"source": {"huggingFace": {"repository": "org/model"}}, "cache": cache}
    cluster = FakeCluster()
    worker = {"rollout": {"maxSurge": 0}}
    service = service_manifest(topology="Unified", replicas=1, model=model, worker=worker)
    cluster.put(SERVICE_KIND, service)
    operator = FakeOperator(cluster, Clock())
    converge(operator)
    end_fetch(cluster, reason="Done", message="all there", resolvedRevision="0" * 40, bytes=1)
    converge(operator)
    scale(operator, 3)
    converge(operator)
    assert (groups(operator), asked(operator)) == (1, (3, "1"))
    assert granted(operator) == ("False", "OutOfBounds")
    (told,) = operator.cluster.find(WORKER)["status"]["conditions"]
    assert "accessMode lets one pod mount the weights" in told["message"]


def test_a_paused_service_follows_when_it_goes_on() -> None:
    operator = started(replicas=1)
    write_service(operator, replicas=1, paused=True)
    scale(operator, 2)
    converge(operator)
    assert (groups(operator), granted(operator)) == (1, ("False", "Paused"))
    write_service(operator, replicas=3, paused=True)
    converge(operator)
    assert asked(operator) == (2, "1")
    write_service(operator, replicas=3)
    converge(operator)
    assert (groups(operator), asked(operator)) == (3, (3, "3"))


def test_row_43_scaling_down_takes_the_unready_group_first() -> None:
    operator = started(replicas=1)
    scale(operator, 2)
    operator.run()
    (new,) = [
        ref
        for ref in operator.cluster.refs(STATEFULSET)
        if not (operator.cluster.find(ref).get("status") or {}).get("readyReplicas")
    ]
    scale(operator, 1)
    converge(operator)
    assert new not in operator.cluster.refs(STATEFULSET)
    assert groups(operator) == 1


def test_fields_have_their_own_managers() -> None:
    operator = started(replicas=1)
    write_service(operator, replicas=2)
    converge(operator)
    scaler = operator.cluster.find(WORKER)
    assert {entry["manager"] for entry in scaler["metadata"]["managedFields"]} == {
        "mizzen-scaler",
        "mizzen-status",
    }
    service = operator.cluster.find(service_ref())
    assert {entry["manager"] for entry in service["metadata"]["managedFields"]} == {"mizzen-status"}
