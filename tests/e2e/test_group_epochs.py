"""Groups of several pods on a real API server: restarted once, by what is there.

The operator's passes are made one by one, from LISTs, under the rights that the chart gives it.
"""

import asyncio
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from kubernetes import config as kubernetes_config
from kubernetes.client import Configuration
from tests.devcluster.cluster import Cluster
from tests.e2e.described import service
from tests.e2e.operator_process import account_kubeconfig, apply, condition, get
from tests.e2e.waiting import wait_for
from tests.e2e.without_kubelets import as_crashed, as_ready, cards, workers
from tests.operator.documents import DEFAULTS

from mizzen_operator.cluster.client import CallRecord
from mizzen_operator.cluster.edge import edge_of
from mizzen_operator.cluster.events import EventPoster
from mizzen_operator.cluster.real import KubernetesClient
from mizzen_operator.cluster.request import READ_VERBS
from mizzen_operator.cluster.resync import Resync, ResyncTiming, Scope, ServiceListener
from mizzen_operator.cluster.status_writer import MIN_INTERVAL_S
from mizzen_operator.errors import ConflictError
from mizzen_operator.reconcile import Reconciler
from mizzen_operator.render import labels
from mizzen_operator.store import CHILD_SELECTOR, LISTED_KINDS, Store

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]


def of_two_pods(**worker: Any) -> dict[str, Any]:
    parallelism = {"tensor": 2, "nodes": 2}
    return service(topology="Split", worker=cards(parallelism=parallelism, **worker))


class Passes:
    """An operator that works only when told to."""

    def __init__(self, kubeconfig: Path, namespace: str) -> None:
        configuration = Configuration()
        kubernetes_config.load_kube_config(
            config_file=str(kubeconfig), client_configuration=configuration, persist_config=False
        )
        self.writes: list[CallRecord] = []
        self.restarts: list[str] = []
        self.ahead = timedelta()
        """How far its clock is ahead of this machine's."""
        self.client = KubernetesClient(
            configuration, user_agent="mizzen-operator/test", fence=lambda: None, observer=self._see
        )
        self._store = Store()
        self._reconciler = Reconciler(
            edge_of(
                self.client,
                self._store,
                EventPoster(self.client, now=self._now, instance="test"),
                clock=time.monotonic,
                count_restart=self.restarts.append,
            ),
            DEFAULTS,
            now=self._now,
        )
        self._resync = Resync(
            self.client,
            self._store,
            scope=Scope(namespace=namespace, child_label_selector=CHILD_SELECTOR),
            listener=ServiceListener(changed=lambda uid: None, routine=lambda uid: None),
            clock=time.monotonic,
            timing=ResyncTiming(first_settle_s=0, settle_s=0),
        )

    def _now(self) -> datetime:
        return datetime.now(UTC) + self.ahead

    def _see(self, call: CallRecord) -> None:
        if call.verb not in READ_VERBS:
            self.writes.append(call)

    def read(self) -> None:
        """Bring the store up to date."""

        async def lists() -> None:
            for kind in LISTED_KINDS:
                await self._resync.repair(kind)

        asyncio.run(lists())

    def act(self) -> None:
        """One pass over what was read last."""
        (uid,) = self._store.service_uids()
        asyncio.run(self._reconciler.reconcile(uid))

    def look(self) -> None:
        """As the operator does it: again where a controller wrote between reading and acting."""

        def has_acted() -> bool:
            self.read()
            try:
                self.act()
            except ConflictError:
                return False
            return True

        wait_for("a pass that nothing comes between", has_acted)


def group(cluster: Cluster, namespace: str) -> dict[str, Any]:
    (found,) = get(cluster, "statefulset", "-n", namespace)["items"]
    return dict(found)


def uids(cluster: Cluster, namespace: str) -> set[str]:
    return {pod["metadata"]["uid"] for pod in workers(cluster, namespace)}


def epoch(cluster: Cluster, namespace: str) -> str:
    template = group(cluster, namespace)["spec"]["template"]
    return str(template["metadata"]["annotations"][labels.EPOCH])


def both_pods(cluster: Cluster, namespace: str, epoch: str) -> list[dict[str, Any]]:
    """Both pods of this epoch, once they are there."""

    def of_epoch() -> list[dict[str, Any]]:
        return [
            pod
            for pod in workers(cluster, namespace)
            if pod["metadata"]["annotations"][labels.EPOCH] == epoch
            and "deletionTimestamp" not in pod["metadata"]
        ]

    wait_for(f"two pods of epoch {epoch}", lambda: len(of_epoch()) == 2)
    return of_epoch()


def ready_pods(cluster: Cluster, namespace: str, epoch: str) -> dict[str, dict[str, Any]]:
    """Both pods, of this epoch, ready, and counted; by UID."""
    for pod in both_pods(cluster, namespace, epoch):
        as_ready(cluster, pod)
    wait_for(
        "both are counted",
        lambda: (group(cluster, namespace).get("status") or {}).get("readyReplicas") == 2,
    )
    return {pod["metadata"]["uid"]: pod for pod in both_pods(cluster, namespace, epoch)}


