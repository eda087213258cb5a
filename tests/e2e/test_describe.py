"""`kubectl describe` alone explains each failure, on a real API server in its own words."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.devcluster.cluster import Cluster
from tests.devcluster.fixtures import PROBE_IMAGE
from tests.e2e.described import (
    NAME,
    NO_NODE,
    NO_POD,
    as_kubelet,
    ghost_node,
    put_on,
    service,
    wait_until_refused,
    wait_until_told,
    weights,
    worker_pod,
)
from tests.e2e.operator_process import (
    OperatorProcess,
    account_kubeconfig,
    apply,
    get,
    status_of,
)
from tests.e2e.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

RUNNING = {"running": {"startedAt": "2026-01-01T00:00:00Z"}}


@pytest.fixture(scope="module", autouse=True)
def _operator(installed: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One operator for all; it LISTs too rarely to stand in for its watch."""
    folder = tmp_path_factory.mktemp("operator")
    process = OperatorProcess(
        kubeconfig=account_kubeconfig(installed, folder),
        log=folder / "operator.log",
        settings={"RESYNC_SECONDS": "300"},
    )
    with process.running():
        yield


# -- the spec ---------------------------------------------------------------------------------


def test_a_spec_that_cannot_work(cluster: Cluster, namespace: str) -> None:
    wrong = {"resources": {"requests": {"memory": "2Gi"}, "limits": {"memory": "1Gi"}}}
    apply(cluster, namespace, service(worker=wrong))
    wait_until_told(
        cluster,
        namespace,
        "Reason: InvalidSpec",
        "spec.worker.resources: memory request 2Gi is above its limit 1Gi",
        "Warning InvalidSpec",
    )


def test_a_name_that_is_taken(cluster: Cluster, namespace: str) -> None:
    cluster.kubectl("create", "service", "clusterip", NAME, "--tcp=1", "-n", namespace)
    apply(cluster, namespace, service())
    wait_until_told(
        cluster,
        namespace,
        "Reason: NameConflict",
        f"Service {NAME} exists in this namespace and does not belong to this service",
        "Warning NameConflict",
    )


def test_row_17_a_claim_that_is_missing(cluster: Cluster, namespace: str) -> None:
    apply(cluster, namespace, service())
    wait_until_told(
        cluster,
        namespace,
        "Type: ResolvedRefs",
        "Reason: ClaimNotFound",
        f"claim weights does not exist in namespace {namespace}; create it or correct the name",
        "Warning ClaimNotFound",
        # The scheduler's own words beside it.
        'persistentvolumeclaim "weights" not found',
    )


# -- the namespace ----------------------------------------------------------------------------


def test_a_limit_range(cluster: Cluster, namespace: str) -> None:
    limits = [{"type": "Container", "max": {"cpu": "2"}}]
    apply(cluster, namespace, policy("LimitRange", limits=limits))
    apply(cluster, namespace, service(worker={"resources": {"limits": {"cpu": "4"}}}))
    wait_until_told(
        cluster,
        namespace,
        "Reason: InvalidPodTemplate",
        "spec.worker.resources (cpu): the API server refuses",
        "maximum cpu usage per Container is 2, but limit is 4",
        "Warning InvalidPodTemplate",
    )


@pytest.mark.parametrize("when", ["before", "after"])
def test_row_16_a_quota_that_is_full(cluster: Cluster, namespace: str, when: str) -> None:
    if when == "after":
        apply(cluster, namespace, service(topology="Split", tokenizer={"replicas": 1}))
        worker_pod(cluster, namespace)
    apply(cluster, namespace, NO_POD)
    wait_for(
        "the quota is counted",
        lambda: (get(cluster, "quota", "full", "-n", namespace).get("status") or {}).get("hard"),
    )
    if when == "after":
        cluster.kubectl("delete", "pods", "--all", "--now", "-n", namespace)
    else:
        apply(cluster, namespace, service(topology="Split", tokenizer={"replicas": 1}))
    wait_until_told(
        cluster,
        namespace,
        "Reason: QuotaPending",
        "exceeded quota: full, requested: pods=1",
        "pods are made as soon as there is room",
        "State: Pending",
        "Warning QuotaPending",
    )
    assert get(cluster, "deployment", "chat-tokenizer", "-n", namespace)


