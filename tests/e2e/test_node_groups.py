"""Groups of several pods with a real model: three pods with a rank each answer like one, are
restarted as a whole, and are scaled without cutting a stream.
"""

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from tests.devcluster.cluster import Cluster
from tests.devcluster.demo import install_operator
from tests.e2e.operator_process import apply, get
from tests.e2e.served import (
    apply_and_wait,
    ask,
    client_of,
    kill_processes,
    namespace_with_model,
    pods_of,
    sample_service,
    target_of,
    wait_until_ready,
)
from tests.e2e.spanning import check_texts, spanning_streams
from tests.e2e.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.model, pytest.mark.slow, pytest.mark.timeout(1800)]

WORKER = "serving.mizzen.dev/role=worker,serving.mizzen.dev/service=wide"
EPOCH = "serving.mizzen.dev/epoch"
NUM_NODES = 3
"""The model has 3 KV heads, so it can be divided by 3 only."""
NUM_STREAMS = 4
QUESTION = "What is the capital of France?"


def service(name: str, replicas: int, num_nodes: int) -> dict[str, Any]:
    worker = {
        "parallelism": {"tensor": num_nodes, "nodes": num_nodes},
        "resources": {
            "requests": {"cpu": "100m", "memory": "512Mi"},
            "limits": {"cpu": "1", "memory": "2Gi"},
        },
        "drain": {"timeoutSeconds": 60},
    }
    # Six pods on two cores that others use too: late is not lost.
    engine = {
        "contextLength": 4096,
        "startupDeadlineSeconds": 600,
        **({"args": ["--rank-heartbeat-limit=20"]} if num_nodes > 1 else {}),
    }
    return sample_service(
        name, replicas=replicas, engine=engine, tokenizer={"replicas": 1}, worker=worker
    )


@pytest.fixture(scope="module")
def namespace(cluster: Cluster) -> Iterator[str]:
    target = target_of(cluster)
    install_operator(target)
    with namespace_with_model(target, "node-groups") as name:
        apply(cluster, name, service("lone", 1, 1))
        apply_and_wait(cluster, name, service("wide", 1, NUM_NODES))
        yield name


@pytest.fixture
def client(cluster: Cluster, namespace: str) -> Iterator[openai.OpenAI]:
    with client_of(cluster, namespace, "wide", timeout_s=300) as opened:
        yield opened


def ready_epochs(cluster: Cluster, namespace: str) -> dict[str, str]:
    """The epoch of each worker pod by name; empty unless all are ready and none is ending."""
    pods = pods_of(cluster, namespace, WORKER)
    are_ready = all(
        "deletionTimestamp" not in pod["metadata"]
        and any(
            one["type"] == "Ready" and one["status"] == "True"
            for one in pod["status"].get("conditions", ())
        )
        for pod in pods
    )
    found = {pod["metadata"]["name"]: pod["metadata"]["annotations"][EPOCH] for pod in pods}
    return found if are_ready else {}


def test_row_18_three_pods_answer_like_one(
    cluster: Cluster, namespace: str, client: openai.OpenAI
) -> None:
    wait_until_ready(cluster, namespace, "lone")
    with client_of(cluster, namespace, "lone") as single:
        alone = ask(single, QUESTION)
    assert "Paris" in alone
    assert ask(client, QUESTION) == alone
    # Enough nodes are not there for all, but no node has all of them.
    pods = pods_of(cluster, namespace, WORKER)
    assert len({pod["spec"]["nodeName"] for pod in pods}) > 1
    leaders = get(cluster, "endpoints", "-n", namespace)["items"]
    (open_to_tokenizers,) = (
        item for item in leaders if item["metadata"]["name"].startswith("wide-leaders-")
    )
    (subset,) = open_to_tokenizers["subsets"]
    assert [one["targetRef"]["name"][-2:] for one in subset["addresses"]] == ["-0"]
    cluster.kubectl("delete", "misvc", "lone", "-n", namespace)


def lose_a_rank(cluster: Cluster, namespace: str, name: str) -> None:
    """Kill all processes of one pod; its group, and no other, comes back in the next epoch."""
    before = ready_epochs(cluster, namespace)
    after = {
        pod: str(int(epoch) + 1) if pod[:-2] == name[:-2] else epoch
        for pod, epoch in before.items()
    }
    (victim,) = (
        pod for pod in pods_of(cluster, namespace, WORKER) if pod["metadata"]["name"] == name
    )
    assert kill_processes(victim) > 0
    wait_for(
        "the whole group is in another epoch",
        lambda: ready_epochs(cluster, namespace) == after,
    )


def test_a_lost_rank_restarts_its_group_and_streams_wait_for_it(
    cluster: Cluster, namespace: str, client: openai.OpenAI
) -> None:
    follower = max(ready_epochs(cluster, namespace))
    with spanning_streams(client, NUM_STREAMS) as streams:
        lose_a_rank(cluster, namespace, follower)
    check_texts(client, streams[:1])


def test_with_two_groups_neither_a_lost_leader_nor_scaling_down_cuts_a_stream(
    cluster: Cluster, namespace: str, client: openai.OpenAI
) -> None:
    apply_and_wait(cluster, namespace, service("wide", 2, NUM_NODES))
    leader = min(ready_epochs(cluster, namespace))
    with spanning_streams(client, NUM_STREAMS) as streams:
        lose_a_rank(cluster, namespace, leader)
    check_texts(client, streams[:1])
    with spanning_streams(client, NUM_STREAMS) as streams:
        apply(cluster, namespace, service("wide", 1, NUM_NODES))
        wait_for(
            "one group is left",
            lambda: len(ready_epochs(cluster, namespace)) == NUM_NODES,
        )
    check_texts(client, streams[:1])
