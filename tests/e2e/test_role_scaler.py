"""Role scalers on a real API server: /scale, GitOps, a HorizontalPodAutoscaler, two writers."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.devcluster.api import MERGE_PATCH
from tests.devcluster.cluster import Cluster
from tests.e2e.operator_process import (
    USER,
    OperatorProcess,
    account_kubeconfig,
    apply,
    condition,
    get,
    role_of,
)
from tests.e2e.waiting import wait_for
from tests.operator.fake_operator import service_manifest

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

HPA = {
    "apiVersion": "autoscaling/v2",
    "kind": "HorizontalPodAutoscaler",
    "metadata": {"name": "chat"},
    "spec": {
        "scaleTargetRef": {
            "apiVersion": "serving.mizzen.dev/v1alpha1",
            "kind": "InferenceRoleScaler",
            "name": "chat-worker",
        },
        "minReplicas": 1,
        "maxReplicas": 2,
        "metrics": [
            {
                "type": "Resource",
                "resource": {
                    "name": "cpu",
                    "target": {"type": "Utilization", "averageUtilization": 80},
                },
            }
        ],
    },
}


@pytest.fixture
def operator(installed: Cluster, tmp_path: Path) -> Iterator[OperatorProcess]:
    """A running operator without our images."""
    process = OperatorProcess(
        kubeconfig=account_kubeconfig(installed, tmp_path), log=tmp_path / "operator.log"
    )
    with process.running():
        yield process


def service(**spec: Any) -> dict[str, Any]:
    manifest = service_manifest(**spec)
    del manifest["metadata"]["namespace"]
    return manifest


def scaler(cluster: Cluster, namespace: str, role: str = "worker") -> dict[str, Any]:
    what = ("mirs", f"chat-{role}", "-n", namespace, "--show-managed-fields")
    found: dict[str, Any] = get(cluster, *what) or {}
    return found


def asked(cluster: Cluster, namespace: str, role: str = "worker") -> int | None:
    replicas: int | None = scaler(cluster, namespace, role).get("spec", {}).get("replicas")
    return replicas


def groups(cluster: Cluster, namespace: str) -> int:
    return len((get(cluster, "statefulsets", "-n", namespace) or {"items": ()})["items"])


def wait_for_groups(cluster: Cluster, namespace: str, wanted: int) -> None:
    wait_for(f"{wanted} groups", lambda: groups(cluster, namespace) == wanted)


def is_current(found: dict[str, Any]) -> bool:
    """Whether the status of a scaler is about what it asks for now."""
    status = found.get("status") or {}
    return bool(status.get("observedGeneration") == found["metadata"]["generation"])


def managers_of_replicas(found: dict[str, Any]) -> set[str]:
    return {
        entry["manager"]
        for entry in found["metadata"]["managedFields"]
        if "f:replicas" in entry["fieldsV1"].get("f:spec", {})
    }


def test_rows_49_and_50_people_gitops_and_an_autoscaler_share_one_number(
    cluster: Cluster, namespace: str, operator: OperatorProcess, tmp_path: Path
) -> None:
    manifest = service(replicas=1, tokenizer={"replicas": 1})
    file = tmp_path / "service.json"
    file.write_text(json.dumps(manifest))
    cluster.kubectl("apply", "-n", namespace, "-f", str(file))
    wait_for_groups(cluster, namespace, 1)

    cluster.kubectl("scale", "mirs/chat-worker", "--replicas=3", "-n", namespace)
    wait_for_groups(cluster, namespace, 3)
    wait_for(
        "the scaler tells it",
        lambda: scaler(cluster, namespace).get("status", {}).get("replicas") == 3,
    )
    before = scaler(cluster, namespace)
    assert managers_of_replicas(before) == {"kubectl"}

    # As GitOps does, client-side and server-side: nothing differs, nothing is reset.
    cluster.kubectl("apply", "-n", namespace, "-f", str(file))
    apply(cluster, namespace, manifest)
    cluster.kubectl("diff", "--server-side", "-n", namespace, "-f", str(file))
    cluster.kubectl("annotate", "misvc/chat", "example.com/touched=1", "-n", namespace)
    cluster.kubectl("scale", "mirs/chat-tokenizer", "--replicas=2", "-n", namespace)
    wait_for(
        "a later wish is carried out",
        lambda: (
            get(cluster, "deployment", "chat-tokenizer", "-n", namespace)["spec"]["replicas"] == 2
        ),
    )
    after = scaler(cluster, namespace)
    assert after["spec"] == {"replicas": 3}
    assert after["metadata"]["generation"] == before["metadata"]["generation"]


def test_an_autoscaler_works_on_a_scaler(
    cluster: Cluster, namespace: str, operator: OperatorProcess
) -> None:
    """Its controller writes what is above its maximum, without any metric."""
    apply(cluster, namespace, service(replicas=3))
    wait_for_groups(cluster, namespace, 3)
    apply(cluster, namespace, HPA)
    wait_for("the autoscaler wrote", lambda: asked(cluster, namespace) == 2)
    wait_for_groups(cluster, namespace, 2)
    assert managers_of_replicas(scaler(cluster, namespace)) == {"kube-controller-manager"}
    found = wait_for("its conditions", lambda: conditions_of_hpa(cluster, namespace))
    assert found["AbleToScale"]["status"] == "True"
    assert found.get("ScalingActive", {}).get("reason") != "InvalidSelector"


def conditions_of_hpa(cluster: Cluster, namespace: str) -> dict[str, Any]:
    found = get(cluster, "hpa", "chat", "-n", namespace)
    return {item["type"]: item for item in found.get("status", {}).get("conditions", ())}


def test_a_changed_field_is_passed_on_and_a_deleted_scaler_comes_back(
    cluster: Cluster, namespace: str, operator: OperatorProcess
) -> None:
    apply(cluster, namespace, service(replicas=1))
    wait_for_groups(cluster, namespace, 1)
    cluster.kubectl("scale", "misvc/chat", "--replicas=4", "-n", namespace)
    wait_for_groups(cluster, namespace, 4)
    assert asked(cluster, namespace) == 4
    assert managers_of_replicas(scaler(cluster, namespace)) == {"mizzen-scaler"}
    cluster.kubectl("scale", "mirs/chat-worker", "--replicas=1", "-n", namespace)
    wait_for_groups(cluster, namespace, 1)
    assert get(cluster, "misvc", "chat", "-n", namespace)["spec"]["replicas"] == 4

    # With the live number, not with the seed.
    wait_for(
        "the status remembers",
        lambda: role_of(cluster, namespace, "worker").get("asked") == 1,
    )
    uid = scaler(cluster, namespace)["metadata"]["uid"]
    cluster.kubectl("delete", "mirs", "chat-worker", "-n", namespace)
    wait_for(
        "a new scaler",
        lambda: scaler(cluster, namespace).get("metadata", {}).get("uid", uid) != uid,
    )
    assert asked(cluster, namespace) == 1
    assert groups(cluster, namespace) == 1

    head, *rows = cluster.kubectl("get", "mirs", "-n", namespace).splitlines()
    columns = ["NAME", "SERVICE", "ROLE", "ASKED", "CURRENT", "READY", "GRANTED", "AGE"]
    assert head.split() == columns
    assert [row.split()[:4] for row in rows] == [
        ["chat-tokenizer", "chat", "tokenizer", "2"],
        ["chat-worker", "chat", "worker", "1"],
    ]
    cluster.kubectl("delete", "misvc", "chat", "-n", namespace)
    wait_for("nothing is left", lambda: get(cluster, "mirs", "-n", namespace) is None)


def test_row_14_writers_of_scale_and_status_lose_nothing(
    cluster: Cluster, namespace: str, operator: OperatorProcess
) -> None:
    apply(cluster, namespace, service(replicas=1))
    wait_for("a status", lambda: scaler(cluster, namespace).get("status"))
    path = (
        f"/apis/serving.mizzen.dev/v1alpha1/namespaces/{namespace}/inferencerolescalers"
        "/chat-worker/scale"
    )
    for turn in range(300):
        cluster.api.call("PATCH", path, {"spec": {"replicas": 1 + turn % 2}}, kind=MERGE_PATCH)
    wait_for(
        "the last number is carried out and told",
        lambda: groups(cluster, namespace) == 2 and is_current(scaler(cluster, namespace)),
    )
    assert asked(cluster, namespace) == 2
    (granted,) = scaler(cluster, namespace)["status"]["conditions"]
    assert (granted["type"], granted["status"]) == ("Granted", "True")
    for kind in ("Accepted", "ModelReady", "Placed", "Available", "Progressing", "Ready"):
        assert condition(cluster, namespace, "chat", kind), kind
    # The operator never wrote the number.
    writes = [
        event
        for event in cluster.audit_events()
        if event.user == USER
        and event.namespace == namespace
        and event.name == "chat-worker"
        and event.resource.startswith("inferencerolescalers")
    ]
    assert {event.resource for event in writes if event.verb != "create"} == {
        "inferencerolescalers/status"
    }


def test_a_role_takes_no_number_outside_its_bounds(
    cluster: Cluster, namespace: str, operator: OperatorProcess
) -> None:
    apply(cluster, namespace, service(replicas=1))
    wait_for("a scaler", lambda: scaler(cluster, namespace, "tokenizer"))
    cluster.kubectl("scale", "mirs/chat-tokenizer", "--replicas=0", "-n", namespace)

    def granted() -> str:
        status = scaler(cluster, namespace, "tokenizer").get("status") or {"conditions": []}
        return " ".join(item["reason"] for item in status["conditions"])

    wait_for("it says so", lambda: granted() == "OutOfBounds")
    found = get(cluster, "deployment", "chat-tokenizer", "-n", namespace)
    assert found["spec"]["replicas"] == 1
    text = cluster.kubectl("describe", "mirs", "chat-tokenizer", "-n", namespace)
    assert "spec.replicas: 0 is not from 1 to 100" in text
    with pytest.raises(Exception, match="999"):
        cluster.kubectl("scale", "mirs/chat-worker", "--replicas=1000", "-n", namespace)
