"""A fleet of services on a real API server with fake nodes: time, memory, CPU, writes, latency.

    PYTHONPATH=.:operator:worker python -m tests.bench.bench_fleet [--services 500 --owned 10000
        --foreign 20000] [--rest-seconds 120] [--churn-seconds 60] [--json FILE]

The operator is a process of this machine under the account that the chart gives it. Nothing is
asserted but that the fleet becomes Ready. Prints a table with budgets and the machine's load.
"""

import argparse
import os
import random
import re
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tests.bench.fleet_load import Churn, Fleet, FleetSize, KeptOpen, Rates, SizeError
from tests.bench.report import Row, publish
from tests.devcluster.api import MERGE_PATCH
from tests.devcluster.cluster import Cluster
from tests.devcluster.config import ClusterConfig
from tests.e2e.operator_process import USER, OperatorProcess, account_kubeconfig, install
from tests.e2e.waiting import wait_for

from mizzen_operator.render.labels import MANAGED_BY, SERVICE_UID
from mizzen_operator.store import ResourceKind, kind_named

NAME = "fleet"
SEED = 20261130
CHURN = Rates(foreign_per_s=10.0, owned_per_s=2.0)
READY_TIMEOUT_S = 2400.0
NODE_GRACE_S = 300
"""Two cores for a fleet: its nodes may be heard of late."""
RESYNC_SHARE = 0.8
"""Of the time at rest: at least one LIST of every kind falls into it."""
STATEFUL_SET = kind_named("apps/v1", "StatefulSet")
DEPLOYMENT = kind_named("apps/v1", "Deployment")
PROBED = kind_named("policy/v1", "PodDisruptionBudget")
RECONCILES = "mizzen_operator_reconciles_total"
WATCH_EVENTS = "mizzen_operator_watch_events_total"
KEYS = "secrets"
"""They cannot be read: each start finds its own by a POST that is refused and an empty patch."""
REST_WRITES = "rest: writes to the API server"
START_WRITES = "start: writes to the API server but for Secrets"
REPAIRS = "mizzen_operator_store_repairs_total"


@dataclass(frozen=True, slots=True, kw_only=True)
class Use:
    """What a process has used at one moment."""

    at_s: float
    cpu_s: float
    rss_mib: float
    peak_mib: float


