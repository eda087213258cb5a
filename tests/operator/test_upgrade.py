"""An upgrade of the operator, changed defaults and template included, moves no pinned pod."""

from dataclasses import replace
from typing import Any

import pytest
from tests.operator.fake_cluster import ACCOUNT, DEPLOYMENT, STATEFULSET, FakeCluster
from tests.operator.fake_controllers import Controllers
from tests.operator.fake_operator import (
    DEFAULTS,
    FakeOperator,
    condition,
    converge,
    service_manifest,
    service_ref,
    started,
)

from mizzen_operator.cluster.events import EVENT
from mizzen_operator.render.templates import TEMPLATES, Template
from mizzen_operator.render.tokenizer import tokenizer_deployment
from mizzen_operator.render.worker_group import worker_group
from mizzen_operator.spec.model import Tokenizer
from mizzen_operator.spec.resolve import Defaults, Resolved
from mizzen_operator.store import CONTROLLER_REVISION, POD, SECRET, SERVICE_KIND, ObjectRef, ref_of

NEXT = Defaults(
    frontend_image="mizzen/frontend:2", worker_image="mizzen/worker:2", template_version="v2"
)
NEW_IMAGES = Defaults(frontend_image="mizzen/frontend:2", worker_image="mizzen/worker:2")
A = {"contextLength": 1024}
B = {"contextLength": 2048}


def _marked(obj: dict[str, Any]) -> dict[str, Any]:
    """As another template would have it: the pod has something that v1's has not."""
    obj["spec"]["template"]["spec"]["hostname"] = "second"
    return obj


def _second_group(resolved: Resolved, index: int) -> dict[str, Any]:
    return _marked(worker_group(resolved, index))


def _second_deployment(resolved: Resolved, tokenizer: Tokenizer) -> dict[str, Any]:
    return _marked(tokenizer_deployment(resolved, tokenizer))


@pytest.fixture(autouse=True)
def _second_template(monkeypatch: pytest.MonkeyPatch) -> None:
    """A release that knows another way to render pods beside the one of before."""
    second = Template(worker_group=_second_group, tokenizer_deployment=_second_deployment)
    monkeypatch.setitem(TEMPLATES, "v2", second)


def upgraded(operator: FakeOperator, defaults: Defaults = NEXT) -> FakeOperator:
    """Another release of the operator goes on in its place."""
    operator.die()
    return FakeOperator(operator.cluster, operator.clock, defaults)


def pods(cluster: FakeCluster) -> list[Any]:
    """Everything that holds pods, and the pods."""
    return [cluster.objects(kind) for kind in (STATEFULSET, DEPLOYMENT, POD)]


def images(cluster: FakeCluster) -> set[str]:
    return {
        container["image"]
        for kind in (STATEFULSET, DEPLOYMENT)
        for workload in cluster.objects(kind)
        for container in workload["spec"]["template"]["spec"]["containers"]
    }


def templates(cluster: FakeCluster) -> set[str]:
    """Template versions by which live workloads were rendered."""
    return {
        "v2" if "hostname" in workload["spec"]["template"]["spec"] else "v1"
        for kind in (STATEFULSET, DEPLOYMENT)
        for workload in cluster.objects(kind)
    }


def revisions(cluster: FakeCluster) -> dict[str, int]:
    """Number of each stored revision of ours by name."""
    return {
        item["metadata"]["name"]: item["revision"]
        for item in cluster.objects(CONTROLLER_REVISION)
        if item["metadata"]["ownerReferences"][0]["kind"] == SERVICE_KIND.kind
    }


def apply(operator: FakeOperator, **spec: Any) -> None:
    operator.cluster.put(SERVICE_KIND, service_manifest(**spec))
    converge(operator)


