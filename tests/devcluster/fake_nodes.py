"""Owns fleets of fake nodes: their objects, and the program that answers for their kubelets (kwok).

Not here: real nodes (node.py).
"""

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.devcluster.api import ApiClient

LABEL = {"devcluster.mizzen.dev/fake": "true"}
TAINT = {"key": "devcluster.mizzen.dev/fake", "value": "true", "effect": "NoSchedule"}
_SELECTOR = "devcluster.mizzen.dev/fake=true"
_POD_NETWORK = "198.18.128.0/17"
_READY_TIMEOUT_S = 120.0


class FakeNodeError(RuntimeError):
    """Fake nodes did not become Ready."""


def kwok_command(program: Path, kubeconfig: Path) -> list[str]:
    """Return the command line; addresses that it invents are routed nowhere."""
    return [
        str(program),
        f"--kubeconfig={kubeconfig}",
        f"--manage-nodes-with-label-selector={_SELECTOR}",
        f"--cidr={_POD_NETWORK}",
        "--node-lease-duration-seconds=40",
        "--v=WARN",
    ]


def node_object(name: str, *, gpus: int, is_tainted: bool = True) -> dict[str, Any]:
    """Return a fake node's object."""
    capacity = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
    return {
        "metadata": {"name": name, "labels": {**LABEL, "kubernetes.io/hostname": name}},
        "spec": {"taints": [TAINT] if is_tainted else []},
        "status": {"capacity": capacity, "allocatable": capacity},
    }


def add(
    api: ApiClient, number: int, *, gpus: int, prefix: str, is_tainted: bool = True
) -> list[str]:
    """Create fake nodes and return their names when all are Ready; those that exist are kept."""
    names = [f"{prefix}-{index}" for index in range(number)]
    with ThreadPoolExecutor(8) as threads:
        objects = [node_object(name, gpus=gpus, is_tainted=is_tainted) for name in names]
        list(threads.map(lambda node: api.ensure("/api/v1/nodes", node), objects))
    deadline = time.monotonic() + _READY_TIMEOUT_S
    while missing := set(names) - _ready_names(api):
        if time.monotonic() > deadline:
            raise FakeNodeError(f"{len(missing)} of {number} fake nodes are not Ready")
        time.sleep(0.2)
    return names


def _ready_names(api: ApiClient) -> set[str]:
    listed = api.call("GET", f"/api/v1/nodes?labelSelector={_SELECTOR}")
    return {
        node["metadata"]["name"]
        for node in listed["items"]
        for condition in node["status"].get("conditions", ())
        if condition["type"] == "Ready" and condition["status"] == "True"
    }
