"""Users' pod templates: merged into pods, and what is wrong with one is told before anything."""

from typing import Any

import pytest
from tests.operator.fake_cluster import DEPLOYMENT, STATEFULSET, FakeCluster
from tests.operator.fake_operator import (
    FakeOperator,
    condition,
    converge,
    service_manifest,
    started,
)

from mizzen_operator.errors import RejectedError
from mizzen_operator.store import POD, SERVICE_KIND, ObjectRef

DECODING = "cannot be handled as a StatefulSet: strict decoding error: unknown field "
PATH = "spec.template.spec.containers[1].imag"


def template(**container: Any) -> dict[str, Any]:
    return {"podTemplate": {"spec": {"containers": [{"name": "side", "image": "i", **container}]}}}


def apply(operator: FakeOperator, **spec: Any) -> None:
    operator.cluster.put(SERVICE_KIND, service_manifest(**spec))
    converge(operator)


def fleet(cluster: FakeCluster) -> dict[ObjectRef, Any]:
    return {ref: cluster.find(ref) for ref in cluster.refs() if ref.kind in {STATEFULSET, POD}}


def containers(cluster: FakeCluster, role: str) -> set[tuple[str, ...]]:
    pods = [cluster.find(ref) for ref in cluster.refs(POD)]
    return {
        tuple(item["name"] for item in pod["spec"]["containers"])
        for pod in pods
        if pod is not None and pod["metadata"]["labels"]["serving.mizzen.dev/role"] == role
    }


def refuse_side(cluster: FakeCluster) -> None:
    def admit(ref: ObjectRef, manifest: dict[str, Any]) -> None:
        if ref.kind not in (STATEFULSET, DEPLOYMENT):
            return
        found = manifest["spec"]["template"]["spec"]["containers"]
        if any("imag" in item for item in found):
            raise RejectedError("400", said=f'{DECODING}"{PATH}"')

    cluster.admit = admit


def test_a_template_rolls_its_role_and_going_back_rolls_it_again() -> None:
    operator = started(replicas=2)
    cluster = operator.cluster
    (tokenizers,) = cluster.refs(DEPLOYMENT)
    before, plain = cluster.find(tokenizers), set(cluster.refs(STATEFULSET))
    apply(operator, replicas=2, worker=template())
    assert containers(cluster, "worker") == {("mizzen", "side")}
    assert containers(cluster, "tokenizer") == {("mizzen",)}
    assert cluster.find(tokenizers) == before
    assert condition(cluster, "Ready")["status"] == "True"
    apply(operator, replicas=2)
    assert set(cluster.refs(STATEFULSET)) == plain
    apply(operator, replicas=2, tokenizer=template())
    assert set(cluster.refs(STATEFULSET)) == plain
    deployment = cluster.find(tokenizers)
    assert deployment is not None
    names = [item["name"] for item in deployment["spec"]["template"]["spec"]["containers"]]
    assert names == ["mizzen", "side"]


@pytest.mark.parametrize("role", ["worker", "tokenizer"])
def test_a_template_that_the_api_server_refuses_is_told_where_it_was_written(role: str) -> None:
    operator = started(replicas=2)
    cluster = operator.cluster
    refuse_side(cluster)
    before = fleet(cluster)
    apply(operator, replicas=2, **{role: template(imag="x")})
    assert fleet(cluster) == before
    accepted = condition(cluster, "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "InvalidPodTemplate")
    place = f"spec.{role}.podTemplate.spec.containers[0].imag: the API server refuses the {role}"
    assert accepted["message"].startswith(place)
    assert condition(cluster, "Available")["status"] == "True"
    apply(operator, replicas=2, **{role: template()})
    assert condition(cluster, "Ready")["status"] == "True"
    assert containers(cluster, role) == {("mizzen", "side")}


def test_a_template_that_is_ours_to_refuse_is_never_asked_about() -> None:
    operator = started(replicas=2)
    cluster = operator.cluster
    before, asked = fleet(cluster), len(cluster.dry_runs)
    apply(operator, replicas=2, worker={"podTemplate": {"spec": {"hostNetwork": True}}})
    assert (fleet(cluster), len(cluster.dry_runs)) == (before, asked)
    accepted = condition(cluster, "Accepted")
    assert (accepted["status"], accepted["reason"]) == ("False", "InvalidPodTemplate")
    assert accepted["message"].startswith("spec.worker.podTemplate.spec.hostNetwork: may not be")
    assert condition(cluster, "Available")["status"] == "True"
