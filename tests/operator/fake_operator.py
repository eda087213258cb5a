"""One life of the operator over the fake cluster: everything real but the API server and time."""

import asyncio
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.operator.fake_cluster import FakeCluster, is_selected
from tests.operator.fake_controllers import Controllers

from mizzen_operator.cluster.edge import edge_of
from mizzen_operator.cluster.events import EventPoster
from mizzen_operator.cluster.resync import Resync, ResyncTiming, Scope, ServiceListener
from mizzen_operator.errors import ClusterError
from mizzen_operator.reconcile import Reconciler
from mizzen_operator.spec.resolve import Defaults
from mizzen_operator.store import (
    CHILD_SELECTOR,
    CLAIM,
    LISTED_KINDS,
    SERVICE_KIND,
    WATCHED_KINDS,
    Manifest,
    ObjectRef,
    ObjectUid,
    ResourceKind,
    ServiceUid,
    Store,
    stored_object,
)

NAMESPACE = "team"
MAX_PASSES = 500
DEFAULTS = Defaults(frontend_image="mizzen/frontend:1", worker_image="mizzen/worker:1")


def service_manifest(name: str = "chat", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": SERVICE_KIND.api_version,
        "kind": SERVICE_KIND.kind,
        "metadata": {"name": name, "namespace": NAMESPACE},
        "spec": {
            "topology": "Split",
            "replicas": 1,
            "model": {"source": {"pvc": {"claimName": "weights", "path": "m.gguf"}}},
            **spec,
        },
    }


def service_ref(name: str = "chat") -> ObjectRef:
    return ObjectRef(kind=SERVICE_KIND, namespace=NAMESPACE, name=name)


def cluster_with_claim() -> FakeCluster:
    cluster = FakeCluster()
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "weights", "namespace": NAMESPACE},
        "spec": {"accessModes": ["ReadOnlyMany"]},
        "status": {"phase": "Bound"},
    }
    cluster.put(CLAIM, claim)
    return cluster


class Clock:
    """Monotonic and wall time that move together, by hand; wall time may also jump."""

    def __init__(self) -> None:
        self.now_s = 1000.0
        self.jumped_s = 0.0

    def __call__(self) -> float:
        return self.now_s

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.now_s + self.jumped_s)


class FakeOperator:
    """A process of the operator, from its start on; `die` ends its watch."""

    def __init__(self, cluster: FakeCluster, clock: Clock, defaults: Defaults = DEFAULTS) -> None:
        self.cluster, self.clock = cluster, clock
        self.store = Store()
        self.dirty: dict[ServiceUid, None] = {}
        self.waits_s: dict[ServiceUid, float | None] = {}
        self.errors: list[ClusterError] = []
        self.num_reconciles = 0
        self.restarts: list[str] = []
        self.reconciler = Reconciler(
            edge_of(
                cluster,
                self.store,
                EventPoster(cluster, now=clock.now, instance="test"),
                clock=clock,
                count_restart=self.restarts.append,
            ),
            defaults,
            now=clock.now,
        )
        self.resync = Resync(
            cluster,
            self.store,
            scope=Scope(namespace=None, child_label_selector=CHILD_SELECTOR),
            listener=ServiceListener(changed=self._enqueue, routine=self._enqueue),
            clock=clock,
            timing=ResyncTiming(first_settle_s=0, settle_s=0),
        )
        self.die = cluster.watch(self._take_news)

    def run(self) -> None:
        """Start, then reconcile until nothing is left to do."""
        asyncio.run(self._run())

    def reconcile_all(self) -> None:
        """One pass over every service although nothing happened."""
        for uid in self.store.service_uids():
            self._enqueue(uid)
        self.run()

    def run_lists(self) -> None:
        """What the operator does at start and every few minutes."""
        asyncio.run(self._list())

    async def _list(self) -> None:
        for kind in LISTED_KINDS:
            await self.resync.repair(kind)
        for uid in self.store.service_uids():
            self._enqueue(uid)

    async def _run(self) -> None:
        if not self.store.is_synced(LISTED_KINDS):
            await self._list()
        for _ in range(MAX_PASSES):
            if not self.dirty:
                return
            uid = next(iter(self.dirty))
            del self.dirty[uid]
            # Statuses are written at most once a second.
            self.clock.now_s += 2.0
            self.num_reconciles += 1
            try:
                self.waits_s[uid] = await self.reconciler.reconcile(uid)
            except ClusterError as error:
                self.errors.append(error)
                self._enqueue(uid)
        raise AssertionError(f"not at rest after {MAX_PASSES} passes: {self.errors[-3:]}")

    def _enqueue(self, uid: ServiceUid) -> None:
        self.dirty[uid] = None

    def _take_news(self, event: str, kind: ResourceKind, manifest: Manifest) -> None:
        if kind not in WATCHED_KINDS:
            return
        if kind != SERVICE_KIND and not is_selected(manifest, CHILD_SELECTOR):
            return
        seen = stored_object(kind, manifest)
        if event == "DELETED":
            self.store.forget(ObjectUid(seen.uid), at_version=seen.resource_version)
        elif not self.store.observe(seen):
            return
        if seen.service_uid is not None:
            self._enqueue(seen.service_uid)


def converge(
    operator: FakeOperator, *, pods_drain: bool = False, binds_claims: bool = True
) -> None:
    """Let the operator and the other controllers take turns until nothing changes any more.

    ``pods_drain``: pods of what was deleted do not end; without ``binds_claims`` claims wait.
    """
    controllers = Controllers(operator.cluster)
    controllers.pods_drain = pods_drain
    controllers.binds_claims = binds_claims
    for _ in range(50):
        before = operator.cluster.versions()
        operator.run()
        controllers.settle()
        if operator.cluster.versions() == before and not operator.dirty:
            return
    raise AssertionError("the operator and the controllers never come to rest")


def linger(manifest: dict[str, Any]) -> None:
    """An edit after which the object is being deleted and does not go."""
    manifest["metadata"] |= {
        "finalizers": ["example.com/x"],
        "deletionTimestamp": "2026-01-01T00:00:00Z",
    }


def condition(cluster: FakeCluster, kind: str, name: str = "chat") -> Mapping[str, Any]:
    service = cluster.find(service_ref(name))
    assert service is not None
    found = [item for item in service["status"]["conditions"] if item["type"] == kind]
    assert len(found) == 1, service["status"]
    return found[0]


def started(cluster: FakeCluster | None = None, **spec: Any) -> FakeOperator:
    """An operator at rest with one service."""
    cluster = cluster or cluster_with_claim()
    cluster.put(SERVICE_KIND, service_manifest(**spec))
    operator = FakeOperator(cluster, Clock())
    converge(operator)
    return operator
