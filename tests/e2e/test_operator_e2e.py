"""The whole path: chart, our images, a real model; apply, chat, roll, die, delete."""

import time
from collections.abc import Iterator
from dataclasses import dataclass

import openai
import pytest
from helm_python import Config
from tests.devcluster.cluster import Cluster
from tests.devcluster.demo import RELEASE, SYSTEM, install_operator
from tests.devcluster.demo_target import Target
from tests.e2e.connections import (
    Connection,
    Rule,
    is_allowed,
    is_let_by,
    machine_addresses,
    rules_of,
    seen_connections,
)
from tests.e2e.operator_process import USER, apply, get, operator_writes
from tests.e2e.served import (
    MODEL,
    StreamingClients,
    apply_and_wait,
    ask,
    client_of,
    kill_processes,
    namespace_with_model,
    pods_of,
    sample_service,
    stream,
    target_of,
    wait_until_ready,
)
from tests.e2e.waiting import wait_for

from mizzen_operator.worker_contract import PORT_ADMIN

pytestmark = [pytest.mark.cluster, pytest.mark.model, pytest.mark.timeout(900)]

WORKER = "serving.mizzen.dev/role=worker"
PORT_DNS = 53
OWNED = "all,serviceaccount,networkpolicy,pdb,secret,endpointslice"


@pytest.fixture(scope="module")
def target(cluster: Cluster) -> Target:
    """The operator as a pod, installed by Helm."""
    opened = target_of(cluster)
    install_operator(opened)
    return opened


@dataclass
class Served:
    """A service of topology Split that is Ready."""

    namespace: str
    client: openai.OpenAI
    ready_s: float
    before: frozenset[Connection]
    """Known to the kernel from earlier pods, whose addresses may be given again."""


@pytest.fixture(scope="module")
def served(cluster: Cluster, target: Target) -> Iterator[Served]:
    with namespace_with_model(target, "served") as namespace:
        before = seen_connections(cluster)
        ready_s = apply_and_wait(cluster, namespace, sample_service("chat"))
        with client_of(cluster, namespace, "chat") as client:
            yield Served(namespace=namespace, client=client, ready_s=ready_s, before=before)


def test_row_18_apply_leads_to_an_answer(served: Served) -> None:
    began_s = time.monotonic()
    pieces: list[str] = []
    for piece in stream(served.client, "What is the capital of France?"):
        if not pieces:
            print(f"\napply to Ready {served.ready_s:.1f} s, then first token "
                  f"{time.monotonic() - began_s:.2f} s")  # fmt: skip
        pieces.append(piece)
    assert len(pieces) > 1
    assert "Paris" in "".join(pieces)
    assert ask(served.client, "What is the capital of France?") == "".join(pieces)
    assert [model.id for model in served.client.models.list()] == [MODEL]


def test_row_65_the_connections_of_a_run_are_those_that_policies_let(
    cluster: Cluster, served: Served
) -> None:
    """What no policy lets, an enforcer would cut; what none uses, nobody needs."""
    policies = get(cluster, "networkpolicy", "-n", served.namespace)["items"]
    found = get(cluster, "pods", "-n", served.namespace)["items"]
    pods = {pod["status"]["podIP"]: pod["metadata"]["labels"] for pod in found}
    machine = machine_addresses(cluster)
    seen: set[Connection] = set()

    def is_of_the_run(one: Connection) -> bool:
        ends = {one.source, one.target}
        is_probe = one.source in machine and one.port == PORT_ADMIN
        return bool(ends & pods.keys()) and not is_probe

    def unused() -> set[Rule]:
        ask(served.client, "Say hello.", max_tokens=4)
        seen.update(filter(is_of_the_run, seen_connections(cluster)))
        rules = rules_of(policies)
        return {r for r, only in rules if not any(is_let_by(r, only, one, pods) for one in seen)}

    # Workers look nobody up, and no answer of the cell's DNS is so long that it needs TCP.
    spare = {
        Rule("chat-worker", "Egress", "UDP", PORT_DNS),
        Rule("chat-worker", "Egress", "TCP", PORT_DNS),
        Rule("chat-tokenizer", "Egress", "TCP", PORT_DNS),
    }
    wait_for("each rule but these is used", lambda: unused() <= spare)
    of_the_run = sorted(seen - served.before)
    assert [one for one in of_the_run if not is_allowed(policies, one, pods)] == []
    print("\n" + "\n".join(map(str, sorted(seen))))


