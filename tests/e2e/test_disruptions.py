"""Evictions and lost nodes on a real API server and its controllers, on nodes without kubelets."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.devcluster.api import ApiError
from tests.devcluster.cluster import Cluster
from tests.e2e.described import service, weights
from tests.e2e.operator_process import (
    OperatorProcess,
    account_kubeconfig,
    apply,
    condition,
    get,
    operator_writes,
)
from tests.e2e.waiting import wait_for
from tests.e2e.without_kubelets import as_ready, cards, node, workers

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


@pytest.fixture
def operator(installed: Cluster, tmp_path: Path) -> Iterator[OperatorProcess]:
    """A running operator, which LISTs too rarely to stand in for its watch."""
    process = OperatorProcess(
        kubeconfig=account_kubeconfig(installed, tmp_path),
        log=tmp_path / "operator.log",
        settings={"RESYNC_SECONDS": "300"},
    )
    with process.running():
        yield process


def evict(cluster: Cluster, pod: dict[str, Any]) -> int:
    """Ask for an eviction, as ``kubectl drain`` does; the answer's status."""
    metadata = {"name": pod["metadata"]["name"], "namespace": pod["metadata"]["namespace"]}
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/eviction"
    body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata}
    try:
        cluster.api.call("POST", path, body)
    except ApiError as error:
        return error.status
    return 201


def budget(cluster: Cluster, namespace: str) -> dict[str, Any]:
    """Its status; empty while that speaks of an older spec, for which no eviction is granted."""
    found = get(cluster, "pdb", "chat-worker", "-n", namespace) or {"metadata": {}}
    status: dict[str, Any] = found.get("status") or {}
    is_current = status.get("observedGeneration") == found["metadata"].get("generation")
    return status if is_current else {}


def events(cluster: Cluster, namespace: str, reason: str) -> list[dict[str, Any]]:
    found = get(cluster, "events", "-n", namespace) or {"items": []}
    return [item for item in found["items"] if item["reason"] == reason]


def test_row_39_parallel_evictions_take_one_group_at_a_time(
    cluster: Cluster, namespace: str, operator: OperatorProcess
) -> None:
    # No node has the card: nobody but this test says how the pods are.
    apply(cluster, namespace, service(replicas=3, worker=cards()))
    wait_for("three pods", lambda: len(workers(cluster, namespace)) == 3)
    for pod in workers(cluster, namespace):
        as_ready(cluster, pod)
    # Of a release before, or of a hand: both limits at once are refused.
    other = json.dumps({"spec": {"minAvailable": None, "maxUnavailable": 1}})
    cluster.kubectl("patch", "pdb", "chat-worker", "-n", namespace, "--type=merge", "-p", other)

    def limit() -> int | None:
        found: int | None = get(cluster, "pdb", "chat-worker", "-n", namespace)["spec"].get(
            "minAvailable"
        )
        return found

    wait_for("the budget is put right", lambda: limit() == 2)
    wait_for("one may go", lambda: budget(cluster, namespace).get("disruptionsAllowed") == 1)
    pods = workers(cluster, namespace)
    with ThreadPoolExecutor(3) as threads:
        answers = sorted(threads.map(lambda pod: evict(cluster, pod), pods))
    assert answers == [201, 429, 429]

    before = {pod["metadata"]["uid"] for pod in pods}
    new = wait_for(
        "the evicted one is made again",
        lambda: [p for p in workers(cluster, namespace) if p["metadata"]["uid"] not in before],
    )
    others = [pod for pod in workers(cluster, namespace) if pod["metadata"]["uid"] in before]
    assert len(others) == 2
    assert {evict(cluster, pod) for pod in others} == {429}, "while it is not ready"
    for pod in new:
        as_ready(cluster, pod)
    wait_for("one may go again", lambda: budget(cluster, namespace).get("disruptionsAllowed") == 1)
    assert evict(cluster, others[0]) == 201
    assert not events(cluster, namespace, "SingleGroup")


def test_row_39_a_single_group_has_no_budget_and_says_so_once(
    cluster: Cluster, namespace: str, operator: OperatorProcess
) -> None:
    apply(cluster, namespace, service(worker=cards()))
    wait_for("the Event", lambda: events(cluster, namespace, "SingleGroup"))
    (first,) = wait_for("its pod", lambda: workers(cluster, namespace))
    assert get(cluster, "pdb", "-n", namespace) is None
    apply(cluster, namespace, service(worker=cards(), engine={"contextLength": 512}))
    wait_for(
        "the status speaks of the last spec",
        lambda: condition(cluster, namespace, "chat", "Ready").get("observedGeneration") == 2,
    )
    assert len(events(cluster, namespace, "SingleGroup")) == 1

    def successor() -> dict[str, Any] | None:
        found = workers(cluster, namespace)
        is_alone = [pod["metadata"]["uid"] for pod in found] != [first["metadata"]["uid"]]
        return found[0] if len(found) == 1 and is_alone else None

    pod = wait_for("the pod of the last spec, alone", successor)
    as_ready(cluster, pod)
    assert evict(cluster, pod) == 201, "a budget would keep its node from ever draining"


def test_with_one_replica_a_lost_node_is_left_for_another(
    cluster: Cluster, namespace: str, operator: OperatorProcess
) -> None:
    def available() -> str:
        return str(condition(cluster, namespace, "chat", "Available").get("status"))

    def ready_of(pod: dict[str, Any]) -> dict[str, str]:
        conditions = pod["status"].get("conditions", ())
        return {item["type"]: item["status"] for item in conditions}

    first, second = (f"{namespace[-20:].strip('-')}-{name}" for name in ("lost", "spare"))
    with weights(cluster, namespace), node(cluster, first):
        restart = {"nodeLostSeconds": 10}
        apply(cluster, namespace, service(worker=cards(restart=restart)))
        wait_for(
            "the pod has a node",
            lambda: [p for p in workers(cluster, namespace) if p["spec"].get("nodeName") == first],
        )
        (pod,) = workers(cluster, namespace)
        as_ready(cluster, pod)
        wait_for("it serves", lambda: available() == "True")

        def is_marked() -> bool:
            """By the node controller alone: a kubelet would report both alike."""
            found = ready_of(workers(cluster, namespace)[0])
            return (found["Ready"], found["ContainersReady"]) == ("False", "True")

        wait_for("the node controller marks it", is_marked)
        wait_for("it does not serve", lambda: available() == "False")
        # While nobody evicts the pod it may serve on, seen from elsewhere.
        assert not [
            event for event in operator_writes(cluster, namespace) if event.verb == "delete"
        ]

        name = pod["metadata"]["name"]
        cluster.kubectl("delete", "pod", name, "-n", namespace, "--wait=false")
        with node(cluster, second):

            def moved() -> dict[str, Any] | None:
                found = workers(cluster, namespace)
                return next((p for p in found if p["spec"].get("nodeName") == second), None)

            again = wait_for("a new pod on the other node", moved)
            assert again["metadata"]["uid"] != pod["metadata"]["uid"]
            as_ready(cluster, again)
            wait_for("it serves again", lambda: available() == "True")
            deletes = [e for e in operator_writes(cluster, namespace) if e.verb == "delete"]
            assert [(e.resource, e.name, e.status) for e in deletes] == [("pods", name, 200)]
            spec = json.dumps({"spec": {"stopped": True}})
            cluster.kubectl("patch", "misvc", "chat", "-n", namespace, "--type=merge", "-p", spec)
            cluster.kubectl("delete", "pod", name, "-n", namespace, "--grace-period=0", "--force")
