"""Owns the HTTP connection to the API server: the official client, in threads, with time-outs.

Does not own retries (the work queue does) nor what is written. Before each write the fence is
asked, so that a process that lost its Lease writes nothing more.
"""

import asyncio
import json
import math
import time
import urllib.parse
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import urllib3.exceptions
from kubernetes import client as kubernetes_client
from kubernetes.client.exceptions import ApiException

from mizzen_operator.cluster.client import (
    CallObserver,
    CallRecord,
    FieldManager,
    Precondition,
    Subresource,
    VersionList,
)
from mizzen_operator.cluster.failures import Refusal, error_of
from mizzen_operator.errors import ClusterError, UnavailableError
from mizzen_operator.store import Manifest, ObjectRef, ObjectUid, ObjectVersion, ResourceKind

METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
METADATA_LIST_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
READ_VERBS = frozenset({"get", "list"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One HTTP request, fully spelled out."""

    verb: str
    resource: str
    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    body: Mapping[str, Any] | None = None
    content_type: str = JSON
    accept: str = JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """How long a call may take and how many may run at once."""

    connect_timeout_s: float = 3.0
    read_timeout_s: float = 10.0
    max_calls: int = 8
    list_chunk: int = 500


class KubernetesClient:
    """`ClusterClient` over `kubernetes.client.ApiClient`; close it once, at the end."""

    def __init__(
        self,
        configuration: kubernetes_client.Configuration,
        *,
        user_agent: str,
        fence: Callable[[], None],
        observer: CallObserver,
        limits: ConnectionLimits | None = None,
    ) -> None:
        self._limits = limits or ConnectionLimits()
        configuration.connection_pool_maxsize = self._limits.max_calls
        # The queue owns retries; a hidden one would outlive the Lease's margin.
        configuration.retries = False
        self._api = kubernetes_client.ApiClient(configuration)
        self._api.user_agent = user_agent
        self._fence = fence
        self._observer = observer
        self._threads = ThreadPoolExecutor(
            max_workers=self._limits.max_calls, thread_name_prefix="api-call"
        )

    def close(self) -> None:
        """Give back threads and sockets; calls under way end by their time-out."""
        self._threads.shutdown(wait=False, cancel_futures=True)
        self._api.rest_client.close()

    # -- ClusterClient ------------------------------------------------------------------------

    async def list_versions(
        self, kind: ResourceKind, *, namespace: str | None, label_selector: str | None
    ) -> VersionList:
        """See `ClusterClient`."""
        items: list[ObjectVersion] = []
        query: dict[str, str] = {"limit": str(self._limits.list_chunk)}
        if label_selector is not None:
            query["labelSelector"] = label_selector
        while True:
            page = await self.call(
                Request(
                    verb="list",
                    resource=str(kind),
                    method="GET",
                    path=kind.path(namespace=namespace),
                    query=tuple(query.items()),
                    accept=METADATA_LIST_ONLY,
                )
            )
            items.extend(_version(kind, item["metadata"]) for item in page["items"] or ())
            token = page["metadata"].get("continue")
            if not token:
                return VersionList(
                    items=tuple(items), list_version=int(page["metadata"]["resourceVersion"])
                )
            query["continue"] = token

    async def get(self, ref: ObjectRef) -> Manifest:
        """See `ClusterClient`."""
        return await self.call(_request("get", ref, method="GET"))

    async def create(self, ref: ObjectRef, manifest: Manifest) -> Manifest:
        """See `ClusterClient`."""
        return await self._create(ref, manifest, accept=JSON)

    async def create_unread(self, ref: ObjectRef, manifest: Manifest) -> Manifest:
        """See `ClusterClient`."""
        return await self._create(ref, manifest, accept=METADATA_ONLY)

    async def touch_unread(self, ref: ObjectRef, *, uid: ObjectUid | None) -> Manifest:
        """See `ClusterClient`."""
        return await self.call(
            _request(
                "patch",
                ref,
                method="PATCH",
                body={} if uid is None else {"metadata": {"uid": uid}},
                content_type=MERGE_PATCH,
                accept=METADATA_ONLY,
            )
        )

    async def apply(
        self,
        ref: ObjectRef,
        manifest: Manifest,
        *,
        manager: FieldManager,
        precondition: Precondition,
        subresource: Subresource = Subresource.MAIN,
    ) -> Manifest:
        """See `ClusterClient`."""
        metadata = {**manifest["metadata"], **_preconditions(precondition)}
        return await self.call(
            _request(
                "patch",
                ref,
                method="PATCH",
                subresource=subresource,
                query=(("fieldManager", manager.value), ("force", "true")),
                body={**manifest, "metadata": metadata},
                content_type=APPLY_PATCH,
            )
        )

    async def replace_in_status(
        self, ref: ObjectRef, fields: Manifest, precondition: Precondition
    ) -> Manifest:
        """See `ClusterClient`."""
        return await self.call(
            _request(
                "patch",
                ref,
                method="PATCH",
                subresource=Subresource.STATUS,
                query=(("fieldManager", FieldManager.STATUS.value),),
                body={"metadata": _preconditions(precondition), "status": fields},
                content_type=MERGE_PATCH,
            )
        )

    async def own(
        self, ref: ObjectRef, managed_fields: Sequence[Manifest], precondition: Precondition
    ) -> Manifest:
        """See `ClusterClient`."""
        metadata = {**_preconditions(precondition), "managedFields": list(managed_fields)}
        return await self.call(
            _request(
                "patch",
                ref,
                method="PATCH",
                query=(("fieldManager", FieldManager.CONTROLLER.value),),
                body={"metadata": metadata},
                content_type=MERGE_PATCH,
            )
        )

    async def delete(self, ref: ObjectRef, precondition: Precondition) -> Manifest | None:
        """See `ClusterClient`."""
        body = {
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Background",
            "preconditions": _preconditions(precondition),
        }
        reply = await self.call(_request("delete", ref, method="DELETE", body=body))
        return None if reply["kind"] == "Status" else reply

    # -- anything else the operator asks (Lease, Events, access reviews) ----------------------

    async def call(self, request: Request) -> dict[str, Any]:
        """Make one call in a thread; the answer's JSON, or a typed error."""
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, self._call_now, request
        )

    async def _create(self, ref: ObjectRef, manifest: Manifest, *, accept: str) -> Manifest:
        return await self.call(
            Request(
                verb="create",
                resource=str(ref.kind),
                method="POST",
                path=ref.kind.path(namespace=ref.namespace),
                query=(("fieldManager", FieldManager.CONTROLLER.value),),
                body=manifest,
                accept=accept,
            )
        )

    def _call_now(self, request: Request) -> dict[str, Any]:
        # Here, not in `call`: a call may have waited for its thread.
        if request.verb not in READ_VERBS:
            self._fence()
        started_s = time.monotonic()
        status = 0
        try:
            status, headers, data = self._send(request)
        finally:
            self._observer(
                CallRecord(
                    verb=request.verb,
                    resource=request.resource,
                    status=status,
                    seconds=time.monotonic() - started_s,
                )
            )
        what = f"{request.verb} {request.path}"
        try:
            document = json.loads(data)
        except ValueError:
            document = {"message": data[:200].decode(errors="replace").strip()}
            status = status if status >= 400 else 502
        if 200 <= status < 300 and isinstance(document, dict):
            return document
        raise _refused(status, headers, document, call=what)

    def _send(self, request: Request) -> tuple[int, Mapping[str, str], bytes]:
        headers = {
            "Accept": request.accept,
            "Content-Type": request.content_type,
            "User-Agent": self._api.user_agent,
        }
        query = list(request.query)
        self._api.update_params_for_auth(
            headers, query, ["BearerToken"], request.path, request.method, request.body
        )
        url = f"{self._api.configuration.host}{request.path}"
        if query:
            url = f"{url}?{urllib.parse.urlencode(query)}"
        limits = self._limits
        try:
            response = self._api.call_api(
                request.method,
                url,
                header_params=headers,
                body=request.body,
                _request_timeout=(limits.connect_timeout_s, limits.read_timeout_s),
            )
            return response.status, response.headers, bytes(response.response.data)
        except (ApiException, urllib3.exceptions.HTTPError, OSError) as error:
            text = f"{request.verb} {request.path}: no answer from {url.split('?')[0]}: {error}"
            raise UnavailableError(text) from error


class HttpLeases:
    """`LeaseClient` over a connection of its own, which has no fence and never waits for others."""

    def __init__(self, client: KubernetesClient) -> None:
        self._client = client

    async def read(self, ref: ObjectRef) -> Manifest:
        """See `LeaseClient`."""
        return await self._client.get(ref)

    async def create(self, ref: ObjectRef, manifest: Manifest) -> Manifest:
        """See `LeaseClient`."""
        return await self._client.call(
            Request(
                verb="create",
                resource=str(ref.kind),
                method="POST",
                path=ref.kind.path(namespace=ref.namespace),
                body=manifest,
            )
        )

    async def replace(self, ref: ObjectRef, manifest: Manifest) -> Manifest:
        """See `LeaseClient`."""
        return await self._client.call(_request("update", ref, method="PUT", body=manifest))


def _request(
    verb: str,
    ref: ObjectRef,
    *,
    method: str,
    subresource: Subresource = Subresource.MAIN,
    **rest: Any,
) -> Request:
    path = ref.kind.path(namespace=ref.namespace, name=ref.name)
    resource = str(ref.kind)
    if subresource is not Subresource.MAIN:
        path = f"{path}/{subresource.value}"
        resource = f"{resource}/{subresource.value}"
    return Request(verb=verb, resource=resource, method=method, path=path, **rest)


def _preconditions(precondition: Precondition) -> dict[str, str]:
    version = precondition.resource_version
    uid = {"uid": str(precondition.uid)}
    return uid if version is None else {**uid, "resourceVersion": str(version)}


def _version(kind: ResourceKind, metadata: Mapping[str, Any]) -> ObjectVersion:
    return ObjectVersion(
        ref=ObjectRef(kind=kind, namespace=metadata.get("namespace", ""), name=metadata["name"]),
        uid=ObjectUid(metadata["uid"]),
        resource_version=int(metadata["resourceVersion"]),
    )


def _refused(status: int, headers: Mapping[str, str], document: Any, *, call: str) -> ClusterError:
    answer = document if isinstance(document, dict) else {}
    return error_of(
        Refusal(
            status=status,
            reason=str(answer.get("reason") or "no reason given"),
            message=str(answer.get("message") or "no message given"),
            retry_after_s=_seconds(headers.get("Retry-After")),
        ),
        call=call,
    )


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
