"""Owns a fleet for load tests: its namespaces, nodes, foreign pods, services, and their churn.

Does not own the cluster, the operator, nor what is measured (`bench_fleet.py`). Foreign pods lie on
nodes that nothing answers for: they stay Pending, which costs the machine one write each and is the
same to an operator that must not see them at all.
"""

import http.client
import itertools
import json
import random
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from tests.devcluster.api import ApiError
from tests.devcluster.cluster import Cluster
from tests.e2e.waiting import wait_for

from mizzen_operator.store import POD, SERVICE_KIND

T = TypeVar("T")

CLAIM = "weights"
PODS_PER_NODE = 110
SERVICES_PER_NAMESPACE = 50
FOREIGN_PER_NAMESPACE = 2_000
WORKERS_PER_SERVICE = 4
SPARE_NODES = 1.2
"""Nodes for pods that leave while others take their place."""
NUM_THREADS = 8
_ANYTHING = [{"operator": "Exists"}]


class SizeError(ValueError):
    """A fleet was asked for that cannot be made; the message names the value and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSize:
    """How many objects; owned pods are shared out evenly over the services."""

    services: int
    owned: int
    foreign: int

    def __post_init__(self) -> None:
        if self.services < 1 or self.foreign < 1:
            raise SizeError("--services and --foreign: at least 1 of each is needed")
        if self.tokenizers < 1 or self.owned % self.services:
            least = self.services * (WORKERS_PER_SERVICE + 1)
            raise SizeError(
                f"--owned: {self.owned} cannot be shared out: take a multiple of --services"
                f" ({self.services}), {least} or more"
            )

    @property
    def tokenizers(self) -> int:
        """Pods of each service's Deployment; the others are a worker group each."""
        return self.owned // self.services - WORKERS_PER_SERVICE

    @property
    def namespaces(self) -> list[str]:
        return [f"fleet-{index}" for index in range(_parts(self.services, SERVICES_PER_NAMESPACE))]

    @property
    def foreign_namespaces(self) -> list[str]:
        return [f"foreign-{index}" for index in range(_parts(self.foreign, FOREIGN_PER_NAMESPACE))]