@pytest.mark.parametrize("topology", ["Split", "Unified"])
@pytest.mark.parametrize("defaults", [NEW_IMAGES, NEXT], ids=["images", "template"])
def test_row_1_of_a_pinned_service_at_rest_only_the_status_is_written(
    topology: str, defaults: Defaults
) -> None:
    operator = started(topology=topology, replicas=2, engine=A)
    before, num_writes = pods(operator.cluster), len(operator.cluster.writes)
    operator = upgraded(operator, defaults)
    converge(operator)
    # Each process asks once whether its Secret is there, by a patch that changes nothing.
    writes = [c for c in operator.cluster.writes[num_writes:] if c.ref.kind != SECRET]
    assert [(call.ref, call.subresource) for call in writes] == [(service_ref(), "status")]
    assert pods(operator.cluster) == before
    assert condition(operator.cluster, "Ready")["status"] == "True"


def test_row_2_what_could_be_followed_is_told_until_it_is() -> None:
    def told(operator: FakeOperator) -> list[str]:
        conditions = operator.cluster.find(service_ref())["status"]["conditions"]
        return [c["message"] for c in conditions if c["type"] == "UpdateAvailable"]

    operator = started(engine=A)
    assert told(operator) == []
    operator = upgraded(operator)
    converge(operator)
    (message,) = told(operator)
    for part in (
        "template version v2",
        "mizzen/worker:2",
        "in place of mizzen/frontend:1",
        "Follow",
    ):
        assert part in message
    num_writes = len(operator.cluster.writes)
    operator.reconcile_all()
    assert operator.cluster.writes[num_writes:] == []
    assert not [e for e in operator.cluster.objects(EVENT) if "UpdateAvailable" in e["message"]]
    apply(operator, engine=A, updatePolicy="Follow")
    assert told(operator) == []


def test_pull_secrets_by_default_go_to_the_account_and_move_no_pod() -> None:
    operator = started(replicas=2)
    cluster = operator.cluster
    before, num_writes = pods(cluster), len(cluster.writes)
    operator = upgraded(operator, replace(DEFAULTS, pull_secrets=("mirror", "other")))
    converge(operator)
    (account,) = cluster.objects(ACCOUNT)
    assert account["imagePullSecrets"] == [{"name": "mirror"}, {"name": "other"}]
    assert pods(cluster) == before
    assert {call.ref.kind for call in cluster.writes[num_writes:]} <= {ACCOUNT, SECRET}
    operator = upgraded(operator, DEFAULTS)
    converge(operator)
    (account,) = cluster.objects(ACCOUNT)
    assert "imagePullSecrets" not in account
    assert pods(cluster) == before


def test_scaling_after_the_upgrade_makes_pods_like_those_that_are_there() -> None:
    operator = upgraded(started(engine=A))
    apply(operator, engine=A, replicas=3)
    assert len(operator.cluster.refs(STATEFULSET)) == 3
    assert images(operator.cluster) == {DEFAULTS.frontend_image, DEFAULTS.worker_image}
    assert templates(operator.cluster) == {"v1"}
    assert list(revisions(operator.cluster).values()) == [1]


def test_in_the_middle_of_a_rollout_neither_side_moves() -> None:
    operator = started(engine=A, replicas=2)
    cluster = operator.cluster
    cluster.put(SERVICE_KIND, service_manifest(engine=B, replicas=2))
    operator.run()
    Controllers(cluster).settle()
    operator.run()
    sets = cluster.objects(STATEFULSET)
    assert len({item["metadata"]["labels"]["serving.mizzen.dev/revision"] for item in sets}) == 2
    templates_before = {item["metadata"]["name"]: item["spec"]["template"] for item in sets}
    operator = upgraded(operator)
    num_writes = len(cluster.writes)
    operator.run()
    for item in cluster.objects(STATEFULSET):
        name = item["metadata"]["name"]
        assert item["spec"]["template"] == templates_before.get(name, item["spec"]["template"])
    assert not [
        call
        for call in cluster.writes[num_writes:]
        if call.verb == "patch" and call.ref.kind in (STATEFULSET, DEPLOYMENT)
    ]
    converge(operator)
    assert condition(cluster, "Ready")["status"] == "True"
    assert templates(cluster) == {"v1"}


