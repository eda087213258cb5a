"""Nothing is cut: 50 streams through everything that happens to a fleet, on real workers."""

import time
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from tests.devcluster.cluster import Cluster
from tests.devcluster.demo import SYSTEM, chart_values, install_chart, install_operator
from tests.devcluster.demo_target import Target
from tests.e2e.operator_process import apply, get
from tests.e2e.served import (
    READY_S,
    apply_and_wait,
    client_of,
    kill_processes,
    namespace_with_model,
    pods_of,
    sample_service,
    target_of,
    wait_until_ready,
)
from tests.e2e.spanning import check_texts, ending_streams, spanning_streams
from tests.e2e.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(1800)]

LABELLED = "serving.mizzen.dev/service-uid"
WORKER = "serving.mizzen.dev/role=worker"
NUM_STREAMS = 50
NAME = "chat"
DRAIN_S = 1500
"""Long enough for the longest answer on a slow machine: at the deadline streams are cut."""


def fleet(replicas: int, **engine: object) -> dict[str, Any]:
    small = {"requests": {"cpu": "100m", "memory": "512Mi"}, "limits": {"memory": "2Gi"}}
    return sample_service(
        NAME,
        replicas=replicas,
        engine={"contextLength": 4096, "startupDeadlineSeconds": 600, **engine},
        tokenizer={"replicas": 1},
        worker={"resources": small, "drain": {"timeoutSeconds": DRAIN_S}},
    )


@pytest.fixture(scope="module")
def target(cluster: Cluster) -> Target:
    opened = target_of(cluster)
    install_operator(opened)
    return opened


@pytest.fixture(scope="module")
def namespace(cluster: Cluster, target: Target) -> Iterator[str]:
    with namespace_with_model(target, "zero-cut") as name:
        apply_and_wait(cluster, name, fleet(3))
        yield name


@pytest.fixture
def client(cluster: Cluster, namespace: str) -> Iterator[openai.OpenAI]:
    apply_and_wait(cluster, namespace, fleet(3))
    with client_of(cluster, namespace, NAME, timeout_s=300) as opened:
        yield opened


def workers(cluster: Cluster, namespace: str) -> dict[str, str]:
    """UID of each worker pod that is not leaving, by name."""
    found = pods_of(cluster, namespace, WORKER)
    staying = [pod["metadata"] for pod in found if "deletionTimestamp" not in pod["metadata"]]
    return {meta["name"]: meta["uid"] for meta in staying}


def all_ready(cluster: Cluster, namespace: str, number: int) -> bool:
    found = pods_of(cluster, namespace, WORKER)
    ready = [
        pod
        for pod in found
        if any(
            c["type"] == "Ready" and c["status"] == "True"
            for c in pod["status"].get("conditions", ())
        )
    ]
    return len(found) == len(ready) == number


def test_a_killed_worker_cuts_nothing(
    cluster: Cluster, namespace: str, client: openai.OpenAI
) -> None:
    victim = pods_of(cluster, namespace, WORKER)[0]
    with spanning_streams(client, NUM_STREAMS) as streams:
        assert kill_processes(victim) > 0
        time.sleep(1)
        wait_for("the fleet is whole", lambda: all_ready(cluster, namespace, 3))
    check_texts(client, streams[::5])