def _parts(number: int, each: int) -> int:
    return -(-number // each)


class CallsApi(Protocol):
    """Anything that calls the API server."""

    def call(
        self, method: str, path: str, body: object = None, *, kind: str = "application/json"
    ) -> Any:
        """The answer's JSON; raises ApiError for an answer of 400 or more."""


class KeptOpen:
    """Calls over one connection for each thread, because handshakes cost more than pods do."""

    def __init__(self, cluster: Cluster) -> None:
        self._api = cluster.api
        self._local = threading.local()
        self._lock = threading.Lock()
        self._opened: list[http.client.HTTPSConnection] = []

    def call(
        self, method: str, path: str, body: object = None, *, kind: str = "application/json"
    ) -> Any:
        """See `CallsApi`."""
        connection = self._connection()
        data = None if body is None else json.dumps(body)
        try:
            connection.request(method, path, data, {"Content-Type": kind})
            answer = connection.getresponse()
        except (http.client.RemoteDisconnected, ConnectionError):
            # The API server ends connections that rest, before it has read anything of a call.
            connection.close()
            connection.request(method, path, data, {"Content-Type": kind})
            answer = connection.getresponse()
        text = answer.read()
        if answer.status >= 400:
            raise ApiError(answer.status, text.decode())
        return json.loads(text)

    def close(self) -> None:
        """Give back every connection."""
        for connection in self._opened:
            connection.close()

    def _connection(self) -> http.client.HTTPSConnection:
        connection: http.client.HTTPSConnection | None = getattr(self._local, "connection", None)
        if connection is None:
            api = self._api
            connection = http.client.HTTPSConnection(
                api.address, api.port, context=api.context, timeout=60
            )
            self._local.connection = connection
            with self._lock:
                self._opened.append(connection)
        return connection


def each(act: Callable[[T], object], items: Iterable[T]) -> None:
    """Act on every item, some at a time; the first failure is raised."""
    with ThreadPoolExecutor(NUM_THREADS) as threads:
        for _ in threads.map(act, items):
            pass


@dataclass
class Fleet:
    """What is made in one cluster."""

    cluster: Cluster
    api: CallsApi
    size: FleetSize
    _numbers: "itertools.count[int]" = field(default_factory=itertools.count)

    def lay_ground(self) -> None:
        """Nodes, namespaces and claims; the real node takes none of the pods."""
        self.cluster.kubectl("cordon", *self.cluster.node_names)
        owned_nodes = _parts(int(self.size.owned * SPARE_NODES), PODS_PER_NODE) + 1
        self.cluster.add_fake_nodes(owned_nodes, is_tainted=False)
        each(self._make_silent_node, range(self._num_foreign_nodes))
        for name in (*self.size.namespaces, *self.size.foreign_namespaces):
            self.api.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        for name in self.size.namespaces:
            self._make_claim(name)
        for name in (*self.size.namespaces, *self.size.foreign_namespaces):
            wait_for(f"{name} has an account", lambda name=name: self._has_account(name))

    def make_foreign(self, num_pods: int) -> None:
        """Pods of somebody else."""
        each(lambda _: self.make_foreign_pod(), range(num_pods))

    def make_services(self) -> None:
        """Every service; returns when the API server has taken the last one."""
        each(self._make_service, range(self.size.services))

    def count(self, path: str) -> int:
        """Objects of a collection, by the API server's own count."""
        page = self.api.call("GET", f"{path}?limit=1")
        return len(page["items"]) + int(page["metadata"].get("remainingItemCount", 0))

    def services(self) -> list[dict[str, Any]]:
        """Every service as it is now."""
        items: list[dict[str, Any]] = self.api.call("GET", SERVICE_KIND.path(namespace=None))[
            "items"
        ]
        return items

    def num_ready(self) -> int:
        """Services that are Ready as they are written now."""
        return sum(map(_is_ready, self.services()))

    def pod_names(self, namespace: str) -> list[str]:
        page = self.api.call("GET", POD.path(namespace=namespace))
        return [item["metadata"]["name"] for item in page["items"]]

    def make_service(self, namespace: str, name: str) -> None:
        """One service of the fleet's shape."""
        tiny = {"requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"memory": "64Mi"}}
        self.api.call(
            "POST",
            f"{SERVICE_KIND.path(namespace=namespace)}?fieldValidation=Strict",
            {
                "apiVersion": SERVICE_KIND.api_version,
                "kind": SERVICE_KIND.kind,
                "metadata": {"name": name},
                "spec": {
                    "topology": "Split",
                    "model": {"source": {"pvc": {"claimName": CLAIM, "path": "model.gguf"}}},
                    "tokenizer": {"replicas": self.size.tokenizers, "resources": tiny},
                    "replicas": WORKERS_PER_SERVICE,
                    "worker": {"resources": tiny},
                },
            },
        )

    # -- inside -------------------------------------------------------------------------------

    @property
    def _num_foreign_nodes(self) -> int:
        return _parts(self.size.foreign, PODS_PER_NODE)

    def _make_service(self, index: int) -> None:
        self.make_service(
            self.size.namespaces[index // SERVICES_PER_NAMESPACE], service_name(index)
        )

    def _make_silent_node(self, index: int) -> None:
        node = {"metadata": {"name": f"silent-{index}"}, "spec": {"unschedulable": True}}
        self.api.call("POST", "/api/v1/nodes", node)

    def make_foreign_pod(self) -> None:
        number = next(self._numbers)
        names = self.size.foreign_namespaces
        body = {
            "metadata": {"name": f"stranger-{number}", "labels": {"app": "stranger"}},
            "spec": {
                "nodeName": f"silent-{number % self._num_foreign_nodes}",
                "containers": [{"name": "main", "image": "stranger:1"}],
                "tolerations": _ANYTHING,
            },
        }
        self.api.call("POST", POD.path(namespace=names[number % len(names)]), body)

    def _make_claim(self, namespace: str) -> None:
        size = {"storage": "1Gi"}
        common = {"accessModes": ["ReadOnlyMany"], "storageClassName": ""}
        volume = {
            "metadata": {"name": f"{namespace}-{CLAIM}"},
            "spec": {
                **common,
                "capacity": size,
                "hostPath": {"path": "/never-mounted"},
                "claimRef": {"namespace": namespace, "name": CLAIM},
            },
        }
        claim = {
            "metadata": {"name": CLAIM},
            "spec": {
                **common,
                "volumeName": f"{namespace}-{CLAIM}",
                "resources": {"requests": size},
            },
        }
        self.api.call("POST", "/api/v1/persistentvolumes", volume)
        claims = f"/api/v1/namespaces/{namespace}/persistentvolumeclaims"
        self.api.call("POST", claims, claim)

    def _has_account(self, namespace: str) -> bool:
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/default"
        try:
            self.api.call("GET", path)
        except ApiError as error:
            if error.status != 404:
                raise
            return False
        return True


def service_name(index: int) -> str:
    """Name of one of the fleet's services."""
    return f"svc-{index}"


def _is_ready(service: dict[str, Any]) -> bool:
    conditions = (service.get("status") or {}).get("conditions") or ()
    generation = service["metadata"]["generation"]
    return any(
        (item["type"], item["status"], item["observedGeneration"]) == ("Ready", "True", generation)
        for item in conditions
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """Pods removed and made again per second."""

    foreign_per_s: float
    owned_per_s: float


class Churn:
    """Removes pods at a steady pace in threads; owned ones are made again by their controllers."""

    def __init__(self, fleet: Fleet, rates: Rates, *, seed: int) -> None:
        self._fleet = fleet
        self._stop = threading.Event()
        self._threads = ThreadPoolExecutor(2, thread_name_prefix="churn")
        self.num_foreign = self.num_owned = self.num_late = 0
        chance = random.Random(seed)
        size = fleet.size
        foreign = [(name, pod) for name in size.foreign_namespaces for pod in fleet.pod_names(name)]
        owned = [(name, pod) for name in size.namespaces for pod in fleet.pod_names(name)]
        for pods in (foreign, owned):
            chance.shuffle(pods)
        self._tasks = [
            self._threads.submit(self._pace, rates.foreign_per_s, foreign, self._swap_foreign),
            self._threads.submit(self._pace, rates.owned_per_s, owned, self._remove_owned),
        ]

    def stop(self) -> None:
        """End it; a failure of a thread is raised here."""
        self._stop.set()
        self._threads.shutdown()
        for task in self._tasks:
            task.result()

    def _pace(
        self, per_s: float, pods: list[tuple[str, str]], act: Callable[[str, str], None]
    ) -> None:
        began_s = time.monotonic()
        for index, (namespace, name) in enumerate(pods):
            wait_s = began_s + index / per_s - time.monotonic()
            self.num_late += wait_s < -1.0
            if self._stop.wait(max(0.0, wait_s)):
                return
            act(namespace, name)

    def _swap_foreign(self, namespace: str, name: str) -> None:
        path = POD.path(namespace=namespace, name=name)
        self._fleet.api.call("DELETE", path, {"gracePeriodSeconds": 0})
        self._fleet.make_foreign_pod()
        self.num_foreign += 1

    def _remove_owned(self, namespace: str, name: str) -> None:
        try:
            self._fleet.api.call("DELETE", POD.path(namespace=namespace, name=name))
        except ApiError as error:
            # A group's pod has the name of the one before it; a Deployment's may have gone.
            if error.status != 404:
                raise
        self.num_owned += 1
