"""Fetched weights against a real API server and Job controller; the test plays the downloader.

No volume is made for the claims, so no kubelet ever gets a pod that fetches: its end is written
into its status by the test, and what follows is Kubernetes' own.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.devcluster.cluster import Cluster
from tests.e2e.operator_process import (
    OperatorProcess,
    account_kubeconfig,
    apply,
    condition,
    get,
    status_of,
)
from tests.e2e.waiting import wait_for
from tests.operator.planner.model_facts import LLAMA8B

from mizzen_operator.render import labels

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

COMMIT = "0123456789abcdef0123456789abcdef01234567"
DONE = {"reason": "Done", "message": "", "resolvedRevision": COMMIT, "bytes": 1024}


@pytest.fixture
def operator(installed: Cluster, tmp_path: Path) -> Iterator[OperatorProcess]:
    process = OperatorProcess(
        kubeconfig=account_kubeconfig(installed, tmp_path),
        log=tmp_path / "operator.log",
        settings={"RESYNC_SECONDS": "2"},
    )
    with process.running():
        yield process


def service(**cache: Any) -> dict[str, Any]:
    source = {"huggingFace": {"repository": "org/model"}}
    return {
        "apiVersion": "serving.mizzen.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": "chat"},
        "spec": {
            "topology": "Split",
            "replicas": 2,
            "model": {
                "source": source,
                "cache": {"size": "1Gi", "storageClassName": "nobody-makes", **cache},
            },
        },
    }


def found(cluster: Cluster, namespace: str, kinds: str) -> list[dict[str, Any]]:
    ours = ("-n", namespace, "-l", f"{labels.SERVICE}=chat,!controller.kubernetes.io/hash")
    listed = get(cluster, kinds, *ours) or {"items": []}
    items: list[dict[str, Any]] = listed["items"]
    return items


def uids(cluster: Cluster, namespace: str, kinds: str) -> set[str]:
    return {item["metadata"]["uid"] for item in found(cluster, namespace, kinds)}


def model_ready(cluster: Cluster, namespace: str, reason: str, said: str = "") -> bool:
    """Whether the condition has this reason now, and these words in its message."""
    now = condition(cluster, namespace, "chat", "ModelReady")
    return now.get("reason") == reason and said in now["message"]


def fetching_pod(cluster: Cluster, namespace: str) -> str:
    """Name of the one pod that has not ended."""
    pods = [
        item["metadata"]["name"]
        for item in found(cluster, namespace, "pods")
        if item["metadata"]["labels"].get(labels.ROLE) == labels.ROLE_WEIGHTS
        and item["status"]["phase"] == "Pending"
    ]
    return pods[0] if len(pods) == 1 else ""


def end_fetch(cluster: Cluster, namespace: str, code: int, **report: Any) -> None:
    """Write the end of the pod that fetches into its status, as its kubelet would."""
    pod = wait_for("a pod that fetches", lambda: fetching_pod(cluster, namespace))
    ended = {"exitCode": code, "reason": "Error", "message": json.dumps(report)}
    container = {
        "name": "mizzen",
        "image": "x",
        "imageID": "x",
        "ready": False,
        "restartCount": 0,
        "state": {"terminated": ended},
    }
    phase = "Failed" if code else "Succeeded"
    patch = {"status": {"phase": phase, "containerStatuses": [container]}}
    cluster.kubectl(
        *("patch", "pod", pod, "-n", namespace, "--subresource=status", "--type=merge"),
        f"--patch={json.dumps(patch)}",
    )


def test_row_57_weights_are_fetched_once_and_pods_wait_for_them(
    cluster: Cluster, namespace: str, operator: OperatorProcess
) -> None:
    apply(cluster, namespace, service())
    row_58 = "of storage class nobody-makes is Pending"
    wait_for("what waits", lambda: model_ready(cluster, namespace, "VolumePending", row_58))
    assert found(cluster, namespace, "statefulset,deployment") == []

    end_fetch(cluster, namespace, 1, reason="NotFound", message="org/model has no main.")
    said = "hf://org/model: org/model has no main; mend it and delete Job"
    wait_for("the end for good", lambda: model_ready(cluster, namespace, "NotFound", said))
    assert condition(cluster, namespace, "chat", "Degraded")["reason"] == "NotFound"
    assert condition(cluster, namespace, "chat", "Progressing")["reason"] == "WeightsNotReady"
    events = get(cluster, "events", "-n", namespace)["items"]
    assert "NotFound" in {item["reason"] for item in events}

    (failed,) = found(cluster, namespace, "job")
    cluster.kubectl("delete", "job", failed["metadata"]["name"], "-n", namespace)
    wait_for(
        "another Job of that name",
        lambda: uids(cluster, namespace, "job") - {failed["metadata"]["uid"]},
    )
    end_fetch(cluster, namespace, 0, **DONE)
    wait_for("both groups", lambda: len(found(cluster, namespace, "statefulset")) == 2)
    wait_for("tokenizers", lambda: len(found(cluster, namespace, "deployment")) == 1)
    (claim,) = found(cluster, namespace, "pvc")
    wait_for("it is told", lambda: model_ready(cluster, namespace, "Fetched"))
    assert status_of(cluster, namespace).get("resolvedModel") == {
        "source": "hf://org/model",
        "revision": COMMIT,
        "bytes": 1024,
        "claim": claim["metadata"]["name"],
        "retained": False,
    }
    (stored,) = found(cluster, namespace, "controllerrevision")
    assert COMMIT in stored["metadata"]["annotations"][labels.FETCHED]

    # A Job that has done its work may be deleted.
    (job,) = found(cluster, namespace, "job")
    cluster.kubectl("delete", "job", job["metadata"]["name"], "-n", namespace)
    wait_for_reconciles(operator, 1)
    assert found(cluster, namespace, "job") == []
    assert len(found(cluster, namespace, "statefulset")) == 2


def test_new_weights_are_fetched_beside_the_old_ones_and_a_claim_may_be_retained(
    cluster: Cluster, namespace: str, operator: OperatorProcess
) -> None:
    apply(cluster, namespace, service())
    end_fetch(cluster, namespace, 0, **DONE)
    wait_for("both groups", lambda: len(found(cluster, namespace, "statefulset")) == 2)
    wait_for("it is told", lambda: model_ready(cluster, namespace, "Fetched"))
    old = uids(cluster, namespace, "statefulset,deployment")
    (claim,) = found(cluster, namespace, "pvc")

    def owners() -> list[str]:
        now = get(cluster, "pvc", claim["metadata"]["name"], "-n", namespace)
        return [item["kind"] for item in now["metadata"].get("ownerReferences", ())]

    apply(cluster, namespace, service(retain=True))
    wait_for("it has no owner", lambda: owners() == [])
    apply(cluster, namespace, service())
    wait_for("it has one again", lambda: owners() == ["InferenceService"])
    assert uids(cluster, namespace, "statefulset,deployment") == old

    apply(cluster, namespace, service(refresh="2", retain=True))
    wait_for("another claim", lambda: len(found(cluster, namespace, "pvc")) == 2)
    wait_for("what waits", lambda: model_ready(cluster, namespace, "VolumePending"))
    assert uids(cluster, namespace, "statefulset,deployment") == old
    end_fetch(cluster, namespace, 0, **DONE)
    wait_for(
        "groups on the new claim",
        lambda: not uids(cluster, namespace, "statefulset") & old,
    )

    def retained() -> list[dict[str, Any]]:
        events = get(cluster, "events", "-n", namespace)["items"]
        return [item for item in events if item["reason"] == "WeightsRetained"]

    (event,) = wait_for("an Event tells of the former claim", retained)
    cluster.kubectl("delete", "misvc", "chat", "-n", namespace)
    wait_for("only what is retained is left", lambda: len(found(cluster, namespace, "pvc")) == 1)
    (kept,) = found(cluster, namespace, "pvc")
    assert kept["metadata"]["name"] in event["message"]


def test_what_does_not_fit_its_gpu_gets_no_pods_and_describe_shows_the_sum(
    cluster: Cluster, namespace: str, operator: OperatorProcess
) -> None:
    small = service()
    small["spec"] |= {
        "worker": {"gpu": {"countPerNode": 1, "class": "nvidia-l4"}},
        "engine": {"kvTokens": 131_072},
    }
    apply(cluster, namespace, small)
    end_fetch(cluster, namespace, 0, **DONE, facts=LLAMA8B)

    def is_told(kind: str, reason: str) -> bool:
        return condition(cluster, namespace, "chat", kind).get("reason") == reason

    wait_for("it is told", lambda: is_told("Fits", "InsufficientMemory"))
    wait_for("the service too", lambda: is_told("Ready", "InsufficientMemory"))
    assert found(cluster, namespace, "statefulset,deployment") == []
    told = " ".join(cluster.kubectl("describe", "misvc", "chat", "-n", namespace).split())
    assert "weights 14.96 GiB + CUDA 0.60 GiB + largest step 1.13 GiB" in told
    assert "> 20.24 GiB (0.9 of the 22.49 GiB of nvidia-l4)" in told
    assert "lower spec.engine.kvTokens to 16704" in told

    small["spec"]["engine"]["kvTokens"] = 16_704
    apply(cluster, namespace, small)
    wait_for("both groups", lambda: len(found(cluster, namespace, "statefulset")) == 2)
    wait_for("it fits", lambda: is_told("Fits", "EnoughMemory"))


def wait_for_reconciles(operator: OperatorProcess, number: int) -> None:
    name = "mizzen_operator_reconciles_total"
    enough = operator.metric(name) + number
    wait_for(f"{number} more reconciles", lambda: operator.metric(name) >= enough)