def test_row_63_the_operator_pod_is_restricted_and_has_no_right_that_it_lacked(
    cluster: Cluster, served: Served
) -> None:
    # In namespaces that other tests are ending, every creation is refused with 403.
    ours = {served.namespace, SYSTEM, ""}
    written = [e for e in cluster.audit_events() if e.user == USER and e.namespace in ours]
    assert written
    assert [event for event in written if event.status == 403] == []


def test_helm_test_finds_a_sound_installation(target: Target) -> None:
    with Config(kubeconfig_path=target.kubeconfig, namespace=SYSTEM) as helm:
        found = helm.test(RELEASE, timeout=120, logs=True)
    assert "the definitions are those of this release" in found["logs"]
    assert "the operator is ready" in found["logs"]


def test_at_rest_the_operator_writes_nothing(cluster: Cluster, served: Served) -> None:
    wait_until_ready(cluster, served.namespace, "chat")
    before = operator_writes(cluster, served.namespace)
    for _ in range(5):
        ask(served.client, "Say hello.", max_tokens=4)
        time.sleep(1)
    assert operator_writes(cluster, served.namespace) == before


def test_a_spec_change_rolls_although_the_operator_is_killed_in_the_middle(
    cluster: Cluster, served: Served
) -> None:
    old = {pod["metadata"]["uid"] for pod in pods_of(cluster, served.namespace, WORKER)}
    (operator,) = pods_of(cluster, SYSTEM, "app.kubernetes.io/name=mizzen-operator")
    apply(cluster, served.namespace, sample_service("chat", engine={"contextLength": 2048}))
    wait_for(
        "the roll has begun",
        lambda: old != {p["metadata"]["uid"] for p in pods_of(cluster, served.namespace, WORKER)},
    )
    assert kill_processes(operator) > 0
    wait_until_ready(cluster, served.namespace, "chat")
    new = {pod["metadata"]["uid"] for pod in pods_of(cluster, served.namespace, WORKER)}
    assert new
    assert not new & old
    # The open connection may lead to the old tokenizer pod, which says 503, retry, and closes it.
    retrying = served.client.with_options(max_retries=2)
    assert "Paris" in ask(retrying, "What is the capital of France?")


def test_a_killed_worker_heals_and_no_stream_ends_without_a_word(
    cluster: Cluster, served: Served
) -> None:
    (worker,) = pods_of(cluster, served.namespace, WORKER)
    with StreamingClients(client=served.client, number=4) as clients:
        wait_for("streams flow", lambda: len(clients.answers) >= 4 and clients.num_open >= 2)
        killed_s = time.monotonic()
        assert kill_processes(worker) > 0

        def is_healed() -> bool:
            (pod,) = pods_of(cluster, served.namespace, WORKER)
            status = pod["status"]["containerStatuses"][0]
            return bool(status["restartCount"] > 0 and status["ready"])

        wait_for("the pod restarts", is_healed)
        seen = len(clients.answers)
        wait_for("answers come again", lambda: len(clients.answers) >= seen + 4)
    after = [at_s for at_s, _ in clients.answers if at_s > killed_s + 1]
    print(
        f"\noutage {min(after) - killed_s:.1f} s; {len(clients.answers)} whole answers,"
        f" {len(clients.typed_errors)} typed errors"
    )
    assert clients.breaches == []
    untyped = [text for _, text in clients.typed_errors if '"code"' not in text]
    assert untyped == []
    by_client: dict[str, set[str]] = {}
    for _, text in clients.answers:
        index, _, answer = text.partition(": ")
        by_client.setdefault(index, set()).add(answer)
    assert all(len(answers) == 1 for answers in by_client.values()), "greedy answers differ"
    wait_until_ready(cluster, served.namespace, "chat")


def test_unified_serves_and_its_deletion_leaves_nothing(cluster: Cluster, target: Target) -> None:
    with namespace_with_model(target, "unified") as namespace:
        service = sample_service("solo", topology="Unified")
        del service["spec"]["tokenizer"]
        apply_and_wait(cluster, namespace, service)
        with client_of(cluster, namespace, "solo") as client:
            assert "Paris" in ask(client, "What is the capital of France?")
        cluster.kubectl("delete", "misvc", "solo", "-n", namespace)

        def is_empty() -> bool:
            found = get(cluster, OWNED, "-n", namespace)["items"]
            mine = [item for item in found if item["metadata"]["name"].startswith("solo")]
            return mine == []

        wait_for("everything is gone", is_empty)
