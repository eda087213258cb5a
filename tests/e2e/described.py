"""What `kubectl describe` says of a service, and the hands that put its pods into each state.

Not here: what must be said (test_describe.py).
"""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tests.devcluster.api import MERGE_PATCH
from tests.devcluster.cluster import Cluster, KubectlError
from tests.e2e.operator_process import apply, get
from tests.e2e.waiting import wait_for

from mizzen_operator.render import labels

NAME = "chat"
SMALL = {"resources": {"requests": {"cpu": "10m", "memory": "16Mi"}}}
NO_NODE = {"gpu": {"resourceName": "example.com/none", "countPerNode": 1}}
"""No node of the cell has such a device."""
NO_POD = {
    "apiVersion": "v1",
    "kind": "ResourceQuota",
    "metadata": {"name": "full"},
    "spec": {"hard": {"pods": "0"}},
}


def service(**spec: Any) -> dict[str, Any]:
    """A service of one worker pod."""
    return {
        "apiVersion": "serving.mizzen.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": NAME},
        "spec": {"model": {"source": {"pvc": {"claimName": "weights"}}}, "worker": SMALL, **spec},
    }


def describe(cluster: Cluster, namespace: str) -> str:
    """All that a person sees who asks only once; blanks in a row count as one."""
    text = cluster.kubectl("describe", "inferenceservice", NAME, "-n", namespace)
    return re.sub(r"[ \t]+", " ", text)


def wait_until_told(cluster: Cluster, namespace: str, *words: str) -> str:
    """The text once all of these words are in it; the last text is in the failure."""
    text = ""

    def is_told() -> bool:
        nonlocal text
        text = describe(cluster, namespace)
        return all(word in text for word in words)

    try:
        wait_for(f"{words} in kubectl describe", is_told)
    except AssertionError as error:
        error.add_note(text)
        raise
    return text


@contextmanager
def weights(cluster: Cluster, namespace: str) -> Iterator[None]:
    """A bound claim, so that pods have nothing to wait for but what the test is about."""
    volume = f"{namespace}-weights"
    common = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
    size = {"storage": "1Mi"}
    made = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": volume},
        "spec": {
            **common,
            "capacity": size,
            "hostPath": {"path": "/usr", "type": "Directory"},
            "claimRef": {"namespace": namespace, "name": "weights"},
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "weights"},
        "spec": {**common, "volumeName": volume, "resources": {"requests": size}},
    }
    apply(cluster, namespace, made)
    apply(cluster, namespace, claim)
    try:
        yield
    finally:
        cluster.kubectl("delete", "persistentvolume", volume, "--wait=false")


@contextmanager
def ghost_node(cluster: Cluster, namespace: str) -> Iterator[str]:
    """A node without a kubelet: what runs on it is what the test says."""
    name = f"ghost-{namespace[-20:]}".strip("-")
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}}
    cluster.kubectl("create", "-f", "-", stdin=json.dumps(node))
    try:
        yield name
    finally:
        cluster.kubectl("delete", "node", name)


def worker_pods(cluster: Cluster, namespace: str) -> list[dict[str, Any]]:
    """Worker pods that are not ending, the youngest last."""
    selector = f"{labels.ROLE}={labels.ROLE_WORKER}"
    found = get(cluster, "pods", "-n", namespace, "-l", selector) or {"items": []}
    living = (pod for pod in found["items"] if "deletionTimestamp" not in pod["metadata"])
    return sorted(living, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))


def worker_pod(cluster: Cluster, namespace: str, *, number: int = 1) -> str:
    """Name of the youngest worker pod, once there are this many."""
    pods = wait_for(
        f"{number} worker pods",
        lambda: len(found := worker_pods(cluster, namespace)) == number and found,
    )
    return str(pods[-1]["metadata"]["name"])


def put_on(cluster: Cluster, namespace: str, pod: str, node: str) -> None:
    """As the scheduler does."""
    target = {"apiVersion": "v1", "kind": "Node", "name": node}
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": pod},
        "target": target,
    }
    cluster.api.call("POST", f"/api/v1/namespaces/{namespace}/pods/{pod}/binding", binding)


def as_kubelet(
    cluster: Cluster,
    namespace: str,
    pod: str,
    state: Mapping[str, Any],
    *,
    ready: bool = False,
    started: bool = False,
) -> None:
    """Write the status of a pod as a kubelet does."""
    container = {
        "name": "mizzen",
        "image": "x",
        "imageID": "",
        "ready": ready,
        "started": started,
        "restartCount": 0,
        "state": state,
    }
    status = {
        "phase": "Running" if "running" in state else "Pending",
        "conditions": [
            {"type": "PodScheduled", "status": "True"},
            {"type": "Ready", "status": "True" if ready else "False"},
        ],
        "containerStatuses": [container],
    }
    path = f"/api/v1/namespaces/{namespace}/pods/{pod}/status"
    cluster.api.call("PATCH", path, {"status": status}, kind=MERGE_PATCH)


def wait_until_refused(cluster: Cluster, namespace: str, words: str) -> None:
    """Until a policy that was made just now is in force for pods."""

    def is_refused() -> bool:
        try:
            cluster.kubectl("run", "asked", "--image=x", "--dry-run=server", "-n", namespace)
        except KubectlError as error:
            return words in str(error)
        return False

    wait_for(f"pods are refused: {words}", is_refused)