def test_row_16_a_policy_that_came_after_the_pods(cluster: Cluster, namespace: str) -> None:
    apply(cluster, namespace, service())
    pod = worker_pod(cluster, namespace)
    with admission_policy(cluster, namespace):
        wait_until_refused(cluster, namespace, "no pods on Mondays")
        cluster.kubectl("delete", "pod", pod, "--now", "-n", namespace)
        wait_until_told(
            cluster,
            namespace,
            "Reason: PodsRefused",
            "no pods on Mondays",
            "pods are made as soon as they are let in",
            "Warning PodsRefused",
            # The spec is not to blame.
            "Reason: Valid",
        )
    worker_pod(cluster, namespace)
    text = wait_until_told(cluster, namespace, "Reason: Unschedulable")
    assert "Reason: PodsRefused Status: False" not in text


def test_row_16_a_webhook_that_does_not_answer(cluster: Cluster, namespace: str) -> None:
    apply(cluster, namespace, service())
    pod = worker_pod(cluster, namespace)
    with webhook(cluster, namespace):
        wait_until_refused(cluster, namespace, "failed calling webhook")
        cluster.kubectl("delete", "pod", pod, "--now", "-n", namespace)
        wait_until_told(
            cluster,
            namespace,
            "Reason: PodsRefused",
            'failed calling webhook "pods.example.com"',
            "connection refused",
        )
    worker_pod(cluster, namespace)


# -- the nodes --------------------------------------------------------------------------------


def test_row_16_no_node_for_a_pod(cluster: Cluster, namespace: str) -> None:
    with weights(cluster, namespace):
        apply(cluster, namespace, service(worker=NO_NODE))
        wait_until_told(
            cluster,
            namespace,
            "Reason: Unschedulable",
            "Insufficient example.com/none",
            "State: Pending",
            "Unschedulable: 1",
            "Warning Unschedulable",
        )


def test_row_16_an_image_that_cannot_be_pulled(cluster: Cluster, namespace: str) -> None:
    with weights(cluster, namespace):
        apply(cluster, namespace, service(engine={"images": {"worker": "example.invalid/no:1"}}))
        wait_until_told(
            cluster,
            namespace,
            "Reason: ImagePullBackOff",
            "example.invalid/no:1",
            "State: Failed",
            "Warning ImagePullBackOff",
        )


def test_row_16_a_container_that_ends_again_and_again(
    cluster: Cluster, namespace: str, probe_archive: Path
) -> None:
    """The image of the probe has no program `mizzen`."""
    cluster.import_image(probe_archive)
    with weights(cluster, namespace):
        apply(cluster, namespace, service(engine={"images": {"worker": PROBE_IMAGE}}))
        wait_until_told(
            cluster,
            namespace,
            "Reason: CrashLoopBackOff",
            "last end: StartError, exit code 128",
            'exec: "mizzen": executable file not found',
            "State: Failed",
            "Degraded is True: ",
        )


def test_row_16_and_17_what_a_kubelet_says(cluster: Cluster, namespace: str) -> None:
    def waits(reason: str, message: str = "") -> dict[str, Any]:
        return {"waiting": {"reason": reason, "message": message}}

    def told(*words: str) -> None:
        wait_until_told(cluster, namespace, *words)

    with weights(cluster, namespace), ghost_node(cluster, namespace) as node:
        apply(cluster, namespace, service(worker=NO_NODE))
        pod = worker_pod(cluster, namespace)
        put_on(cluster, namespace, pod, node)
        as_kubelet(cluster, namespace, pod, waits("ContainerCreating"))
        told("State: Forming", "Reason: ContainerCreating", f"Leader: {pod}", "Reason: Scheduled")
        missing = waits("CreateContainerConfigError", 'secret "hub-token" not found')
        as_kubelet(cluster, namespace, pod, missing)
        told("Reason: SecretMissing", f'{pod}: secret "hub-token" not found', "State: Failed",
             "Warning SecretMissing")  # fmt: skip
        as_kubelet(cluster, namespace, pod, RUNNING)
        told("Reason: StartupProbe", f"starting: {pod} waits for its startup probe")
        as_kubelet(cluster, namespace, pod, RUNNING, started=True)
        told("Reason: ReadinessProbe", f"starting: {pod} waits for its readiness probe")
        as_kubelet(cluster, namespace, pod, RUNNING, started=True, ready=True)
        told("State: Ready", "Ready: 1/1", "Normal Ready")


