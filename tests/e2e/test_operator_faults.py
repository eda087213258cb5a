"""The operator through a proxy that makes faults, against a real API server.

`docs/faults.md` tells which fault is shown where. LISTs come minutes apart here: what is seen in
time came by the watch.
"""

import base64
import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.devcluster.cluster import Cluster
from tests.e2e.fault_proxy import (
    Answer,
    ApiRequest,
    Cut,
    Delay,
    Fault,
    FaultProxy,
    Silence,
    always,
    first,
    share,
)
from tests.e2e.operator_process import (
    OperatorProcess,
    account_kubeconfig,
    apply,
    children,
    condition,
    get,
    service,
)
from tests.e2e.service_world import KINDS, is_world, wait_for_world, world
from tests.e2e.waiting import wait_for

from mizzen_operator.render import labels
from mizzen_operator.store import SERVICE_KIND, WATCHED_KINDS

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

SILENCE_S = 10
"""As short as the operator takes, so that a test need not wait for minutes."""


@pytest.fixture
def proxy(installed: Cluster) -> Iterator[FaultProxy]:
    document = yaml.safe_load(installed.kubeconfig.read_text())
    encoded = document["clusters"][0]["cluster"]["certificate-authority-data"]
    authority = base64.b64decode(encoded).decode()
    started = FaultProxy(api_port=installed.api_port, authority=authority)
    yield started
    started.close()


@pytest.fixture
def operator(installed: Cluster, proxy: FaultProxy, tmp_path: Path) -> Iterator[OperatorProcess]:
    """An operator behind the proxy, not started yet."""
    process = OperatorProcess(
        kubeconfig=account_kubeconfig(installed, tmp_path, server=proxy.address),
        log=tmp_path / "operator.log",
        settings={"WATCH_SILENCE_SECONDS": str(SILENCE_S)},
    )
    yield process
    process.end()


def is_watch(request: ApiRequest) -> bool:
    return request.is_watch


def is_told(cluster: Cluster, namespace: str) -> bool:
    """Whether the status says what is missing, the scheduler's word included: then all is still."""
    ready, placed = (condition(cluster, namespace, "chat", kind) for kind in ("Ready", "Placed"))
    reasons = (ready.get("reason"), placed.get("reason"))
    return reasons == ("ClaimNotFound", "Unschedulable")


def serve(cluster: Cluster, namespace: str) -> list[Any]:
    """Make a service and return its world when it is as it should be."""
    apply(cluster, namespace, service())
    wait_for("the status says what is missing", lambda: is_told(cluster, namespace))
    return world(cluster, namespace)


def edit_and_expect_repair(cluster: Cluster, namespace: str) -> None:
    """Show that the watch of Deployments brings what a hand did."""
    deployment = ("deployment", "chat-tokenizer", "-n", namespace)
    cluster.kubectl("scale", *deployment, "--replicas=9")
    wait_for(
        "the watch brings an edit",
        lambda: get(cluster, *deployment)["spec"]["replicas"] == 2,
    )


def silent_kinds(operator: OperatorProcess) -> set[str]:
    """Kinds whose watch /healthz calls silent."""
    status, text = operator.ask("/healthz")
    words = [line.split() for line in text.splitlines() if "has been silent" in line]
    return {line[3] for line in words} if status == 503 else set()


def wait_until_well(operator: OperatorProcess) -> None:
    wait_for("it is well", lambda: complaints(operator) == "ok\n")


def complaints(operator: OperatorProcess) -> str:
    return operator.ask("/healthz")[1]


# -- watches ----------------------------------------------------------------------------------


OF_FETCHED_WEIGHTS = ("PersistentVolumeClaim", "Job")
"""Kinds that a service with weights on a user's claim does not own."""


def test_row_12_every_owned_kind_is_watched(
    installed: Cluster, namespace: str, operator: OperatorProcess
) -> None:
    def live(path: str) -> dict[str, Any]:
        items = installed.api.call("GET", path)["items"]
        assert len(items) <= 1
        return items[0]["metadata"] if items else {"uid": "", "labels": {}}

    operator.start()
    operator.wait_until_synced()
    before = serve(installed, namespace)
    selector = "serving.mizzen.dev/service-uid,!controller.kubernetes.io/hash"
    for kind in KINDS:
        if kind.kind in OF_FETCHED_WEIGHTS:
            continue
        collection = kind.path(namespace=namespace)
        name = installed.api.call("GET", f"{collection}?labelSelector={selector}")["items"][0][
            "metadata"
        ]["name"]
        path = f"{collection}?labelSelector={selector}&fieldSelector=metadata.name={name}"
        patch = {"metadata": {"labels": {labels.MANAGED_BY: "somebody"}}}
        installed.kubectl(
            *("patch", str(kind), name, "-n", namespace, "--type=merge"),
            f"--patch={json.dumps(patch)}",
        )
        wait_for(
            f"an edited {kind} is put right",
            lambda path=path: live(path)["labels"].get(labels.MANAGED_BY) == labels.MANAGER,
        )
        uid = live(path)["uid"]
        installed.kubectl("delete", str(kind), name, "-n", namespace, "--wait=false")
        wait_for(
            f"a deleted {kind} is made again",
            lambda path=path, uid=uid: live(path)["uid"] not in ("", uid),
        )
    wait_for_world("all is as before", installed, namespace, before)
    assert operator.metric("mizzen_operator_store_repairs_total") == 0