@pytest.fixture
def passes(installed: Cluster, namespace: str, tmp_path: Path) -> Iterator[Passes]:
    apply(installed, namespace, of_two_pods())
    made = Passes(account_kubeconfig(installed, tmp_path), namespace)
    yield made
    made.client.close()


def test_row_22_a_rank_replaced_while_the_operator_is_away_restarts_its_group_once(
    cluster: Cluster, namespace: str, passes: Passes
) -> None:
    passes.look()
    first = ready_pods(cluster, namespace, "0")
    passes.look()
    assert group(cluster, namespace)["metadata"]["annotations"][labels.FORMED]

    lost = next(iter(first.values()))["metadata"]["name"]
    cluster.kubectl("delete", "pod", lost, "-n", namespace, "--force", "--grace-period=0")
    wait_for(
        "its controller replaces the rank",
        lambda: len(set(first) ^ uids(cluster, namespace)) == 2,
    )
    between = ready_pods(cluster, namespace, "0")
    passes.look()
    assert epoch(cluster, namespace) == "1"
    assert passes.restarts == ["RankReplaced"]
    second = ready_pods(cluster, namespace, "1")
    assert not set(second) & (set(first) | set(between))
    passes.look()
    time.sleep(MIN_INTERVAL_S)  # sooner, a status that changed again is left for a later pass
    passes.look()
    passes.writes.clear()
    passes.look()
    assert passes.writes == []
    assert set(second) == uids(cluster, namespace)

    _a_pass_over_old_news_changes_nothing(cluster, namespace, passes, second)


def _a_pass_over_old_news_changes_nothing(
    cluster: Cluster, namespace: str, passes: Passes, pods: Mapping[str, dict[str, Any]]
) -> None:
    as_ready(cluster, next(iter(pods.values())), restarts=1)
    annotate = (
        "annotate",
        "statefulset",
        group(cluster, namespace)["metadata"]["name"],
        "-n",
        namespace,
    )
    # Else the second restart in a row would wait.
    cluster.kubectl(*annotate, f"{labels.RESTARTS}-")
    passes.read()
    cluster.kubectl(*annotate, "example.com/note=x")
    with pytest.raises(ConflictError):
        passes.act()
    assert epoch(cluster, namespace) == "1"
    assert set(pods) == uids(cluster, namespace)
    passes.look()
    assert epoch(cluster, namespace) == "2"
    assert passes.restarts == ["RankReplaced", "RankRestarted"]
    third = ready_pods(cluster, namespace, "2")
    assert not set(third) & set(pods)


def test_row_23_a_rank_that_is_an_hour_late_restarts_nothing(
    cluster: Cluster, namespace: str, passes: Passes
) -> None:
    passes.look()
    early, _late = both_pods(cluster, namespace, "0")
    as_ready(cluster, early)
    before = uids(cluster, namespace)
    for _ in range(3):
        passes.ahead += timedelta(minutes=20)
        passes.look()
    assert (epoch(cluster, namespace), passes.restarts) == ("0", [])
    ready_pods(cluster, namespace, "0")
    passes.look()
    assert group(cluster, namespace)["metadata"]["annotations"][labels.FORMED]
    assert uids(cluster, namespace) == before


def test_row_24_a_rank_that_always_crashes_is_restarted_ever_more_slowly_and_then_left(
    cluster: Cluster, namespace: str, passes: Passes
) -> None:
    restart = {"maxRestarts": 3, "backoffBaseSeconds": 600, "backoffMaxSeconds": 3600}
    apply(cluster, namespace, of_two_pods(restart=restart))

    def crash() -> None:
        pods = both_pods(cluster, namespace, epoch(cluster, namespace))
        as_crashed(cluster, pods[-1])
        passes.look()

    passes.look()
    ready_pods(cluster, namespace, "0")
    passes.look()
    crash()
    assert epoch(cluster, namespace) == "1"
    for number, wait_s in ((2, 600), (3, 1200)):
        crash()
        assert epoch(cluster, namespace) == str(number - 1), "it waits"
        passes.ahead += timedelta(seconds=wait_s)
        passes.look()
        assert epoch(cluster, namespace) == str(number)
    crash()
    passes.ahead += timedelta(days=1)

    def is_told() -> bool:
        """A status may follow the one before only after a while."""
        passes.look()
        degraded = condition(cluster, namespace, "chat", "Degraded")
        return (degraded.get("status"), degraded.get("reason")) == (
            "True",
            "RestartBudgetExhausted",
        )

    wait_for("it is told", is_told)
    assert epoch(cluster, namespace) == "3"
    assert passes.restarts == ["RankRestarted"] * 3
