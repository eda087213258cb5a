"""Users' pod templates on a real API server: what is right reaches pods, what is wrong is told in
`kubectl describe` at the place where it was written, and moves nothing.

Pods are made but need not run, so no image of ours is used.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.devcluster.cluster import Cluster
from tests.e2e.described import service, wait_until_told, worker_pods
from tests.e2e.operator_process import (
    OperatorProcess,
    account_kubeconfig,
    apply,
    condition,
    get,
)
from tests.e2e.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

SIDE: dict[str, Any] = {"name": "side", "image": "side:1"}
GOOD = {
    "metadata": {"labels": {"team": "search"}},
    "spec": {
        "tolerations": [{"key": "example.com/gpu", "operator": "Exists"}],
        "securityContext": {"supplementalGroups": [7]},
        "containers": [
            {**SIDE, "ports": [{"containerPort": 9000}]},
            {"name": "mizzen", "env": [{"name": "A", "value": "1"}]},
        ],
        "initContainers": [{"name": "first", "image": "first:1"}],
        "volumes": [{"name": "tmp", "emptyDir": {"sizeLimit": "2Gi"}}],
    },
}


@pytest.fixture
def _operator(installed: Cluster, tmp_path: Path) -> Iterator[None]:
    process = OperatorProcess(
        kubeconfig=account_kubeconfig(installed, tmp_path), log=tmp_path / "operator.log"
    )
    with process.running():
        yield


@pytest.fixture
def chat(installed: Cluster, namespace: str, _operator: None) -> dict[str, Any]:
    """A service whose pods are there, in a namespace that lets in restricted pods only."""
    label = "pod-security.kubernetes.io/enforce=restricted"
    installed.kubectl("label", "--overwrite", "namespace", namespace, label)
    spec = {"topology": "Split", "tokenizer": {"replicas": 1}}
    apply(installed, namespace, service(**spec))
    wait_for("its pods", lambda: len(pods(installed, namespace)) == 2)
    return spec


def pods(cluster: Cluster, namespace: str) -> dict[str, dict[str, Any]]:
    found = get(cluster, "pods", "-n", namespace) or {"items": []}
    return {pod["metadata"]["uid"]: pod for pod in found["items"]}


def workloads(cluster: Cluster, namespace: str) -> set[tuple[str, str]]:
    """What a roll-out would change; others write no more than their statuses."""
    found = get(cluster, "statefulset,deployment", "-n", namespace)["items"]
    return {(i["metadata"]["uid"], str(i["metadata"]["generation"])) for i in found}


def test_a_template_reaches_the_pods_of_its_role(
    installed: Cluster, namespace: str, chat: dict[str, Any]
) -> None:
    worker = {**service()["spec"]["worker"], "podTemplate": GOOD}
    tokenizer = {**chat["tokenizer"], "podTemplate": GOOD}
    apply(installed, namespace, service(**{**chat, "worker": worker, "tokenizer": tokenizer}))

    def merged() -> list[dict[str, Any]]:
        found = pods(installed, namespace).values()
        return [pod for pod in found if pod["metadata"]["labels"].get("team") == "search"]

    wait_for("pods of both roles", lambda: len(merged()) == 2)
    for pod in merged():
        spec = pod["spec"]
        assert [item["name"] for item in spec["containers"]] == ["mizzen", "side"]
        assert [item["name"] for item in spec["initContainers"]] == ["first"]
        assert {"name": "A", "value": "1"} in spec["containers"][0]["env"]
        assert any(item.get("key") == "example.com/gpu" for item in spec["tolerations"])
        assert spec["securityContext"]["supplementalGroups"] == [7]
        volumes = {item["name"]: item for item in spec["volumes"]}
        assert volumes["tmp"]["emptyDir"] == {"sizeLimit": "2Gi"}
        assert pod["metadata"]["labels"]["serving.mizzen.dev/service"] == "chat"
    assert condition(installed, namespace, "chat", "Accepted")["status"] == "True"


WRONG: dict[str, tuple[dict[str, Any], str, str]] = {
    "misspelled": ({**SIDE, "imag": "x"}, ".imag", "imag"),
    "quantity": (
        {**SIDE, "resources": {"limits": {"memory": "64MB"}}},
        ".resources.limits[memory]",
        "is not a quantity (found 64MB)",
    ),
    "value": ({**SIDE, "imagePullPolicy": "Sometimes"}, ".imagePullPolicy", "Sometimes"),
    "missing": ({"name": "side"}, ".image", "Required value"),
    "type": ({**SIDE, "workingDir": 7}, "", "workingDir"),
}


@pytest.mark.parametrize("role", ["worker", "tokenizer"])
def test_a_template_that_is_wrong_is_told_and_nothing_rolls(
    installed: Cluster, namespace: str, chat: dict[str, Any], role: str
) -> None:
    """Worker groups are made anew and so asked about as new ones; the Deployment is changed."""
    before = workloads(installed, namespace)
    names = {pod["metadata"]["name"] for pod in worker_pods(installed, namespace)}
    for what, (container, below, words) in WRONG.items():
        part = {
            **(service()["spec"]["worker"] if role == "worker" else chat["tokenizer"]),
            "podTemplate": {"spec": {"containers": [container]}},
        }
        apply(installed, namespace, service(**{**chat, role: part}))
        place = f"spec.{role}.podTemplate" + (f".spec.containers[0]{below}" if below else "")
        reason = "InvalidPodTemplate"
        told = f"Reason: {reason}", f"Warning {reason}", place, words
        wait_until_told(installed, namespace, *told)
        assert workloads(installed, namespace) == before, what
    apply(installed, namespace, service(**chat))
    wait_for(
        "it is accepted again",
        lambda: condition(installed, namespace, "chat", "Accepted").get("status") == "True",
    )
    assert workloads(installed, namespace) == before
    assert {pod["metadata"]["name"] for pod in worker_pods(installed, namespace)} == names
