"""Reconcile time and API calls per reconcile, over the fake cluster and over a real API server.

    PYTHONPATH=.:operator:worker python tests/bench/bench_reconcile.py [--kubeconfig F] [--json F]

With a kubeconfig (of a cluster with the InferenceService definition) it makes a namespace of its
own and removes it. Prints a table with the machine's load beside it; `--json` also writes it.
"""

import argparse
import asyncio
import json
import os
import statistics
import time
import uuid
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kubernetes import config as kubernetes_config
from kubernetes.client import Configuration
from tests.operator.fake_operator import (
    DEFAULTS,
    Clock,
    FakeOperator,
    cluster_with_claim,
    converge,
    service_manifest,
)

from mizzen_operator.cluster.client import CallRecord
from mizzen_operator.cluster.edge import edge_of
from mizzen_operator.cluster.events import EventPoster
from mizzen_operator.cluster.real import KubernetesClient
from mizzen_operator.cluster.request import Request
from mizzen_operator.cluster.resync import Resync, ResyncTiming, Scope, ServiceListener
from mizzen_operator.reconcile import Reconciler
from mizzen_operator.store import (
    CHILD_SELECTOR,
    LISTED_KINDS,
    SERVICE_KIND,
    ServiceUid,
    Store,
    stored_object,
)

if TYPE_CHECKING:
    from collections.abc import Callable

ROUNDS = 50


def milliseconds(samples_s: list[float]) -> dict[str, float]:
    ordered = sorted(samples_s)
    return {
        "median_ms": round(statistics.median(ordered) * 1000, 2),
        "p95_ms": round(ordered[int(len(ordered) * 0.95) - 1] * 1000, 2),
    }


def over_fake(services: int) -> list[dict[str, Any]]:
    """The decisions and their bookkeeping alone: no network, no serialisation by a server."""
    cluster, clock = cluster_with_claim(), Clock()
    operator = FakeOperator(cluster, clock)
    names = [f"chat-{index}" for index in range(services)]
    for name in names:
        cluster.put(SERVICE_KIND, service_manifest(name))
    began_s, began_calls = time.perf_counter(), len(cluster.calls)
    operator.run()
    first_s, first_calls = time.perf_counter() - began_s, len(cluster.calls) - began_calls
    converge(operator)
    uids = operator.store.service_uids()

    async def at_rest() -> list[float]:
        samples_s = []
        for round_number in range(ROUNDS):
            uid = uids[round_number % len(uids)]
            before_s = time.perf_counter()
            await operator.reconciler.reconcile(uid)
            samples_s.append(time.perf_counter() - before_s)
        return samples_s

    before = len(cluster.calls)
    samples_s = asyncio.run(at_rest())
    rest = cluster.calls[before:]
    create = {
        "what": f"fake: create, {services} services",
        "median_ms": round(first_s / services * 1000, 2),
        "reads": sum(not call.is_write for call in cluster.calls[:first_calls]) / services,
        "writes": sum(call.is_write for call in cluster.calls[:first_calls]) / services,
    }
    steady = {
        "what": f"fake: at rest, {services} services",
        **milliseconds(samples_s),
        "reads": sum(not call.is_write for call in rest) / ROUNDS,
        "writes": sum(call.is_write for call in rest) / ROUNDS,
    }
    return [create, steady]


async def over_real(configuration: Configuration) -> list[dict[str, Any]]:
    """Against an API server; no watch, so the store knows own writes only, which is all here."""
    calls: list[CallRecord] = []
    client = KubernetesClient(
        configuration, user_agent="mizzen-bench/1", fence=lambda: None, observer=calls.append
    )
    namespace = f"bench-{uuid.uuid4().hex[:8]}"
    manifest = service_manifest()
    manifest["metadata"]["namespace"] = namespace
    await client.call(_create("/api/v1/namespaces", "Namespace", namespace))
    try:
        created = await client.call(
            Request(
                verb="create",
                resource=str(SERVICE_KIND),
                method="POST",
                path=SERVICE_KIND.path(namespace=namespace),
                body=manifest,
            )
        )
        return await _reconcile_real(client, created, calls)
    finally:
        await client.call(
            Request(
                verb="delete",
                resource="namespaces",
                method="DELETE",
                path=f"/api/v1/namespaces/{namespace}",
            )
        )
        client.close()


def _create(path: str, kind: str, name: str) -> Request:
    body = {"apiVersion": "v1", "kind": kind, "metadata": {"name": name}}
    return Request(verb="create", resource=path, method="POST", path=path, body=body)


async def _reconcile_real(
    client: KubernetesClient, created: dict[str, Any], calls: list[CallRecord]
) -> list[dict[str, Any]]:
    store, clock = Store(), Clock()
    now: Callable[[], datetime] = lambda: datetime.now(UTC)  # noqa: E731 - a value here
    edge = edge_of(
        client,
        store,
        EventPoster(client, now=now, instance="bench"),
        clock=clock,
        count_restart=lambda _: None,
    )
    reconciler = Reconciler(edge, DEFAULTS, now=now)
    store.observe(stored_object(SERVICE_KIND, created))
    uid = ServiceUid(created["metadata"]["uid"])
    resync = Resync(
        client,
        store,
        scope=Scope(
            namespace=created["metadata"]["namespace"], child_label_selector=CHILD_SELECTOR
        ),
        listener=ServiceListener(changed=lambda _: None, routine=lambda _: None),
        clock=time.monotonic,
        timing=ResyncTiming(first_settle_s=0, settle_s=0),
    )
    calls.clear()
    before_s = time.perf_counter()
    await reconciler.reconcile(uid)
    create = {
        "what": "real: create, 1 service",
        "median_ms": round((time.perf_counter() - before_s) * 1000, 2),
        **_per_reconcile(calls, 1),
    }
    for _ in range(5):
        await asyncio.sleep(0.5)
        for kind in LISTED_KINDS:
            await resync.repair(kind)
        clock.now_s += 10
        await reconciler.reconcile(uid)
    calls.clear()
    samples_s = []
    for _ in range(ROUNDS):
        before_s = time.perf_counter()
        await reconciler.reconcile(uid)
        samples_s.append(time.perf_counter() - before_s)
    steady = {"what": "real: at rest, 1 service", **milliseconds(samples_s)}
    return [create, {**steady, **_per_reconcile(calls, ROUNDS)}]


def _per_reconcile(calls: list[CallRecord], rounds: int) -> dict[str, float]:
    reads = sum(call.verb in ("get", "list") for call in calls)
    return {"reads": reads / rounds, "writes": (len(calls) - reads) / rounds}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--kubeconfig", type=Path, help="also measure against this cluster")
    parser.add_argument("--json", type=Path, help="write the results here")
    options = parser.parse_args()
    rows = [row for services in (1, 100) for row in over_fake(services)]
    if options.kubeconfig:
        configuration = Configuration()
        kubernetes_config.load_kube_config(
            config_file=str(options.kubeconfig), client_configuration=configuration
        )
        rows += asyncio.run(over_real(configuration))
    load = os.getloadavg()[0]
    print(f"{'':34} {'median ms':>10} {'p95 ms':>8} {'reads':>7} {'writes':>7}   load {load:.1f}")
    for row in rows:
        p95 = row.get("p95_ms", "")
        print(
            f"{row['what']:34} {row['median_ms']:>10} {p95:>8}"
            f" {row['reads']:>7.2f} {row['writes']:>7.2f}"
        )
    if options.json:
        options.json.write_text(json.dumps({"load_1min": load, "rows": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