def test_row_67_all_but_services_is_looked_at_by_label(
    installed: Cluster, namespace: str, operator: OperatorProcess, proxy: FaultProxy
) -> None:
    operator.start()
    operator.wait_until_synced()
    serve(installed, namespace)
    plurals = {kind.plural for kind in WATCHED_KINDS}
    listed = (request for request in proxy.requests if request.verb in ("list", "watch"))
    asked = [request for request in listed if request.resource]  # the rest is discovery
    assert {request.resource for request in asked if request.is_watch} == plurals
    # Leases are asked for by the one name that operators share.
    assert {request.resource for request in asked if not request.label_selector} == {
        SERVICE_KIND.plural,
        "leases",
    }
    assert "secrets" not in {request.resource for request in asked}


def test_row_68_a_silent_watch_is_noticed_although_lists_work(
    installed: Cluster, namespace: str, operator: OperatorProcess, proxy: FaultProxy
) -> None:
    """By default in less than two minutes; here the limit is shorter."""
    operator.start()
    operator.wait_until_synced()
    serve(installed, namespace)
    with proxy.fault(always(Silence(), lambda r: r.is_watch and r.resource == "pods")):
        wait_for("the silence of one is named", lambda: silent_kinds(operator) == {"pods"})
    wait_until_well(operator)
    with proxy.fault(always(Silence(), is_watch)):
        wait_for(
            "the silence of all is named",
            lambda: silent_kinds(operator) == {str(kind) for kind in WATCHED_KINDS},
        )
        assert operator.metric("mizzen_operator_watch_silence_seconds") > SILENCE_S
        proxy.requests.clear()
    wait_until_well(operator)
    # The same process, by new connections.
    edit_and_expect_repair(installed, namespace)
    assert operator.is_running
    assert operator.metric("mizzen_operator_store_repairs_total") == 0


def test_a_calm_cluster_is_not_silent(
    installed: Cluster, operator: OperatorProcess, proxy: FaultProxy
) -> None:
    def num_watches() -> int:
        """Of the kind that has begun the fewest so far."""
        begun = [request.resource for request in proxy.requests if request.is_watch]
        return min(begun.count(kind.plural) for kind in WATCHED_KINDS)

    def is_well() -> bool:
        assert operator.ask("/healthz") == (200, "ok\n")
        return num_watches() > 4

    # Longer than elsewhere: what is short for the operator is shorter still on a busy machine.
    operator.settings = {"WATCH_SILENCE_SECONDS": "20"}
    operator.start()
    operator.wait_until_synced()
    wait_for("the API server ended each watch again and again", is_well)
    assert "Traceback" not in operator.log.read_text()


def test_cut_connections_are_made_again_and_nothing_is_missed(
    installed: Cluster, namespace: str, operator: OperatorProcess, proxy: FaultProxy
) -> None:
    operator.start()
    operator.wait_until_synced()
    before = serve(installed, namespace)
    for _ in range(3):
        proxy.cut()
        edit_and_expect_repair(installed, namespace)
    with proxy.fault(first(20, Cut())):
        installed.kubectl("delete", "service/chat", "-n", namespace)
        wait_for("it is made again", lambda: "Service/chat" in children(installed, namespace))
    wait_for_world("all is as before", installed, namespace, before)
    assert operator.metric("mizzen_operator_store_repairs_total") == 0


# -- storms -----------------------------------------------------------------------------------


NUM_STRUCK = 6


