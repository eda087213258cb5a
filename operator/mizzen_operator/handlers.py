"""Owns kopf, which is the watch and nothing else: `on.event` per kind, handed to one callback.

Does not own what an event means. kopf runs in a thread with a loop of its own, because it treats
every task of its loop as its own and replaces the process's signal handlers. It never writes: no
change handlers, daemons, timers, Events or peering, and its finalizer has a name nobody uses.
"""

import asyncio
import itertools
import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import kopf
from kubernetes.client import Configuration

from mizzen_operator.cluster.real import LIST_CHUNK
from mizzen_operator.cluster.watch_pulse import WatchPulse, WatchTiming
from mizzen_operator.spec.model import GROUP
from mizzen_operator.store import CHILD_SELECTOR, SERVICE_KIND, WATCHED_KINDS, ResourceKind

logger = logging.getLogger(__name__)

Deliver = Callable[[ResourceKind, str, Mapping[str, Any]], None]
"""Called with kind, event type ("" for the initial listing) and the object, in kopf's thread."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchScope:
    """Where to watch; empty means every namespace."""

    namespace: str = ""


@dataclass(frozen=True, kw_only=True)
class _Session(kopf.AiohttpSession):
    """A session that kopf takes for refused credentials' if its connection is the same."""

    connection: kopf.ConnectionInfo
    aiohttp_session: aiohttp.ClientSession = field(compare=False)


def watch_registry(
    deliver: Deliver,
    load: Callable[[], Configuration],
    listener: aiohttp.ClientMiddlewareType,
) -> kopf.OperatorRegistry:
    """All decorators of the operator: one raw-event handler per kind, and the log-in."""
    registry = kopf.OperatorRegistry()
    for kind in WATCHED_KINDS:
        _, _, version = kind.api_version.rpartition("/")
        decorate = kopf.on.event(
            kind.group, version, kind.plural, id=kind.plural, registry=registry
        )
        decorate(_forwarder(kind, deliver))

    async def log_in(**_: object) -> kopf.AiohttpSession:
        return _session(connection_info(load()), listener)

    kopf.on.login(registry=registry, id="log-in")(log_in)
    return registry


def _forwarder(kind: ResourceKind, deliver: Deliver) -> Callable[..., Any]:
    async def forward(event: Mapping[str, Any], **_: object) -> None:
        deliver(kind, event["type"] or "", dict(event["object"]))

    return forward


def watch_listener(
    pulse: WatchPulse, on_list: Callable[[ResourceKind], object], scope: WatchScope
) -> aiohttp.ClientMiddlewareType:
    """Lets `pulse` hear what the API server sends to the watch: LISTs and streams.

    `on_list` is called, in kopf's thread, when the watch of a kind begins anew by a LIST.
    """
    kind_by_path = {kind.path(namespace=scope.namespace or None): kind for kind in WATCHED_KINDS}

    async def listen(
        request: aiohttp.ClientRequest, handler: aiohttp.ClientHandlerType
    ) -> aiohttp.ClientResponse:
        response = await handler(request)
        # An API server may lie below a path of its own.
        found = (kind for path, kind in kind_by_path.items() if request.url.path.endswith(path))
        kind = next(found, None)
        if kind is not None and response.ok:
            pulse.follow(kind, response.content)
            if not {"watch", "continue"} & set(request.url.query):
                on_list(kind)
        return response

    return listen


def _session(
    connection: kopf.ConnectionInfo, listener: aiohttp.ClientMiddlewareType
) -> kopf.AiohttpSession:
    return _Session(
        server=connection.server,
        connection=connection,
        aiohttp_session=aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=connection.as_ssl_context()),
            headers=connection.as_http_headers(),
            middlewares=(listener,),
        ),
    )


class _EndlessBackoff:
    """Seconds between two tries of a request of kopf's.

    It would end the process after some tries, however healthy the rest is; how long a watch may be
    without an answer is judged by its pulse.
    """

    def __iter__(self) -> Iterator[float]:
        return itertools.chain((1.0, 1.0, 2.0, 3.0), itertools.repeat(5.0))


class _NothingToCompare(kopf.DiffBaseStorage):
    """Keeps kopf from copying each object whole, twice, to find changes that no handler asks for.

    That copying was most of the time between an event and its reconcile.
    """

    def build(self, **_: object) -> kopf.BodyEssence:
        return kopf.BodyEssence()

    def fetch(self, **_: object) -> None:
        return None

    def store(self, **_: object) -> None:
        """Called after change handlers only, of which there are none."""


def watch_settings(timing: WatchTiming) -> kopf.OperatorSettings:
    """kopf, quiet: nothing it could write is on."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.persistence.finalizer = f"{GROUP}/never-used"
    settings.persistence.diffbase_storage = _NothingToCompare()
    settings.watching.server_timeout = timing.server_timeout_s
    settings.watching.inactivity_timeout = timing.reconnect_after_s
    settings.watching.client_timeout = 2 * timing.reconnect_after_s
    settings.watching.connect_timeout = 5
    settings.watching.chunk_size = LIST_CHUNK
    settings.networking.request_timeout = 15
    settings.networking.error_backoffs = _EndlessBackoff()
    settings.execution.max_workers = 1
    # Until then it keeps an object whole that has been handed on: all of them, after its LIST.
    settings.queueing.idle_timeout = 0.1
    for kind in WATCHED_KINDS:
        if kind != SERVICE_KIND:
            _, _, version = kind.api_version.rpartition("/")
            settings.watching.label_selectors[kind.group, version, kind.plural] = CHILD_SELECTOR
    return settings


def connection_info(configuration: Configuration) -> kopf.ConnectionInfo:
    """The official client's configuration in kopf's words."""
    bearer = configuration.get_api_key_with_prefix("BearerToken") or ""
    scheme, _, token = bearer.rpartition(" ")
    return kopf.ConnectionInfo(
        server=configuration.host,
        ca_path=configuration.ssl_ca_cert,
        insecure=not configuration.verify_ssl,
        certificate_path=configuration.cert_file,
        private_key_path=configuration.key_file,
        scheme=scheme or None,
        token=token or None,
    )


class KopfWatch:
    """kopf in its thread; `ended` completes when it stops, with its error if it failed."""

    def __init__(
        self, registry: kopf.OperatorRegistry, scope: WatchScope, timing: WatchTiming
    ) -> None:
        self._registry = registry
        self._scope = scope
        self._timing = timing
        self._stop = threading.Event()
        self.ended: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, name="kopf", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Ask it to end; `ended` says when it has."""
        self._stop.set()

    def _run(self) -> None:
        try:
            asyncio.run(self._watch())
        except BaseException as error:  # noqa: BLE001 - handed to the main thread
            self._end(error)
        else:
            self._end(None)

    def _end(self, error: BaseException | None) -> None:
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)

    def _note_failure(self, task: asyncio.Task[None]) -> None:
        """Not when kopf has ended: its other watches may wait for ever for what has gone."""
        if not task.cancelled() and task.exception() is not None:
            self._end(task.exception())

    async def _watch(self) -> None:
        namespace = self._scope.namespace
        try:
            tasks = await kopf.spawn_tasks(
                registry=self._registry,
                settings=watch_settings(self._timing),
                standalone=True,
                clusterwide=not namespace,
                namespaces=[namespace] if namespace else [],
                stop_flag=self._stop,
            )
            for task in tasks:
                task.add_done_callback(self._note_failure)
            await kopf.run_tasks(tasks)
        finally:
            # A thread of kopf's waits for it, and the loop's end for that thread: a watch that
            # failed would never be known to have ended.
            self._stop.set()
