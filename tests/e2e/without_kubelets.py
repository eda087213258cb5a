"""Pods on nodes without kubelets, by the scheduler's own choice: a test reports what they do.

Not here: services, their weights and what the operator tells (described.py).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.devcluster.api import MERGE_PATCH
from tests.devcluster.cluster import Cluster
from tests.e2e.operator_process import get

from mizzen_operator.render import labels

CARD = "example.com/card"
"""A resource that only nodes of these tests have, so that no other node takes the pods."""


def cards(**worker: Any) -> dict[str, Any]:
    requests = {"cpu": "10m", "memory": "16Mi"}
    return {"resources": {"requests": requests, "limits": {CARD: "1"}}, **worker}


@contextmanager
def node(cluster: Cluster, name: str) -> Iterator[None]:
    """A node that reports once that it is ready and then never again."""
    capacity = {"cpu": "4", "memory": "8Gi", "pods": "10", CARD: "1"}
    status = {
        "capacity": capacity,
        "allocatable": capacity,
        "conditions": [{"type": "Ready", "status": "True", "reason": "Test"}],
    }
    made = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status}
    cluster.api.call("POST", "/api/v1/nodes", made)
    try:
        cluster.api.call(
            "PATCH", f"/api/v1/nodes/{name}/status", {"status": status}, kind=MERGE_PATCH
        )
        yield
    finally:
        cluster.kubectl("delete", "node", name)


def workers(cluster: Cluster, namespace: str) -> list[dict[str, Any]]:
    """Worker pods, the ending ones too."""
    selector = f"{labels.ROLE}={labels.ROLE_WORKER}"
    found = get(cluster, "pods", "-n", namespace, "-l", selector) or {"items": []}
    items: list[dict[str, Any]] = found["items"]
    return items


def as_ready(cluster: Cluster, pod: dict[str, Any], *, restarts: int = 0) -> None:
    """What a kubelet reports of a pod that serves."""
    running = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}
    _report(cluster, pod, state=running, ready=True, restarts=restarts)


def as_crashed(cluster: Cluster, pod: dict[str, Any]) -> None:
    """What a kubelet reports of a pod whose container has ended once and waits."""
    waiting = {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}}
    _report(cluster, pod, state=waiting, ready=False, restarts=1)


def _report(
    cluster: Cluster, pod: dict[str, Any], *, state: dict[str, Any], ready: bool, restarts: int
) -> None:
    metadata = pod["metadata"]
    container = {
        "name": "mizzen",
        "image": "x",
        "imageID": "",
        "ready": ready,
        "started": ready,
        "restartCount": restarts,
        "state": state,
    }
    stamp = "2026-01-01T00:00:00Z"
    conditions = [
        {"type": kind, "status": str(ready), "lastTransitionTime": stamp}
        for kind in ("ContainersReady", "Ready")
    ]
    conditions.append({"type": "PodScheduled", "status": "True", "lastTransitionTime": stamp})
    status = {"phase": "Running", "conditions": conditions, "containerStatuses": [container]}
    path = f"/api/v1/namespaces/{metadata['namespace']}/pods/{metadata['name']}/status"
    cluster.api.call("PATCH", path, {"status": status}, kind=MERGE_PATCH)
