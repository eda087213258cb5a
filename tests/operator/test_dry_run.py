"""Pod templates that the API server refuses: nothing is changed for them, and it is said why."""

from collections.abc import Callable
from typing import Any

import pytest
from tests.operator.fake_cluster import ACCOUNT, DEPLOYMENT, STATEFULSET, Call, FakeCluster
from tests.operator.fake_controllers import Controllers
from tests.operator.fake_operator import (
    Clock,
    FakeOperator,
    cluster_with_claim,
    condition,
    converge,
    linger,
    service_manifest,
    started,
)

from mizzen_operator.errors import (
    ClusterError,
    ForbiddenError,
    RejectedError,
    ThrottledError,
    UnavailableError,
)
from mizzen_operator.spec.quantity import quantity_value
from mizzen_operator.store import (
    CONTROLLER_REVISION,
    OWNED_KINDS,
    POD,
    SERVICE_KIND,
    ObjectRef,
)

Admission = Callable[[ObjectRef, dict[str, Any]], None]
SAID = "maximum cpu usage per Container is 2, but limit is 4"
QUOTA = 'pods "x" is forbidden: exceeded quota: team, requested: cpu=1, used: cpu=4, limited: cpu=4'
NO_RIGHT = 'pods is forbidden: User "op" cannot create resource "pods" in API group ""'
ROLE = "serving.mizzen.dev/role"
BIG = {"resources": {"requests": {"cpu": "4"}}}
UNIFIED = {"topology": "Unified"}


def refuse_pods(role: str, error: ClusterError, cpu: str = "2") -> Admission:
    """As a policy that looks at pods: those of a role that ask for more CPU than this."""

    def admit(ref: ObjectRef, manifest: dict[str, Any]) -> None:
        if ref.kind != POD or manifest["metadata"]["labels"][ROLE] != role:
            return
        (container,) = manifest["spec"]["containers"]
        if quantity_value(container["resources"]["requests"]["cpu"]) > quantity_value(cpu):
            raise error

    return admit


def limit_range(role: str = "worker") -> Admission:
    return refuse_pods(role, ForbiddenError(f"403: {SAID}", said=f"pods is forbidden: {SAID}"))


def owned(cluster: FakeCluster) -> dict[ObjectRef, Any]:
    """Objects and pods; revisions that are stored apart, for they run nothing."""
    kinds = {*OWNED_KINDS, POD} - {CONTROLLER_REVISION}
    return {ref: cluster.find(ref) for ref in cluster.refs() if ref.kind in kinds}


def roles(cluster: FakeCluster) -> set[str]:
    found = [manifest["metadata"].get("labels") or {} for manifest in owned(cluster).values()]
    return {labels[ROLE] for labels in found if ROLE in labels}


def change(operator: FakeOperator, **spec: Any) -> None:
    operator.cluster.put(SERVICE_KIND, service_manifest(**spec))
    converge(operator)


def test_at_rest_and_after_a_restart_nothing_is_asked() -> None:
    operator = started(replicas=2)
    cluster = operator.cluster
    # Owner and Pod of two roles: groups share a template.
    assert [call.ref.kind for call in cluster.dry_runs] == [STATEFULSET, POD, DEPLOYMENT, POD]
    operator.reconcile_all()
    operator.die()
    successor = FakeOperator(cluster, operator.clock)
    successor.run()
    for _ in range(3):
        successor.clock.now_s += 1000
        successor.reconcile_all()
    change(successor, replicas=3)
    assert len(cluster.dry_runs) == 4


def test_a_dry_run_stores_nothing_and_is_no_write() -> None:
    cluster = cluster_with_claim()
    operator = started(cluster)
    assert not [ref for ref in cluster.refs(POD) if ref.name.endswith("-dry-run")]
    assert not [call for call in cluster.writes if call.is_dry_run]
    assert condition(cluster, "Ready")["status"] == "True"
    assert operator.errors == []