def test_row_10_a_bad_image_beside_groups_that_serve(cluster: Cluster, namespace: str) -> None:
    slow = {**NO_NODE, "rollout": {"maxSurge": 1, "maxUnavailable": 0}}
    with weights(cluster, namespace), ghost_node(cluster, namespace) as node:
        apply(cluster, namespace, service(worker=slow))
        old = worker_pod(cluster, namespace)
        put_on(cluster, namespace, old, node)
        as_kubelet(cluster, namespace, old, RUNNING, started=True, ready=True)
        wait_until_told(cluster, namespace, "1 of 1 groups are ready", "Reason: Complete")
        bad = {"images": {"worker": "example.invalid/no:1"}}
        apply(cluster, namespace, service(worker=slow, engine=bad))
        new = worker_pod(cluster, namespace, number=2)
        put_on(cluster, namespace, new, node)
        message = 'failed to pull image "example.invalid/no:1"'
        waiting = {"waiting": {"reason": "ErrImagePull", "message": message}}
        as_kubelet(cluster, namespace, new, waiting)
        wait_until_told(
            cluster,
            namespace,
            f"{new} ImagePullBackOff: {message}",
            "Updated: 0/1",
            "0 of 1 groups are ready at revision",
            "Reason: Serving",
            "Reason: RollingOut",
            "State: Failed",
            "State: Ready",
        )


def test_row_15_a_service_that_was_stopped(cluster: Cluster, namespace: str) -> None:
    with weights(cluster, namespace), ghost_node(cluster, namespace) as node:
        apply(cluster, namespace, service(worker=NO_NODE))
        pod = worker_pod(cluster, namespace)
        put_on(cluster, namespace, pod, node)
        as_kubelet(cluster, namespace, pod, RUNNING, started=True, ready=True)
        wait_until_told(cluster, namespace, "1 of 1 groups are ready")
        apply(cluster, namespace, service(worker=NO_NODE, stopped=True))
        wait_until_told(
            cluster, namespace, "Reason: Stopped", "spec.stopped is true", "State: Draining"
        )
        cluster.kubectl("delete", "pod", pod, "--force", "-n", namespace)
        text = wait_until_told(cluster, namespace, "nothing is left to do: spec.stopped is true")
        assert "State: " not in text


# -- columns ----------------------------------------------------------------------------------


def test_get_shows_roles_and_revision(cluster: Cluster, namespace: str) -> None:
    apply(cluster, namespace, service(topology="Split", tokenizer={"replicas": 1}))
    revision = wait_for(
        "a revision",
        lambda: status_of(cluster, namespace, NAME).get("updateRevision"),
    )
    head, row = cluster.kubectl("get", "misvc", "-n", namespace).strip().splitlines()
    assert head.split() == [
        "NAME", "MODEL", "AVAILABLE", "READY", "REASON", "TOPOLOGY", "WORKERS", "TOKENIZERS",
        "REVISION", "AGE",
    ]  # fmt: skip
    assert row.split()[:9] == [
        NAME, NAME, "False", "False", "ClaimNotFound", "Split", "0/1", "0/1", revision,
    ]  # fmt: skip


# -- what refuses pods ------------------------------------------------------------------------


def policy(kind: str, **spec: Any) -> dict[str, Any]:
    return {"apiVersion": "v1", "kind": kind, "metadata": {"name": "small"}, "spec": spec}


def pods_of(namespace: str) -> dict[str, Any]:
    """New pods of a namespace, as admission rules name them."""
    rule = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["CREATE"],
        "resources": ["pods"],
    }
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    return {"rule": rule, "selector": selector}


@contextmanager
def admission_policy(cluster: Cluster, namespace: str) -> Iterator[None]:
    """The API server refuses every pod of the namespace."""
    api, meta = "admissionregistration.k8s.io/v1", {"name": namespace}
    pods = pods_of(namespace)
    rule = {
        "apiVersion": api,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": meta,
        "spec": {
            "matchConstraints": {"resourceRules": [pods["rule"]]},
            "validations": [{"expression": "false", "message": "no pods on Mondays"}],
        },
    }
    binding = {
        "apiVersion": api,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": meta,
        "spec": {
            "policyName": namespace,
            "validationActions": ["Deny"],
            "matchResources": {"namespaceSelector": pods["selector"]},
        },
    }
    apply(cluster, namespace, rule)
    apply(cluster, namespace, binding)
    try:
        yield
    finally:
        kinds = "validatingadmissionpolicybinding,validatingadmissionpolicy"
        cluster.kubectl("delete", kinds, namespace)


@contextmanager
def webhook(cluster: Cluster, namespace: str) -> Iterator[None]:
    """Nobody answers for the pods of the namespace."""
    pods = pods_of(namespace)
    hook = {
        "name": "pods.example.com",
        "clientConfig": {"url": "https://127.0.0.1:1/pods"},
        "rules": [pods["rule"]],
        "namespaceSelector": pods["selector"],
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 1,
    }
    made = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": namespace},
        "webhooks": [hook],
    }
    apply(cluster, namespace, made)
    try:
        yield
    finally:
        cluster.kubectl("delete", "validatingwebhookconfiguration", namespace)