def test_row_36_an_evicted_worker_cuts_nothing(
    cluster: Cluster, namespace: str, client: openai.OpenAI
) -> None:
    before = workers(cluster, namespace)
    name = next(iter(before))
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction",
                "metadata": {"name": name, "namespace": namespace}}  # fmt: skip
    with spanning_streams(client, NUM_STREAMS) as streams:
        cluster.api.call("POST", f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", eviction)
        wait_for(
            "the pod is replaced",
            lambda: workers(cluster, namespace).get(name, before[name]) != before[name],
        )
        wait_for("the fleet is whole", lambda: all_ready(cluster, namespace, 3))
    check_texts(client, streams[::5])


def test_row_36_scaling_down_and_up_cuts_nothing(
    cluster: Cluster, namespace: str, client: openai.OpenAI
) -> None:
    with spanning_streams(client, NUM_STREAMS) as streams:
        apply(cluster, namespace, fleet(1))
        wait_for("one is left", lambda: all_ready(cluster, namespace, 1))
        apply(cluster, namespace, fleet(3))
        wait_for("three again", lambda: all_ready(cluster, namespace, 3))
    check_texts(client, streams[::5])


def wait_until_rolled(cluster: Cluster, namespace: str, before: set[str]) -> None:
    """Until every worker pod is another one than before, and the fleet is whole."""

    def is_rolled() -> bool:
        now = set(workers(cluster, namespace).values())
        return not now & before and all_ready(cluster, namespace, 3)

    wait_for("every worker is new", is_rolled, timeout_s=READY_S)


def test_row_32_a_roll_out_cuts_nothing(
    cluster: Cluster, namespace: str, client: openai.OpenAI
) -> None:
    before = set(workers(cluster, namespace).values())
    with spanning_streams(client, NUM_STREAMS) as streams:
        apply(cluster, namespace, fleet(3, contextLength=3072))
        wait_until_rolled(cluster, namespace, before)
    wait_until_ready(cluster, namespace, NAME)
    check_texts(client, streams[::5])


def test_row_32_a_roll_out_to_workers_that_cannot_go_on_with_streams_lets_them_end(
    cluster: Cluster, namespace: str, client: openai.OpenAI
) -> None:
    before = set(workers(cluster, namespace).values())
    with ending_streams(client, NUM_STREAMS, 200) as streams:
        apply(cluster, namespace, fleet(3, args=["--queue-ageing=60"]))
        wait_for("the roll has begun", lambda: set(workers(cluster, namespace).values()) != before)
    wait_until_rolled(cluster, namespace, before)
    wait_until_ready(cluster, namespace, NAME)
    check_texts(client, streams[::5])


def test_a_rotation_of_keys_lets_streams_end(
    cluster: Cluster, namespace: str, client: openai.OpenAI
) -> None:
    def secrets() -> set[str]:
        found = get(cluster, "secret", "-n", namespace, "-l", LABELLED)["items"]
        return {item["metadata"]["name"] for item in found}

    before, former = set(workers(cluster, namespace).values()), secrets()
    assert former == {f"{NAME}-curve"}
    rotated = fleet(3)
    rotated["spec"]["security"] = {"keyRotation": "2027-01-01"}
    with ending_streams(client, NUM_STREAMS, 200) as streams:
        apply(cluster, namespace, rotated)
        wait_for("the roll has begun", lambda: set(workers(cluster, namespace).values()) != before)
    wait_until_rolled(cluster, namespace, before)
    wait_until_ready(cluster, namespace, NAME)
    wait_for("the former keys are gone", lambda: not former & secrets())
    assert len(secrets()) == 1
    check_texts(client, streams[::5])


def test_row_1_an_operator_upgrade_moves_no_pod_and_cuts_nothing(
    cluster: Cluster, target: Target, namespace: str, client: openai.OpenAI
) -> None:
    selector = "app.kubernetes.io/name=mizzen-operator"

    def operators() -> dict[str, bool]:
        found = get(cluster, "pods", "-n", SYSTEM, "-l", selector)["items"]
        return {
            pod["metadata"]["uid"]: any(
                c["type"] == "Ready" and c["status"] == "True"
                for c in pod["status"].get("conditions", ())
            )
            for pod in found
        }

    before, pods = operators(), workers(cluster, namespace)
    with spanning_streams(client, NUM_STREAMS) as streams:
        install_chart(
            target.kubeconfig, {**chart_values(target), "podAnnotations": {"release": "next"}}
        )

        def is_replaced() -> bool:
            now = operators()
            return bool(now) and not set(now) & set(before) and all(now.values())

        wait_for("a new operator serves", is_replaced)
        time.sleep(5)
    assert workers(cluster, namespace) == pods
    check_texts(client, streams[::5])