def test_a_spec_edit_after_the_upgrade_keeps_the_images_and_the_template() -> None:
    operator = upgraded(started(engine=A))
    apply(operator, engine=B)
    assert images(operator.cluster) == {DEFAULTS.frontend_image, DEFAULTS.worker_image}
    assert templates(operator.cluster) == {"v1"}


def test_follow_rolls_to_the_new_defaults_once() -> None:
    operator = started(engine=A, updatePolicy="Follow")
    cluster = operator.cluster
    operator = upgraded(operator)
    converge(operator)
    assert images(cluster) == {NEXT.frontend_image, NEXT.worker_image}
    assert templates(cluster) == {"v2"}
    assert sorted(revisions(cluster).values()) == [1, 2]
    before, num_writes = pods(cluster), len(cluster.writes)
    apply(operator, engine=A, updatePolicy="Pinned")
    assert pods(cluster) == before
    assert not [
        call for call in cluster.writes[num_writes:] if call.ref.kind not in (SERVICE_KIND, SECRET)
    ]


def test_an_earlier_spec_applied_again_gets_its_own_pods_back() -> None:
    operator = started(engine=A)
    cluster = operator.cluster
    first = cluster.find(service_ref())["status"]["updateRevision"]
    begun = {
        item["metadata"]["name"]: item["spec"]
        for kind in (STATEFULSET, DEPLOYMENT)
        for item in cluster.objects(kind)
    }
    (stored,) = revisions(cluster)
    operator = upgraded(operator)
    apply(operator, engine=B, updatePolicy="Follow")
    assert images(cluster) == {NEXT.frontend_image, NEXT.worker_image}
    apply(operator, engine=A)
    status = cluster.find(service_ref())["status"]
    assert status["updateRevision"] == first
    assert condition(cluster, "Ready")["status"] == "True"
    now = {
        item["metadata"]["name"]: item["spec"]
        for kind in (STATEFULSET, DEPLOYMENT)
        for item in cluster.objects(kind)
    }
    assert now == begun
    assert revisions(cluster)[stored] == max(revisions(cluster).values()) == 3


def test_a_downgrade_to_a_release_that_lacks_the_template_leaves_the_pods() -> None:
    operator = upgraded(started(engine=A, updatePolicy="Follow"))
    converge(operator)
    apply(operator, engine=A, updatePolicy="Pinned")
    before = pods(operator.cluster)
    TEMPLATES.pop("v2")
    operator = upgraded(operator, DEFAULTS)
    converge(operator)
    assert pods(operator.cluster) == before
    accepted = condition(operator.cluster, "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "NotAvailable")
    assert "template version v2" in accepted["message"]
    assert condition(operator.cluster, "Available")["status"] == "True"


def test_old_revisions_are_pruned_with_preconditions() -> None:
    operator = started(engine=A, revisionHistoryLimit=1)
    for length in (2048, 3072, 4096):
        apply(operator, engine={"contextLength": length}, revisionHistoryLimit=1)
    assert sorted(revisions(operator.cluster).values()) == [3, 4]


def test_the_history_that_kubernetes_keeps_is_neither_stored_nor_touched() -> None:
    operator = started(engine=A, revisionHistoryLimit=0)
    cluster = operator.cluster
    theirs = [
        ref_of(item)
        for item in cluster.objects(CONTROLLER_REVISION)
        if item["metadata"]["ownerReferences"][0]["kind"] == STATEFULSET.kind
    ]
    assert theirs
    operator.run_lists()
    operator.run()
    assert operator.store.num_objects(CONTROLLER_REVISION) == 1
    assert all(cluster.find(ref) for ref in theirs)


def test_labels_of_a_stored_revision_are_put_right() -> None:
    operator = started(engine=A)
    cluster = operator.cluster
    (name,) = revisions(cluster)
    ref = ObjectRef(kind=CONTROLLER_REVISION, namespace="team", name=name)
    before = cluster.find(ref)
    cluster.edit(ref, lambda manifest: manifest["metadata"]["labels"].pop("app.kubernetes.io/name"))
    converge(operator)
    assert cluster.find(ref)["metadata"]["labels"] == before["metadata"]["labels"]
    assert cluster.find(ref)["data"] == before["data"]
