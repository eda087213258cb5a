"""Owns the HTTP connection to the API server: the official client, in threads, with time-outs.

Does not own retries (the work queue does) nor what is written. Before each write the fence is
asked, so that a process that lost its Lease writes nothing more.
"""

import asyncio
import time
import urllib.parse
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
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
    manager_of,
)
from mizzen_operator.cluster.failures import document_of, refused_of
from mizzen_operator.cluster.free_json import YAML, yaml_of
from mizzen_operator.cluster.request import (
    APPLY_PATCH,
    DRY_RUN,
    DRY_RUN_VERB,
    JSON,
    MERGE_PATCH,
    METADATA_LIST_ONLY,
    METADATA_ONLY,
    OUTLASTS_PODS,
    READ_VERBS,
    Request,
    applying,
    continue_token,
    lingers,
    preconditions_of,
    request_about,
    version_of,
    with_preconditions,
)
from mizzen_operator.errors import UnavailableError
from mizzen_operator.store import (
    SECRET,
    Manifest,
    ObjectRef,
    ObjectUid,
    ObjectVersion,
    ResourceKind,
)

LIST_CHUNK = 100
"""Objects of one answer; it lies in memory whole, and no other thread runs while it is decoded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionLimits:
    """How long a call may take and how many may run at once."""

    connect_timeout_s: float = 3.0
    read_timeout_s: float = 10.0
    max_calls: int = 8
    list_chunk: int = LIST_CHUNK


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
        list_version = 0
        query = {} if label_selector is None else {"labelSelector": label_selector}
        pages = self.pages(kind, namespace=namespace, query=query, accept=METADATA_LIST_ONLY)
        async for page in pages:
            items.extend(version_of(kind, item["metadata"]) for item in page["items"] or ())
            list_version = int(page["metadata"]["resourceVersion"])
        return VersionList(items=tuple(items), list_version=list_version)

    async def get(self, ref: ObjectRef) -> Manifest:
        """See `ClusterClient`."""
        return await self.call(request_about("get", ref, method="GET"))

    async def create(self, ref: ObjectRef, manifest: Manifest) -> Manifest:
        """See `ClusterClient`."""
        return await self._create(ref, manifest, accept=JSON)

    async def try_create(self, ref: ObjectRef, manifest: Manifest) -> None:
        """See `ClusterClient`."""
        await self._create(ref, manifest, accept=METADATA_ONLY, dry_run=True)

    async def try_apply(
        self, ref: ObjectRef, manifest: Manifest, precondition: Precondition
    ) -> None:
        """See `ClusterClient`."""
        query = (*applying(FieldManager.CONTROLLER), DRY_RUN)
        body = with_preconditions(manifest, precondition)
        await self.call(
            request_about(
                DRY_RUN_VERB,
                ref,
                method="PATCH",
                query=query,
                body=body,
                content_type=APPLY_PATCH,
            )
        )

    async def create_unread(self, ref: ObjectRef, manifest: Manifest) -> Manifest:
        """See `ClusterClient`."""
        return await self._create(ref, manifest, accept=METADATA_ONLY)

    async def touch_unread(self, ref: ObjectRef, *, uid: ObjectUid | None) -> Manifest:
        """See `ClusterClient`."""
        return await self.call(
            request_about(
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
        return await self.call(
            request_about(
                "patch",
                ref,
                method="PATCH",
                subresource=subresource,
                query=applying(manager),
                body=with_preconditions(manifest, precondition),
                content_type=APPLY_PATCH,
            )
        )

    async def replace_in_status(
        self, ref: ObjectRef, fields: Manifest, precondition: Precondition
    ) -> Manifest:
        """See `ClusterClient`."""
        return await self.call(
            request_about(
                "patch",
                ref,
                method="PATCH",
                subresource=Subresource.STATUS,
                query=(("fieldManager", FieldManager.STATUS.value),),
                body={"metadata": preconditions_of(precondition), "status": fields},
                content_type=MERGE_PATCH,
            )
        )

    async def own(
        self, ref: ObjectRef, managed_fields: Sequence[Manifest], precondition: Precondition
    ) -> Manifest:
        """See `ClusterClient`."""
        metadata = {**preconditions_of(precondition), "managedFields": list(managed_fields)}
        return await self.call(
            request_about(
                "patch",
                ref,
                method="PATCH",
                query=(("fieldManager", manager_of(ref.kind).value),),
                body={"metadata": metadata},
                content_type=MERGE_PATCH,
            )
        )

    async def delete(
        self, ref: ObjectRef, precondition: Precondition, *, grace_s: int | None = None
    ) -> Manifest | None:
        """See `ClusterClient`."""
        grace = {} if grace_s is None else {"gracePeriodSeconds": grace_s}
        body = {
            **grace,
            "apiVersion": "v1",
            "kind": "DeleteOptions",
            "propagationPolicy": "Foreground" if ref.kind.kind in OUTLASTS_PODS else "Background",
            "preconditions": preconditions_of(precondition),
        }
        # A Secret that lingers for a finalizer is answered whole, and Secrets are never read.
        accept = METADATA_ONLY if ref.kind == SECRET else JSON
        request = request_about("delete", ref, method="DELETE", body=body, accept=accept)
        reply = await self.call(request)
        return reply if lingers(reply) else None

    # -- anything else the operator asks (Lease, Events, access reviews) ----------------------

    async def call(self, request: Request) -> dict[str, Any]:
        """Make one call in a thread; the answer's JSON, or a typed error."""
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, self._call_now, request
        )

    async def call_text(self, request: Request) -> str:
        """Make one call in a thread whose answer is plain text, such as a log."""
        return await asyncio.get_running_loop().run_in_executor(
            self._threads, self._call_text_now, request
        )

    async def pages(
        self,
        kind: ResourceKind,
        *,
        namespace: str | None,
        query: Mapping[str, str],
        accept: str = JSON,
    ) -> AsyncIterator[dict[str, Any]]:
        """The answers of one list, chunk by chunk, at least one; who has enough stops asking."""
        asked = {"limit": str(self._limits.list_chunk), **query}
        while True:
            page = await self.call(
                Request(
                    verb="list",
                    resource=str(kind),
                    method="GET",
                    path=kind.path(namespace=namespace),
                    query=tuple(asked.items()),
                    accept=accept,
                )
            )
            yield page
            token = continue_token(page)
            if not token:
                return
            asked["continue"] = token

    async def _create(
        self, ref: ObjectRef, manifest: Manifest, *, accept: str, dry_run: bool = False
    ) -> Manifest:
        # A field that the API server does not know would be dropped without a word.
        dry = (DRY_RUN, ("fieldValidation", "Strict")) if dry_run else ()
        yaml = yaml_of(ref.kind, manifest)
        return await self.call(
            Request(
                verb=DRY_RUN_VERB if dry_run else "create",
                resource=str(ref.kind),
                method="POST",
                path=ref.kind.path(namespace=ref.namespace),
                query=(("fieldManager", manager_of(ref.kind).value), *dry),
                body=manifest if yaml is None else yaml,
                content_type=JSON if yaml is None else YAML,
                accept=accept,
            )
        )

    def _call_now(self, request: Request) -> dict[str, Any]:
        status, headers, data = self._exchange(request)
        document = document_of(data)
        if 200 <= status < 300 and isinstance(document, dict):
            return document
        status = 502 if document is None and status < 400 else status
        raise refused_of(status, headers, data, call=f"{request.verb} {request.path}")

    def _call_text_now(self, request: Request) -> str:
        status, headers, data = self._exchange(request)
        if 200 <= status < 300:
            return data.decode(errors="replace")
        raise refused_of(status, headers, data, call=f"{request.verb} {request.path}")

    def _exchange(self, request: Request) -> tuple[int, Mapping[str, str], bytes]:
        # Here, not in `call`: a call may have waited for its thread.
        if request.verb not in READ_VERBS:
            self._fence()
        started_s = time.monotonic()
        status = 0
        headers: Mapping[str, str] = {}
        try:
            status, headers, data = self._send(request)
            return status, headers, data
        finally:
            self._observer(
                CallRecord(
                    verb=request.verb,
                    resource=request.resource,
                    status=status,
                    seconds=time.monotonic() - started_s,
                    date=headers.get("Date"),
                )
            )

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