def test_refused_pods_of_a_new_service_are_told_and_other_roles_go_on() -> None:
    cluster = cluster_with_claim()
    cluster.admit = limit_range()
    operator = started(cluster, worker=BIG)
    accepted = condition(cluster, "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "InvalidPodTemplate")
    assert SAID in accepted["message"]
    assert accepted["message"].startswith("spec.worker.resources (cpu): the API server refuses")
    assert condition(cluster, "Ready")["reason"] == "InvalidPodTemplate"
    assert condition(cluster, "Progressing")["reason"] == "TemplateRefused"
    assert condition(cluster, "Degraded")["status"] == "False"
    assert roles(cluster) == {"tokenizer"}
    assert cluster.refs(DEPLOYMENT)
    assert operator.errors == []


def test_a_refused_owner_is_told_with_the_field_that_it_names() -> None:
    cluster = cluster_with_claim()
    path = "spec.template.spec.containers[0].resources.requests[cpu]"

    def admit(ref: ObjectRef, manifest: dict[str, Any]) -> None:
        if ref.kind == STATEFULSET:
            raise RejectedError("422", said=f"{path}: Invalid value", fields=(path,))

    cluster.admit = admit
    started(cluster, worker=BIG)
    message = condition(cluster, "Accepted")["message"]
    assert message.startswith("spec.worker.resources.requests.cpu: ")
    assert "(found 4)" in message
    assert not [
        call for call in cluster.dry_runs if call.ref.kind == POD and "-w-" in call.ref.name
    ]


@pytest.mark.parametrize("base", [{}, UNIFIED], ids=["split", "unified"])
@pytest.mark.parametrize("engine", [{}, {"contextLength": 77}], ids=["same-cohort", "new-cohort"])
def test_what_runs_is_not_touched(base: dict[str, Any], engine: dict[str, Any]) -> None:
    operator = started(replicas=2, **base)
    cluster = operator.cluster
    before = owned(cluster)
    cluster.admit = limit_range()
    change(operator, replicas=2, worker=BIG, engine=engine, **base)
    assert owned(cluster) == before
    assert condition(cluster, "Accepted")["reason"] == "InvalidPodTemplate"
    assert condition(cluster, "Accepted")["message"].endswith(
        "the pods of the last good spec go on"
    )
    assert condition(cluster, "Available")["status"] == "True"


def test_a_change_of_topology_waits_as_a_whole() -> None:
    operator = started(**UNIFIED)
    cluster = operator.cluster
    before = owned(cluster)
    cluster.admit = limit_range()
    change(operator, worker=BIG)
    assert owned(cluster) == before
    assert condition(cluster, "Available")["status"] == "True"
    change(operator)
    assert condition(cluster, "Ready")["status"] == "True"
    assert cluster.refs(DEPLOYMENT)


def test_an_account_that_lingers_holds_up_no_other_object() -> None:
    operator = started()
    cluster = operator.cluster
    (ref,) = cluster.refs(ACCOUNT)

    cluster.edit(ref, linger)
    cluster.put(SERVICE_KIND, service_manifest(replicas=2))
    with pytest.raises(AssertionError, match="not at rest"):
        operator.run()
    assert len(cluster.refs(STATEFULSET)) == 2
    assert (
        "ServiceAccount chat-pods is being deleted" in condition(cluster, "Progressing")["message"]
    )


def test_tokenizers_that_are_refused_hold_workers_of_a_new_cohort() -> None:
    operator = started(replicas=2)
    cluster = operator.cluster
    before = owned(cluster)
    cluster.admit = limit_range("tokenizer")
    engine = {"contextLength": 77}
    change(operator, replicas=2, tokenizer=BIG, engine=engine)
    assert owned(cluster) == before
    assert condition(cluster, "Accepted")["message"].startswith("spec.tokenizer.resources (cpu): ")
    change(operator, replicas=2, engine=engine)
    assert condition(cluster, "Ready")["status"] == "True"
    assert owned(cluster) != before


def test_tokenizers_that_are_refused_hold_no_workers_of_their_cohort() -> None:
    operator = started()
    cluster = operator.cluster
    (deployment,) = cluster.refs(DEPLOYMENT)
    before = cluster.find(deployment)
    old = cluster.refs(STATEFULSET)
    cluster.admit = limit_range("tokenizer")
    change(operator, tokenizer=BIG, worker={"drain": {"timeoutSeconds": 5}})
    assert cluster.find(deployment) == before
    assert len(cluster.refs(STATEFULSET)) == 1
    assert cluster.refs(STATEFULSET) != old
    assert condition(cluster, "Accepted")["status"] == "False"
    assert condition(cluster, "Available")["status"] == "True"


def test_a_full_quota_is_told_and_holds_nothing_up() -> None:
    """The group that is replaced is what makes the room."""
    operator = started(**UNIFIED)
    cluster = operator.cluster
    (old,) = cluster.refs(STATEFULSET)

    def admit(ref: ObjectRef, manifest: dict[str, Any]) -> None:
        others = [name for name in cluster.refs(POD) if name.name != ref.name]
        if ref.kind == POD and others:
            raise ForbiddenError("403", said=QUOTA)

    cluster.admit = admit
    change(operator, worker=BIG, **UNIFIED)
    (new,) = cluster.refs(STATEFULSET)
    assert new != old
    assert condition(cluster, "Accepted")["status"] == "True"
    assert condition(cluster, "Ready")["status"] == "True"
    asked = len(cluster.dry_runs)
    operator.clock.now_s += 1000
    operator.reconcile_all()
    assert len(cluster.dry_runs) == asked


def test_a_quota_that_stays_full_says_why_pods_are_missing_until_there_is_room() -> None:
    cluster = cluster_with_claim()
    cluster.admit = refuse_pods("worker", ForbiddenError("403", said=QUOTA))
    operator = started(cluster, worker=BIG)
    assert len(cluster.refs(STATEFULSET)) == 1
    placed = condition(cluster, "Placed")
    assert (placed["status"], placed["reason"]) == ("False", "QuotaPending")
    assert "exceeded quota: team" in placed["message"]
    assert condition(cluster, "Accepted")["status"] == "True"
    (wait_s,) = operator.waits_s.values()
    assert wait_s is not None
    asked = len(cluster.dry_runs)
    operator.clock.now_s += wait_s
    operator.reconcile_all()
    assert [call.ref.kind for call in cluster.dry_runs[asked:]] == [POD]
    cluster.admit = lambda ref, manifest: None
    converge(operator)
    assert condition(cluster, "Placed")["reason"] == "Scheduled"
    asked = len(cluster.dry_runs)
    (pod,) = [ref for ref in cluster.refs(POD) if "-w-" in ref.name]
    cluster.remove(pod)
    operator.clock.now_s += 1000
    converge(operator)
    assert len(cluster.dry_runs) == asked


@pytest.mark.parametrize(
    "error", [UnavailableError("no answer"), ThrottledError("slowly", retry_after_s=1.0)]
)
def test_no_answer_is_no_refusal(error: ClusterError) -> None:
    cluster = cluster_with_claim()
    cluster.put(SERVICE_KIND, service_manifest())

    def fail(call: Call) -> None:
        if call.is_dry_run and call.ref.kind == STATEFULSET:
            raise error

    cluster.before = fail
    operator = FakeOperator(cluster, Clock())
    with pytest.raises(AssertionError, match="not at rest"):
        operator.run()
    Controllers(cluster).settle()
    assert error in operator.errors
    assert cluster.refs(STATEFULSET) == []
    assert cluster.refs(DEPLOYMENT)
    assert condition(cluster, "Accepted")["status"] == "True"
    progressing = condition(cluster, "Progressing")
    assert progressing["status"] == "True"
    assert "could not be asked about the worker pods" in progressing["message"]
    cluster.before = lambda call: None
    converge(operator)
    assert condition(cluster, "Ready")["status"] == "True"


@pytest.mark.parametrize(
    "said", [NO_RIGHT, 'admission webhook "w.example" does not support dry run']
)
def test_where_pods_cannot_be_asked_about_it_goes_on(said: str) -> None:
    cluster = cluster_with_claim()

    def fail(call: Call) -> None:
        if call.is_dry_run and call.ref.kind == POD:
            raise ForbiddenError("403", said=said)

    cluster.before = fail
    operator = started(cluster)
    assert condition(cluster, "Ready")["status"] == "True"
    assert operator.errors == []


def test_without_the_right_to_the_owner_it_is_degraded_and_not_the_specs_fault() -> None:
    cluster = cluster_with_claim()
    cluster.put(SERVICE_KIND, service_manifest())

    def fail(call: Call) -> None:
        if call.ref.kind == STATEFULSET and call.verb not in ("list", "get"):
            raise ForbiddenError("403", said=NO_RIGHT.replace("pods", "statefulsets"))

    cluster.before = fail
    operator = FakeOperator(cluster, Clock())
    with pytest.raises(AssertionError, match="not at rest"):
        operator.run()
    assert condition(cluster, "Accepted")["status"] == "True"
    assert condition(cluster, "Degraded")["reason"] == "ReconcileError"


def test_what_the_first_creation_left_in_an_object_is_not_held_against_a_template() -> None:
    """An apply merges with it; the operator takes it back before it applies in earnest."""
    cluster = cluster_with_claim()

    def admit(ref: ObjectRef, manifest: dict[str, Any]) -> None:
        if ref.kind != DEPLOYMENT:
            return
        (container,) = manifest["spec"]["template"]["spec"]["containers"]
        wanted = container["resources"]
        limit = wanted.get("limits", {}).get("cpu")
        asked = wanted["requests"].get("cpu", "0")
        if limit and quantity_value(asked) > quantity_value(limit):
            raise RejectedError("422: must be less than or equal to cpu limit")

    cluster.admit = admit
    operator = started(cluster, tokenizer={"resources": {"limits": {"cpu": "1"}}})
    change(operator, tokenizer=BIG)
    assert condition(cluster, "Accepted")["status"] == "True"
    (deployment,) = cluster.objects(DEPLOYMENT)
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert container["resources"] == {"requests": {"cpu": "4", "memory": "512Mi"}}


def test_nothing_is_asked_for_a_service_that_wants_no_pods_or_is_paused() -> None:
    cluster = cluster_with_claim()
    cluster.admit = limit_range()
    operator = started(cluster, worker=BIG, stopped=True)
    change(operator, worker=BIG, paused=True)
    assert cluster.dry_runs == []
    change(operator, worker=BIG)
    assert condition(cluster, "Accepted")["status"] == "False"
    change(operator, worker=BIG, stopped=True)
    assert condition(cluster, "Accepted")["status"] == "True"


def test_a_template_refused_while_it_lives_lets_the_service_be_scaled_down() -> None:
    """A policy that came later: the group that it keeps from its pods is not asked about again."""
    operator = started(replicas=3, worker=BIG)
    cluster = operator.cluster
    cluster.admit = limit_range()
    change(operator, replicas=1, worker=BIG)
    assert len(cluster.refs(STATEFULSET)) == 1
    assert condition(cluster, "Ready")["status"] == "True"