@pytest.mark.parametrize(
    ("fault", "ratio"),
    [
        (Answer(status=409), 0.5),
        (Answer(status=429, retry_after_s=1), 0.2),
        (Answer(status=500), 0.2),
        (Delay(seconds=1), 0.2),
    ],
    ids=["conflict", "throttled", "failing", "slow"],
)
def test_a_storm_ends_in_the_same_world(
    installed: Cluster,
    namespace: str,
    operator: OperatorProcess,
    proxy: FaultProxy,
    fault: Fault,
    ratio: float,
) -> None:
    """A share of the requests is struck, the watch's and the Lease's too; by conflicts writes."""
    operator.start()
    operator.wait_until_synced()
    expected = serve(installed, namespace)
    other = f"{namespace}-other"
    installed.kubectl("create", "namespace", other)
    num_struck = 0

    def is_met(request: ApiRequest) -> bool:
        return request.is_write or fault != Answer(status=409)

    storm = share(fault, ratio, 7, is_met)

    def strike(request: ApiRequest) -> Fault | None:
        nonlocal num_struck
        found = storm(request)
        num_struck += found is not None
        return found

    with proxy.fault(strike):
        proxy.cut(is_watch)
        apply(installed, other, service())
        installed.kubectl("delete", "service/chat", "-n", namespace)
        wait_for("it is struck, and goes on asking", lambda: num_struck >= NUM_STRUCK)
    # A service that was struck often waits before its next try.
    for place in (namespace, other):
        wait_for_world("the same world", installed, place, expected)
    assert operator.is_running
    installed.kubectl("delete", "namespace", other, "--wait=false")


def test_when_nothing_answers_it_ends_before_another_may_write(
    installed: Cluster, namespace: str, operator: OperatorProcess, proxy: FaultProxy
) -> None:
    operator.start()
    operator.wait_until_synced()
    before = serve(installed, namespace)
    with proxy.fault(always(Silence())):
        installed.kubectl("delete", "service/chat", "-n", namespace)
        assert operator.wait() == 1
    assert "a write needs" in operator.log.read_text()
    operator.start()
    operator.wait_until_synced()
    wait_for_world("all is as before", installed, namespace, before)


def num_unanswered(operator: OperatorProcess) -> float:
    """Calls to which no answer came."""
    lines = operator.ask("/metrics")[1].splitlines()
    counts = (line for line in lines if line.startswith("mizzen_operator_api_calls_total"))
    return sum(float(line.rpartition(" ")[2]) for line in counts if 'status="0"' in line)


def test_a_restart_of_the_api_server_is_outlived(
    installed: Cluster, namespace: str, operator: OperatorProcess
) -> None:
    operator.start()
    operator.wait_until_synced()
    before = serve(installed, namespace)
    unanswered = num_unanswered(operator)
    installed.stop_api_server()
    try:
        wait_for("a call without an answer", lambda: num_unanswered(operator) > unanswered)
    finally:
        installed.start_api_server()
    edit_and_expect_repair(installed, namespace)
    wait_for_world("all is as before", installed, namespace, before)
    wait_for("it is well", lambda: operator.ask("/readyz")[0] == 200)
    assert operator.is_running


# -- death after each write -------------------------------------------------------------------

NUM_AT_ONCE = 8
"""Calls that one operator makes at a time: each is held in a namespace of its own."""


class WriteGates:
    """Lets the API server do so many writes in each namespace, then lets nothing through there.

    So one end of the process is, for each of these namespaces, its death right after that write:
    the answer is never seen.
    """

    def __init__(self, allowed: dict[str, int]) -> None:
        self._allowed = allowed
        self._num_done = dict.fromkeys(allowed, 0)

    def count(self, request: ApiRequest) -> Fault | None:
        if request.namespace in self._num_done:
            self._num_done[request.namespace] += 1
        return self.hold(request)

    def hold(self, request: ApiRequest) -> Fault | None:
        return Silence() if self.is_closed(request.namespace) else None

    def is_closed(self, namespace: str) -> bool:
        return namespace in self._allowed and self._num_done[namespace] >= self._allowed[namespace]


def test_death_after_any_write_ends_in_the_same_world(
    installed: Cluster, namespace: str, operator: OperatorProcess, proxy: FaultProxy
) -> None:
    operator.start()
    operator.wait_until_synced()
    num_writes = 0

    def count(request: ApiRequest) -> None:
        nonlocal num_writes
        num_writes += request.namespace == namespace

    with proxy.after_write(count):
        expected = serve(installed, namespace)
    assert num_writes > 10
    for start in range(1, num_writes + 1, NUM_AT_ONCE):
        allowed = {
            f"{namespace[:40]}-{number}": number
            for number in range(start, min(start + NUM_AT_ONCE, num_writes + 1))
        }
        for place in allowed:
            installed.kubectl("create", "namespace", place)
        gates = WriteGates(allowed)
        with proxy.fault(gates.hold), proxy.after_write(gates.count):
            for place in allowed:
                apply(installed, place, service())
            for place, number in allowed.items():
                # Statuses that follow each other fast are one write: the last may never come.
                is_there = partial(is_world, installed, place, expected)
                is_held = partial(gates.is_closed, place)
                wait_for(f"write {number}", lambda held=is_held, there=is_there: held() or there())
            operator.kill()
        operator.start()
        operator.wait_until_synced()
        for place, number in allowed.items():
            wait_for_world(f"the same after write {number}", installed, place, expected)
            installed.kubectl("delete", "namespace", place, "--wait=false")
    assert condition(installed, namespace, "chat", "Ready")["reason"] == "ClaimNotFound"
