"""Owns reading for people: whole objects, logs and versions, over a client that cannot write.

Does not own what is read nor what is made of it. Invariants: no call of it is a write, and no
call of it names a Secret; every list is bounded and says so when it was cut.
"""

from dataclasses import dataclass
from typing import Protocol

from kubernetes.client import Configuration

from mizzen_operator.cluster.client import CallRecord
from mizzen_operator.cluster.real import ConnectionLimits, KubernetesClient
from mizzen_operator.cluster.request import Request, continue_token
from mizzen_operator.errors import OperatorError
from mizzen_operator.spec.served import SERVED_PATH
from mizzen_operator.store import SECRET, Manifest, ObjectRef, ResourceKind

LIST_CHUNK = 500
MAX_ITEMS = 20_000
SERVED_DEFINITIONS = Request(verb="get", resource="openapi", method="GET", path=SERVED_PATH)


class ForbiddenReadError(OperatorError):
    """A defect of ours: what only reads was about to write, or to read a Secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectList:
    """Objects of one kind as listed."""

    items: tuple[Manifest, ...] = ()
    is_cut: bool = False
    """There were more than `MAX_ITEMS`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """Which objects of a kind to list; None as namespace means all of them."""

    namespace: str | None
    label_selector: str = ""
    field_selector: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPart:
    """Which part of a pod's log to read."""

    container: str
    tail_lines: int
    max_bytes: int
    is_previous: bool = False
    """Of the container that ran before the last restart."""


class ClusterReader(Protocol):
    """Reads; every call may raise a `ClusterError`."""

    async def get(self, ref: ObjectRef) -> Manifest:
        """The live object."""

    async def list_objects(self, kind: ResourceKind, selection: Selection) -> ObjectList:
        """Whole objects of a kind, read in chunks."""

    async def pod_log(self, pod: ObjectRef, part: LogPart) -> str:
        """The end of a container's log."""

    async def server_version(self) -> Manifest:
        """What the API server says of itself."""

    async def served_definitions(self) -> Manifest:
        """The OpenAPI document of our kinds."""


class HttpReader:
    """`ClusterReader` over a `KubernetesClient` of its own; close it once, at the end."""

    def __init__(self, configuration: Configuration, *, user_agent: str) -> None:
        self._client = KubernetesClient(
            configuration,
            user_agent=user_agent,
            fence=_refuse_writes,
            observer=_ignore_call,
            limits=ConnectionLimits(list_chunk=LIST_CHUNK),
        )

    def close(self) -> None:
        """Give back threads and sockets."""
        self._client.close()

    async def get(self, ref: ObjectRef) -> Manifest:
        """See `ClusterReader`."""
        _require_readable(ref.kind)
        return await self._client.get(ref)

    async def list_objects(self, kind: ResourceKind, selection: Selection) -> ObjectList:
        """See `ClusterReader`."""
        _require_readable(kind)
        query = {}
        if selection.label_selector:
            query["labelSelector"] = selection.label_selector
        if selection.field_selector:
            query["fieldSelector"] = selection.field_selector
        # Items of a list do not repeat what they are.
        named = {"apiVersion": kind.api_version, "kind": kind.kind}
        items: list[Manifest] = []
        pages = self._client.pages(kind, namespace=selection.namespace, query=query)
        async for page in pages:
            items.extend({**named, **item} for item in page["items"] or ())
            if len(items) >= MAX_ITEMS:
                return ObjectList(items=tuple(items), is_cut=bool(continue_token(page)))
        return ObjectList(items=tuple(items))

    async def pod_log(self, pod: ObjectRef, part: LogPart) -> str:
        """See `ClusterReader`."""
        path = pod.kind.path(namespace=pod.namespace, name=pod.name)
        query = {
            "container": part.container,
            "tailLines": str(part.tail_lines),
            "limitBytes": str(part.max_bytes),
            **({"previous": "true"} if part.is_previous else {}),
        }
        return await self._client.call_text(
            Request(
                verb="get",
                resource="pods/log",
                method="GET",
                path=f"{path}/log",
                query=tuple(query.items()),
                accept="*/*",
            )
        )

    async def server_version(self) -> Manifest:
        """See `ClusterReader`."""
        return await self._client.call(
            Request(verb="get", resource="version", method="GET", path="/version")
        )

    async def served_definitions(self) -> Manifest:
        """See `ClusterReader`."""
        return await self._client.call(SERVED_DEFINITIONS)


def _require_readable(kind: ResourceKind) -> None:
    if kind.plural == SECRET.plural:
        message = "Secrets are never read"
        raise ForbiddenReadError(message)


def _refuse_writes() -> None:
    message = "what only reads was about to write"
    raise ForbiddenReadError(message)


def _ignore_call(_: CallRecord) -> None:
    """Nobody counts the calls of a command."""
