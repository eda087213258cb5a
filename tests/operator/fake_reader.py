"""`ClusterReader` over the fake cluster: selectors, Events, logs, faults; and what was asked."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

from tests.operator.fake_cluster import FakeCluster
from tests.operator.fake_operator import NAMESPACE, Clock

from mizzen_operator.cluster.events import EVENT
from mizzen_operator.cluster.failures import NotFoundError
from mizzen_operator.cluster.reader import LogPart, ObjectList, Selection
from mizzen_operator.errors import ClusterError
from mizzen_operator.store import SECRET, Manifest, ObjectRef, ResourceKind
from mizzen_operator.support.connection import Connection, Target
from mizzen_operator.support.verbs import Surroundings


@dataclass
class FakeReader:
    """Reads a `FakeCluster`."""

    cluster: FakeCluster
    logs: dict[tuple[str, bool], str] = field(default_factory=dict)
    """By pod and whether the previous container's is meant."""
    refusals: dict[str, ClusterError] = field(default_factory=dict)
    """By plural name of a kind: what each read of it is answered with."""
    openapi: Manifest = field(default_factory=dict)
    log_parts: list[LogPart] = field(default_factory=list)

    async def get(self, ref: ObjectRef) -> Manifest:
        self._ask(ref.kind)
        found = self.cluster.find(ref)
        if found is None:
            raise NotFoundError(f"get {ref}: not found (HTTP 404 NotFound)")
        return found

    async def list_objects(self, kind: ResourceKind, selection: Selection) -> ObjectList:
        self._ask(kind)
        return ObjectList(
            items=tuple(
                item for item in self.cluster.objects(kind) if _is_selected(item, selection)
            )
        )

    async def pod_log(self, pod: ObjectRef, part: LogPart) -> str:
        self.log_parts.append(part)
        text = self.logs.get((pod.name, part.is_previous))
        if text is None:
            raise NotFoundError(f"get {pod}/log: container is waiting to start (HTTP 404)")
        return "".join(text.splitlines(keepends=True)[-part.tail_lines :])[: part.max_bytes]

    async def server_version(self) -> Manifest:
        return {"gitVersion": "v1.36.0"}

    async def served_definitions(self) -> Manifest:
        if "openapi" in self.refusals:
            raise self.refusals["openapi"]
        return self.openapi

    def _ask(self, kind: ResourceKind) -> None:
        assert kind != SECRET, "Secrets are never read"
        if kind.plural in self.refusals:
            raise self.refusals[kind.plural]


def _is_selected(item: Manifest, selection: Selection) -> bool:
    metadata = item["metadata"]
    if selection.namespace not in (None, metadata["namespace"]):
        return False
    if selection.field_selector:
        key, _, value = selection.field_selector.partition("=")
        return bool(item.get(key) == value)
    labels = metadata.get("labels") or {}
    terms = filter(None, selection.label_selector.split(","))
    return all(_holds(term, labels) for term in terms)


def _holds(term: str, labels: Mapping[str, str]) -> bool:
    if term.startswith("!"):
        return term[1:] not in labels
    name, equals, value = term.partition("=")
    return name in labels and (not equals or labels[name] == value)


def around(reader: FakeReader, clock: Clock) -> Surroundings:
    """What the verbs take from outside."""

    def connect(target: Target) -> Connection:
        return Connection(
            reader=reader, namespace=NAMESPACE, server="https://fake:6443", close=lambda: None
        )

    return Surroundings(connect=connect, now=clock.now)


def put_event(
    cluster: FakeCluster, about: Manifest, reason: str, message: str, **more: Any
) -> None:
    """An Event about an object, a minute old."""
    metadata = about["metadata"]
    at = more.pop("at", datetime(2026, 1, 1, tzinfo=UTC))
    cluster.put(
        EVENT,
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {
                "name": f"{metadata['name']}.{len(cluster.refs(EVENT))}",
                "namespace": metadata["namespace"],
            },
            "involvedObject": {
                "kind": about["kind"],
                "namespace": metadata["namespace"],
                "name": metadata["name"],
                "uid": metadata["uid"],
            },
            "type": "Warning",
            "reason": reason,
            "message": message,
            "count": 3,
            "lastTimestamp": (at - timedelta(minutes=1)).strftime("%Y-%m-%dT%H:%M:%SZ"),
            **more,
        },
    )
