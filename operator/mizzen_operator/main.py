"""Owns the operator's process: Lease, watch, LISTs, workers, health server, and a graceful end.

Does not own any of their work; it wires them and ends the process when one of them ends.

Order: health server, Lease (a second process waits here), watch and LISTs, then reconciles once
the store is synced. SIGTERM: no new keys, reconciles under way finish, the Lease is handed over.
"""

import argparse
import asyncio
import logging
import os
import secrets
import signal
import sys
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from kubernetes.config import ConfigException

from mizzen_operator import __version__
from mizzen_operator.attempts import Attempts
from mizzen_operator.cluster.client import CallRecord
from mizzen_operator.cluster.credentials import load_configuration
from mizzen_operator.cluster.definitions import ServedDefinitions
from mizzen_operator.cluster.edge import edge_of
from mizzen_operator.cluster.events import EventPoster
from mizzen_operator.cluster.lease import LEASE, Leadership, loss_in
from mizzen_operator.cluster.lease_http import HttpLeases
from mizzen_operator.cluster.real import ConnectionLimits, KubernetesClient
from mizzen_operator.cluster.resync import Resync, ResyncTiming, Scope, ServiceListener
from mizzen_operator.cluster.served_elsewhere import ServedElsewhere
from mizzen_operator.cluster.server_clock import ServerClock
from mizzen_operator.cluster.watch_pulse import WatchPulse, WatchTiming
from mizzen_operator.errors import ClusterError
from mizzen_operator.handlers import KopfWatch, WatchScope, watch_listener, watch_registry
from mizzen_operator.health import Answers, Facts, HealthServer
from mizzen_operator.logs import configure_logs
from mizzen_operator.metrics import Metrics
from mizzen_operator.reconcile import Reconciler
from mizzen_operator.settings import Settings, SettingsError, read_settings
from mizzen_operator.spec.resolve import Defaults
from mizzen_operator.store import (
    CHILD_SELECTOR,
    LISTED_KINDS,
    ROLE_SCALER,
    SERVICE_KIND,
    WATCHED_KINDS,
    ObjectRef,
    ObjectUid,
    ResourceKind,
    ServiceUid,
    Store,
    stored_object,
)
from mizzen_operator.workqueue import WorkQueue

logger = logging.getLogger(__name__)

USER_AGENT = f"mizzen-operator/{__version__}"
BEAT_S = 1.0
DEEPEST_JSON = 10_000
"""Maps and lists within each other that the API server lets through. Beyond Python's own limit, a
tenth of it, one such object in any namespace would end the watch of all, at each start again."""
DEFINITION_RETRY_S = 5.0


def operator_verb(argv: Sequence[str]) -> int:
    """Run the operator until SIGTERM; exit 0 after a graceful end, 1 after a failure."""
    parser = argparse.ArgumentParser(
        prog="mizzen operator",
        description="Run the operator. It is configured by MIZZEN_OPERATOR_* variables, which the"
        " Helm chart sets; outside a pod set MIZZEN_OPERATOR_KUBECONFIG.",
    )
    parser.parse_args(argv)
    sys.setrecursionlimit(DEEPEST_JSON + sys.getrecursionlimit())
    try:
        settings = read_settings()
        operator = Operator(settings)
    except (SettingsError, ConfigException) as error:
        sys.stderr.write(f"mizzen operator: {error}\n")
        return 2
    configure_logs(settings.log_level)
    try:
        asyncio.run(operator.run())
    except Exception as error:
        lost = loss_in(error)
        if lost is None:
            logger.exception("ending after a failure")
        else:
            logger.warning("ending: %s", lost)
        # At once: threads of the watch or of calls under way must not delay it.
        logging.shutdown()
        os._exit(1)
    return 0


