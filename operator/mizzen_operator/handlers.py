"""Owns kopf, which is the watch and nothing else: `on.event` per kind, handed to one callback.

Does not own what an event means. kopf runs in a thread with a loop of its own, because it treats
every task of its loop as its own and replaces the process's signal handlers. It never writes: no
change handlers, daemons, timers, Events or peering, and its finalizer has a name nobody uses.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import kopf
from kubernetes.client import Configuration

from mizzen_operator.spec.model import GROUP
from mizzen_operator.store import CHILD_SELECTOR, SERVICE_KIND, WATCHED_KINDS, ResourceKind

logger = logging.getLogger(__name__)

Deliver = Callable[[ResourceKind, str, Mapping[str, Any]], None]
"""Called with kind, event type ("" for the initial listing) and the object, in kopf's thread."""


def watch_registry(deliver: Deliver, load: Callable[[], Configuration]) -> kopf.OperatorRegistry:
    """All decorators of the operator: one raw-event handler per kind, and the log-in."""
    registry = kopf.OperatorRegistry()
    for kind in WATCHED_KINDS:
        _, _, version = kind.api_version.rpartition("/")
        decorate = kopf.on.event(
            kind.group, version, kind.plural, id=kind.plural, registry=registry
        )
        decorate(_forwarder(kind, deliver))

    async def log_in(**_: object) -> kopf.ConnectionInfo:
        return connection_info(load())

    kopf.on.login(registry=registry, id="log-in")(log_in)
    return registry


def _forwarder(kind: ResourceKind, deliver: Deliver) -> Callable[..., Any]:
    async def forward(event: Mapping[str, Any], **_: object) -> None:
        deliver(kind, event["type"] or "", dict(event["object"]))

    return forward


def watch_settings() -> kopf.OperatorSettings:
    """kopf, quiet: nothing it could write is on."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.peering.standalone = True
    settings.scanning.disabled = True
    settings.persistence.finalizer = f"{GROUP}/never-used"
    settings.watching.server_timeout = 240
    settings.watching.client_timeout = 300
    settings.watching.connect_timeout = 5
    settings.watching.chunk_size = 500
    settings.networking.request_timeout = 15
    settings.execution.max_workers = 1
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


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchScope:
    """Where to watch; empty means every namespace."""

    namespace: str = ""


class KopfWatch:
    """kopf in its thread; `ended` completes when it stops, with its error if it failed."""

    def __init__(self, registry: kopf.OperatorRegistry, scope: WatchScope) -> None:
        self._registry = registry
        self._scope = scope
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
            self.ended.set_exception(error)
        else:
            self.ended.set_result(None)

    async def _watch(self) -> None:
        namespace = self._scope.namespace
        try:
            await kopf.operator(
                registry=self._registry,
                settings=watch_settings(),
                standalone=True,
                clusterwide=not namespace,
                namespaces=[namespace] if namespace else [],
                stop_flag=self._stop,
            )
        finally:
            # A thread of kopf's waits for it, and the loop's end for that thread: a watch that
            # failed would never be known to have ended.
            self._stop.set()