def use_of(pid: int) -> Use:
    """Read it from /proc."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    status = Path(f"/proc/{pid}/status").read_text()
    kib = {key: int(text) for key, text in re.findall(r"^(VmRSS|VmHWM):\s+(\d+)", status, re.M)}
    ticks = int(fields[11]) + int(fields[12])
    return Use(
        at_s=time.monotonic(),
        cpu_s=ticks / os.sysconf("SC_CLK_TCK"),
        rss_mib=kib["VmRSS"] / 1024,
        peak_mib=kib["VmHWM"] / 1024,
    )


def cores(before: Use, after: Use) -> float:
    return (after.cpu_s - before.cpu_s) / (after.at_s - before.at_s)


def buckets_of(exposition: str, name: str) -> dict[float, float]:
    """Cumulative counts of a histogram by upper bound, summed over labels."""
    counts: dict[float, float] = {}
    for bound, count in re.findall(rf'^{name}_bucket{{.*le="([^"]+)".*}} (\S+)$', exposition, re.M):
        counts[float(bound)] = counts.get(float(bound), 0.0) + float(count)
    return counts


def bound_of_quantile(
    before: Mapping[float, float], after: Mapping[float, float], quantile: float
) -> float:
    """The least bucket bound below which this share of what came between lies; 0 for nothing."""
    counts = {bound: count - before.get(bound, 0.0) for bound, count in sorted(after.items())}
    total = max(counts.values(), default=0.0)
    return next(
        (bound for bound, count in counts.items() if total and count >= quantile * total), 0
    )


class FleetRun:
    """The steps of one measurement, in order; each returns its rows."""

    def __init__(
        self,
        cluster: Cluster,
        size: FleetSize,
        folder: Path,
        *,
        resync_s: float,
        calm_s: float = 5.0,
    ) -> None:
        """Installs the chart.

        `resync_s` is the time between two LISTs of a kind; after `calm_s` without news everything
        has arrived.
        """
        self.api = KeptOpen(cluster)
        self.fleet = Fleet(cluster, self.api, size)
        self._cluster = cluster
        self._size = size
        self._resync_s, self._calm_s = resync_s, calm_s
        self._began_s = time.monotonic()
        install(cluster, {"replicas": 0})
        cluster.kubectl(
            "wait", "--for=condition=Established", "crd/inferenceservices.serving.mizzen.dev"
        )
        self.operator = OperatorProcess(
            kubeconfig=account_kubeconfig(cluster, folder),
            log=folder / "operator.log",
            settings={"RESYNC_SECONDS": str(resync_s)},
        )

    def say(self, text: str) -> None:
        print(f"{time.monotonic() - self._began_s:7.1f} s  {text}", flush=True)

    def end(self) -> None:
        self.operator.end()
        self.api.close()

    def prepare(self) -> list[Row]:
        """Nodes and foreign pods, then an operator that has nothing to do."""
        self.fleet.lay_ground()
        self.say("nodes and namespaces are there")
        self.fleet.make_foreign(self._size.foreign)
        self.say(f"{self._size.foreign} foreign pods are there")
        self.operator.start()
        self.operator.wait_until_synced()
        return [row("RSS without services", self.use().rss_mib, "MiB")]

    def create(self) -> list[Row]:
        """All services at once, until every one is Ready."""
        began = self.use()
        self.fleet.make_services()
        posted_s = time.monotonic() - began.at_s
        wait_for("all objects are there", self._has_objects, timeout_s=READY_TIMEOUT_S)
        objects_s = time.monotonic() - began.at_s
        self.say(f"all objects of {self._size.services} services are there")
        wait_for("every service is Ready", self._all_ready, timeout_s=READY_TIMEOUT_S)
        after = self.use()
        self.say("every service is Ready")
        return [
            row("create: the API server takes the services", posted_s, "s"),
            row("create: all their objects are there", objects_s, "s"),
            row("create: all are Ready", after.at_s - began.at_s, "s"),
            row("create: CPU of the operator", after.cpu_s - began.cpu_s, "s"),
        ]

    def rest(self, seconds: float) -> list[Row]:
        """Nothing happens; LISTs go on."""
        self.settle()
        writes, before = self.num_writes(), self.use()
        bursts_s = self._watch_bursts(seconds)
        after, list_s = self.use(), self.operator.metric("mizzen_operator_list_seconds")
        self.say("rested")
        return [
            row("rest: RSS", after.rss_mib, "MiB", "400"),
            row("rest: peak of RSS so far", after.peak_mib, "MiB"),
            row(f"rest: CPU, a LIST of all each {self._resync_s:.0f} s", cores(before, after),
                "cores", "0.2"),
            row(REST_WRITES, self.num_writes() - writes, "", "0"),
            row("full resync: LISTs of all kinds, one after another", list_s, "s"),
            row("full resync: every service reconciled within", max(bursts_s, default=0.0), "s",
                "60"),
        ]  # fmt: skip

    def churn(self, seconds: float) -> list[Row]:
        """Pods come and go all the time; an object is edited now and then and put right."""
        chance = random.Random(SEED)
        targets = self._probe_targets()
        churn = Churn(self.fleet, CHURN, seed=SEED)
        writes, text, before = self.num_writes(), self.metrics(), self.use()
        events = self.operator.metric(WATCH_EVENTS)
        reconciles = self.operator.metric(RECONCILES)
        latencies_s = []
        try:
            while time.monotonic() - before.at_s < seconds:
                latencies_s.append(self._put_right_s(*chance.choice(targets)))
                time.sleep(0.2)
            after = self.use()
        finally:
            churn.stop()
        span_s = after.at_s - before.at_s
        events = self.operator.metric(WATCH_EVENTS) - events
        reconciles = self.operator.metric(RECONCILES) - reconciles
        waits = [buckets_of(found, "mizzen_operator_queue_wait_seconds")
                 for found in (text, self.metrics())]  # fmt: skip
        self.say(f"churned: {churn.num_foreign} foreign, {churn.num_owned} owned")
        ordered = sorted(latencies_s)
        return [
            row("churn: foreign pods swapped", churn.num_foreign / span_s, "/s", "10"),
            row("churn: owned pods removed", churn.num_owned / span_s, "/s", "2"),
            row("churn: watch events", events / span_s, "/s"),
            row("churn: reconciles", reconciles / span_s, "/s"),
            row("churn: writes to the API server", (self.num_writes() - writes) / span_s, "/s"),
            row("churn: RSS", after.rss_mib, "MiB", "400"),
            row("churn: CPU", cores(before, after), "cores"),
            row("churn: wait in the queue, p99 at most", bound_of_quantile(*waits, 0.99), "s", "1"),
            row("churn: edit put right, median", statistics.median(ordered), "s"),
            row("churn: edit put right, p99", ordered[int(len(ordered) * 0.99)], "s", "1"),
        ]

    def restart(self) -> list[Row]:
        """The operator ends and begins anew with all that there."""
        self.settle()
        repairs, writes = self.operator.metric(REPAIRS), self.num_writes(apart=KEYS)
        self.operator.stop()
        began_s = time.monotonic()
        self.operator.start()
        wait_for("the operator leads", self.operator.is_synced, timeout_s=300)
        synced_s = time.monotonic() - began_s
        wait_for("all are looked at", self._all_looked_at, timeout_s=300)
        looked_s = time.monotonic() - began_s
        self.settle()
        after = self.use()
        self.say("started anew")
        return [
            row("changes that the watch missed, before the restart", repairs, "", "0"),
            row("start with all that there: ready", synced_s, "s"),
            row("start: every service reconciled", looked_s, "s", "60"),
            row(START_WRITES, self.num_writes(apart=KEYS) - writes, "", "0"),
            row("start: RSS", after.rss_mib, "MiB", "400"),
            row("start: peak of RSS", after.peak_mib, "MiB"),
        ]

    def settle(self) -> None:
        """Wait until nothing of ours changes any more; LISTs make reconciles without any news."""
        before, calm_since_s = -1.0, time.monotonic()
        while time.monotonic() - calm_since_s < self._calm_s:
            time.sleep(0.5)
            if (now := self.operator.metric(WATCH_EVENTS)) != before:
                before, calm_since_s = now, time.monotonic()

    def num_writes(self, *, apart: str = "") -> int:
        """Writes of the operator so far, dry runs too; Leases, Events and one resource apart."""
        events = self._cluster.audit_events()
        return sum(event.user == USER and event.resource != apart for event in events)

    def use(self) -> Use:
        return use_of(self.operator.pid)

    def metrics(self) -> str:
        return self.operator.ask("/metrics")[1]

    # -- inside -------------------------------------------------------------------------------

    def _has_objects(self) -> bool:
        found = tuple(map(self._count, (STATEFUL_SET, DEPLOYMENT)))
        time.sleep(0.5)
        groups = self._size.owned - self._size.services * self._size.tokenizers
        # The chart has made a Deployment too, the operator's.
        return found == (groups, self._size.services + 1)

    def _count(self, kind: ResourceKind) -> int:
        return self.fleet.count(kind.path(namespace=None))

    def _all_ready(self) -> bool:
        time.sleep(1.0)
        return self.fleet.num_ready() == self._size.services

    def _all_looked_at(self) -> bool:
        return self.operator.metric(RECONCILES) >= self._size.services

    def _watch_bursts(self, seconds: float) -> list[float]:
        """How long each run of reconciles took within so many seconds."""
        until_s = time.monotonic() + seconds
        bursts_s: list[float] = []
        began_s = changed_s = 0.0
        before = self.operator.metric(RECONCILES)
        while (now_s := time.monotonic()) < until_s:
            if (now := self.operator.metric(RECONCILES)) != before:
                began_s, changed_s, before = began_s or now_s, now_s, now
            elif began_s and now_s - changed_s > 2.0:
                bursts_s.append(changed_s - began_s)
                began_s = 0.0
            time.sleep(0.25)
        return bursts_s

    def _probe_targets(self) -> list[tuple[str, str]]:
        page = self.api.call("GET", f"{PROBED.path(namespace=None)}?labelSelector={SERVICE_UID}")
        return [(item["metadata"]["namespace"], item["metadata"]["name"]) for item in page["items"]]

    def _put_right_s(self, namespace: str, name: str) -> float:
        """Edit an object and wait until the operator has put it right."""
        path = PROBED.path(namespace=namespace, name=name)
        began_s = time.monotonic()
        edit = {"metadata": {"labels": {MANAGED_BY: "somebody"}}}
        self.api.call("PATCH", path, edit, kind=MERGE_PATCH)
        wait_for(f"{name} is put right", lambda: self._is_right(path), timeout_s=30)
        return time.monotonic() - began_s

    def _is_right(self, path: str) -> bool:
        labels = self.api.call("GET", path)["metadata"]["labels"]
        return bool(labels[MANAGED_BY] != "somebody")


def values(rows: Sequence[Row]) -> dict[str, float]:
    """What was measured, by what it is."""
    return {str(item["what"]): float(item["measured"]) for item in rows}


def row(what: str, measured: float, unit: str, budget: str = "") -> Row:
    return {"what": what, "measured": round(float(measured), 3), "unit": unit, "budget": budget}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--services", type=int, default=20)
    parser.add_argument("--owned", type=int, default=400, help="pods of all services together")
    parser.add_argument("--foreign", type=int, default=800, help="pods of nobody of ours")
    parser.add_argument("--rest-seconds", type=float, default=120.0)
    parser.add_argument("--churn-seconds", type=float, default=60.0)
    parser.add_argument("--json", type=Path, default=Path("out/bench_fleet.json"))
    options = parser.parse_args()
    try:
        size = FleetSize(services=options.services, owned=options.owned, foreign=options.foreign)
    except SizeError as error:
        parser.error(str(error))
    rows: list[Row] = []
    config = ClusterConfig(name=NAME, node_grace_seconds=NODE_GRACE_S)
    with tempfile.TemporaryDirectory() as folder, Cluster.start(config) as cluster:
        run = FleetRun(cluster, size, Path(folder), resync_s=options.rest_seconds * RESYNC_SHARE)
        try:
            for step in (
                run.prepare,
                run.create,
                partial(run.rest, options.rest_seconds),
                partial(run.churn, options.churn_seconds),
                run.restart,
            ):
                rows += step()
        except AssertionError:
            print(run.operator.log.read_text()[-4000:])
            raise
        finally:
            run.end()
            publish("fleet", rows, options.json)


if __name__ == "__main__":
    main()