class Operator:
    """One process of the operator."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._metrics = Metrics()
        self._store = Store()
        self._pulse = WatchPulse(
            WatchTiming(max_silence_s=settings.watch_silence_seconds), clock=time.monotonic
        )
        self._server_clock = ServerClock(clock=time.monotonic, now=_now)
        now = self._server_clock.now
        self._client = KubernetesClient(
            load_configuration(settings),
            user_agent=USER_AGENT,
            fence=self._fence,
            observer=self._count_call,
        )
        self._lease_client = KubernetesClient(
            load_configuration(settings),
            user_agent=USER_AGENT,
            fence=lambda: None,
            observer=self._count_call,
            limits=ConnectionLimits(read_timeout_s=5.0, max_calls=1),
        )
        identity = settings.identity_or_new
        lease = ObjectRef(kind=LEASE, namespace=settings.lease_namespace, name=settings.lease_name)
        self._elsewhere = ServedElsewhere(
            self._client, lease, clock=time.monotonic, on_change=self._all_changed
        )
        self._leadership = Leadership(
            HttpLeases(self._lease_client),
            lease,
            identity=identity,
            clock=time.monotonic,
            now=now,
        )
        self._queue: WorkQueue[ServiceUid] = WorkQueue(
            clock=time.monotonic, jitter=_jitter, on_wait=self._metrics.queue_wait_seconds.observe
        )
        self._definitions = ServedDefinitions(self._client, on_change=self._all_changed)
        reconciler = Reconciler(
            edge_of(
                self._client,
                self._store,
                EventPoster(self._client, now=now, instance=identity),
                clock=time.monotonic,
                count_restart=lambda cause: self._metrics.group_restarts.labels(cause).inc(),
                missing=lambda: self._definitions.missing,
            ),
            Defaults(
                frontend_image=settings.frontend_image,
                worker_image=settings.worker_image,
                pull_secrets=settings.service_pull_secret_names,
                gpu_classes=settings.own_gpu_classes,
            ),
            now=now,
        )
        self._attempts = Attempts(self._queue, reconciler.reconcile, self._metrics)
        self._resync = Resync(
            self._client,
            self._store,
            scope=Scope(
                namespace=settings.watch_namespace or None, child_label_selector=CHILD_SELECTOR
            ),
            listener=ServiceListener(changed=self._queue.add, routine=self._queue.add_routine),
            clock=time.monotonic,
            timing=ResyncTiming(every_s=settings.resync_seconds),
        )
        self._beat_at_s = time.monotonic()

    async def run(self) -> None:
        """Everything, until SIGTERM or a failure."""
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop.set)
        health = HealthServer(
            host=self._settings.http_host,
            port=self._settings.http_port,
            answers=Answers(facts=self._facts, metrics=self._metrics_text),
        )
        logger.info("serving probes and metrics", extra={"port": health.port})
        try:
            async with asyncio.TaskGroup() as tasks:
                beating = tasks.create_task(self._beat())
                await _first(stop, tasks.create_task(self._leadership.acquire()))
                if not stop.is_set():
                    await self._lead(stop, tasks)
                beating.cancel()
        finally:
            health.close()
            self._client.close()
            self._lease_client.close()

    async def _lead(self, stop: asyncio.Event, tasks: asyncio.TaskGroup) -> None:
        logger.info("leading", extra={"lease": self._settings.lease_name})
        keeping = tasks.create_task(self._leadership.keep())
        await _first(stop, tasks.create_task(self._await_definition()))
        watch = self._start_watch(asyncio.get_running_loop())
        background = [
            keeping,
            tasks.create_task(self._resync.keep(LISTED_KINDS, jitter=_jitter)),
            tasks.create_task(
                self._definitions.keep_looking(
                    every_s=self._settings.resync_seconds, retry_s=DEFINITION_RETRY_S
                )
            ),
            tasks.create_task(
                _must_not_end(asyncio.shield(asyncio.wrap_future(watch.ended)), "the watch")
            ),
        ]
        if not self._settings.watch_namespace:
            background.append(tasks.create_task(self._elsewhere.keep_looking()))
        workers = tasks.create_task(self._work_when_synced(stop))
        await stop.wait()
        logger.info("stopping: reconciles under way finish")
        self._queue.close()
        _, unfinished = await asyncio.wait([workers], timeout=self._settings.stop_seconds)
        for task in (*background, workers):
            task.cancel()
        watch.stop()
        if unfinished:
            # A write may be under way in its thread: a standby must wait until the Lease runs out.
            logger.warning("stopped in the middle of reconciles; the Lease is not handed over")
            return
        await self._leadership.release()
        logger.info("stopped")

    def _start_watch(self, loop: asyncio.AbstractEventLoop) -> KopfWatch:
        scope = WatchScope(namespace=self._settings.watch_namespace)
        listener = watch_listener(
            self._pulse,
            lambda kind: loop.call_soon_threadsafe(self._resync.hurry, kind),
            scope,
        )
        registry = watch_registry(
            self._deliverer(loop), lambda: load_configuration(self._settings), listener
        )
        watch = KopfWatch(registry, scope, self._pulse.timing)
        self._pulse.expect(WATCHED_KINDS)
        watch.start()
        return watch

    async def _await_definition(self) -> None:
        """Wait until our own kinds exist: kopf looks for kinds only once."""
        await self._await_kind(SERVICE_KIND, label_selector=None)
        await self._await_kind(ROLE_SCALER, label_selector=CHILD_SELECTOR)
        await self._definitions.look()
        if not self._settings.watch_namespace:
            await self._elsewhere.look()

    async def _await_kind(self, kind: ResourceKind, *, label_selector: str | None) -> None:
        while True:
            try:
                await self._client.list_versions(
                    kind,
                    namespace=self._settings.watch_namespace or None,
                    label_selector=label_selector,
                )
            except ClusterError as error:
                logger.warning(
                    "cannot list %ss yet, apply the definitions of this release: %s",
                    kind.kind,
                    error,
                )
                await asyncio.sleep(DEFINITION_RETRY_S)
            else:
                return

    async def _work_when_synced(self, stop: asyncio.Event) -> None:
        while not self._store.is_synced(LISTED_KINDS):
            if stop.is_set():
                return
            await asyncio.sleep(0.05)
        self._all_changed()
        logger.info("synced", extra={"services": len(self._store.service_uids())})
        await self._queue.run(self._handle, num_workers=self._settings.num_workers)

    async def _handle(self, uid: ServiceUid) -> None:
        """One service, unless another operator serves its namespace."""
        service = self._store.service(uid)
        if service is not None and service.namespace in self._elsewhere.namespaces:
            self._queue.forget(uid)
            return
        await self._attempts.attempt(uid)

    # -- news from the watch ------------------------------------------------------------------

    def _deliverer(
        self, loop: asyncio.AbstractEventLoop
    ) -> Callable[[ResourceKind, str, Mapping[str, Any]], None]:
        def deliver(kind: ResourceKind, event: str, manifest: Mapping[str, Any]) -> None:
            loop.call_soon_threadsafe(self._take_news, kind, event, manifest)

        return deliver

    def _take_news(self, kind: ResourceKind, event: str, manifest: Mapping[str, Any]) -> None:
        """Store it and enqueue its service; in the main loop."""
        self._metrics.watch_events.labels(str(kind)).inc()
        seen = stored_object(kind, manifest)
        if event == "DELETED":
            self._store.forget(ObjectUid(seen.uid), at_version=seen.resource_version)
        elif not self._store.observe(seen):
            return
        if seen.service_uid is not None:
            self._queue.add(seen.service_uid)

    def _all_changed(self) -> None:
        for uid in self._store.service_uids():
            self._queue.add(uid)

    # -- facts for probes and metrics ---------------------------------------------------------

    def _fence(self) -> None:
        self._leadership.require()

    async def _beat(self) -> None:
        while True:
            self._beat_at_s = time.monotonic()
            self._pulse.listen()
            await asyncio.sleep(BEAT_S)

    def _count_call(self, call: CallRecord) -> None:
        self._metrics.api_calls.labels(call.verb, call.resource, str(call.status)).inc()
        self._metrics.api_call_seconds.labels(call.verb).observe(call.seconds)
        self._server_clock.heard(call.date)

    def _facts(self) -> Facts:
        now_s = time.monotonic()
        stale = self._store.stale_kinds(
            WATCHED_KINDS, now_s=now_s, max_age_s=self._resync.timing.max_age_s
        )
        is_synced = self._store.is_synced(WATCHED_KINDS)
        return Facts(
            beat_age_s=now_s - self._beat_at_s,
            is_leader=self._leadership.is_held,
            is_synced=is_synced,
            stale_kinds=tuple(map(str, stale)) if is_synced else (),
            silent_watches={str(kind): s for kind, s in self._pulse.too_silent_s().items()},
            queue_stall_s=self._queue.stalled_for_s(),
            expectation_age_s=self._store.oldest_expectation_s(now_s=now_s),
        )

    def _metrics_text(self) -> bytes:
        self._metrics.queue_ready.set(self._queue.num_ready)
        self._metrics.services.set(self._store.num_objects(SERVICE_KIND))
        missing = self._definitions.missing.values()
        self._metrics.definition_fields_missing.set(sum(len(paths) for paths in missing))
        self._metrics.is_leader.set(1 if self._leadership.is_held else 0)
        for kind, silence_s in self._pulse.silence_s().items():
            self._metrics.watch_silence.labels(str(kind)).set(silence_s)
        for kind, list_s in list(self._resync.list_s.items()):
            self._metrics.list_seconds.labels(str(kind)).set(list_s)
        for kind, num_repairs in list(self._resync.num_repairs.items()):
            self._metrics.store_repairs.labels(str(kind)).set(num_repairs)
        return self._metrics.text()


async def _first(stop: asyncio.Event, task: asyncio.Task[None]) -> None:
    """Wait until the task is done, or cancel it at the stop."""
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait([stopping, task], return_when=asyncio.FIRST_COMPLETED)
    stopping.cancel()
    if not task.done():
        task.cancel()


async def _must_not_end(future: Awaitable[None], what: str) -> None:
    await future
    message = f"{what} ended by itself"
    raise RuntimeError(message)


def _now() -> datetime:
    return datetime.now(UTC)


def _jitter() -> float:
    return secrets.randbelow(1 << 20) / (1 << 20)
