"""Owns the support bundle: what is collected, in which order, within which bounds.

Does not own reading (``fleet``), reports (``report``), blacking out (``redaction``) nor the file
(``archive``). Invariants: no Secret is read; every text passes redaction; what is left out or cut
is said in ``contents.json`` and told while it happens.
"""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from mizzen_operator import __version__
from mizzen_operator.cluster.reader import ClusterReader, LogPart, Selection
from mizzen_operator.errors import ClusterError
from mizzen_operator.report.explain import explanation
from mizzen_operator.report.text import status_text
from mizzen_operator.report.view import OPERATOR_SELECTOR, report_of
from mizzen_operator.report.wording import shortened
from mizzen_operator.spec.wording import moment_text
from mizzen_operator.store import POD, Manifest, StoredObject, kind_named, stored_object
from mizzen_operator.support.archive import Archive
from mizzen_operator.support.fleet import ServiceRead, Wanted, read_fleet
from mizzen_operator.support.redaction import redacted_document, redacted_text

DEPLOYMENT = kind_named("apps/v1", "Deployment")
LOGS_AT_ONCE = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleLimits:
    """How much is collected."""

    log_lines: int = 2000
    """Last lines of each log."""
    log_bytes: int = 1 << 20
    """Most of each log: its end."""
    total_bytes: int = 64 << 20
    """Most of all texts together, before they are compressed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BundlePlan:
    """What a person asked for."""

    wanted: Wanted
    file: str
    operator_namespace: str | None
    """None: looked for in all namespaces."""
    limits: BundleLimits = field(default_factory=BundleLimits)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Log:
    """One log to read, and its path in the archive."""

    pod: StoredObject
    container: str
    is_previous: bool
    path: str


Tell = Callable[[str], None]


async def write_bundle(
    reader: ClusterReader, plan: BundlePlan, *, now: datetime, tell: Tell
) -> None:
    """Collect and write; ClusterError if services or pods cannot be read, BundleError if the file
    cannot be written."""
    with Archive(plan.file, plan.limits.total_bytes, now) as archive:
        collector = _Collector(reader, plan, archive, now=now, tell=tell)
        await collector.collect()
    tell(
        f"wrote {plan.file}: {archive.num_files} files, {_size(archive.num_bytes)} of text,"
        f" {_size(archive.compressed_bytes)} compressed; {len(archive.left_out)} things left out or"
        " cut (contents.json names them). Read it before you send it."
    )


class _Collector:
    def __init__(
        self,
        reader: ClusterReader,
        plan: BundlePlan,
        archive: Archive,
        *,
        now: datetime,
        tell: Tell,
    ) -> None:
        self._reader = reader
        self._plan = plan
        self._archive = archive
        self._now = now
        self._tell = tell

    async def collect(self) -> None:
        """Everything, what matters most first: the bound on the size cuts from the end."""
        self._tell("[  0%] reading services, objects and Events")
        fleet = await read_fleet(self._reader, self._plan.wanted)
        operator = await self._operator()
        logs = [*_logs_of(operator), *_service_logs(fleet.services)]
        num_steps = len(fleet.services) + len(logs) + 1
        for gap in fleet.gaps:
            self._archive.leave_out("objects", gap)
        if not fleet.services:
            where = self._plan.wanted.namespace or "any namespace"
            self._archive.leave_out("services", f"there is none in {where}")
        await self._versions(operator)
        for position, service in enumerate(fleet.services):
            self._progress(position, num_steps, f"{service.service.ref}")
            self._service(service)
        done = len(fleet.services)
        while logs:
            batch, logs = logs[:LOGS_AT_ONCE], logs[LOGS_AT_ONCE:]
            self._progress(done, num_steps, f"logs of {batch[0].pod.ref} and {len(batch) - 1} more")
            if self._archive.is_full:
                for log in (*batch, *logs):
                    self._archive.leave_out(log.path, "the bundle is full: --max-mib is its size")
                break
            await asyncio.gather(*map(self._log, batch))
            done += len(batch)
        self._archive.finish(
            {
                "madeAt": moment_text(self._now),
                "namespace": self._plan.wanted.namespace or "(all)",
                "name": self._plan.wanted.name or "(all)",
            }
        )

    def _progress(self, done: int, total: int, what: str) -> None:
        so_far = _size(self._archive.num_bytes)
        self._tell(f"[{100 * done // total:3d}%] {what} ({so_far} so far)")

    async def _operator(self) -> list[StoredObject]:
        """The operator's Deployment and pods; none if they cannot be found."""
        selection = Selection(
            namespace=self._plan.operator_namespace, label_selector=OPERATOR_SELECTOR
        )
        found: list[StoredObject] = []
        try:
            for kind in (DEPLOYMENT, POD):
                listed = await self._reader.list_objects(kind, selection)
                found += [stored_object(kind, manifest) for manifest in listed.items]
        except ClusterError as error:
            reason = f"{_line(error)}; give --operator-namespace"
            self._archive.leave_out("operator", reason)
            return []
        if not found:
            where = self._plan.operator_namespace or "any namespace"
            self._archive.leave_out("operator", f"nothing labelled {OPERATOR_SELECTOR} in {where}")
        self._archive.add("operator/objects.json", redacted_document(_list_of(found)))
        return found

    async def _versions(self, operator: Sequence[StoredObject]) -> None:
        try:
            server: Manifest = await self._reader.server_version()
        except ClusterError as error:
            server = {"error": _line(error)}
        images = {
            f"{item.namespace}/{item.name}": [
                container.get("image", "") for container in _containers(item.manifest)
            ]
            for item in operator
            if item.kind == POD
        }
        versions = {"mizzen": __version__, "kubernetes": server, "operator": images}
        self._archive.add("versions.json", redacted_document(versions))

    def _service(self, read: ServiceRead) -> None:
        folder = _folder(read.service)
        report = report_of(read.found, self._now)
        stamp = f"read at {moment_text(self._now)}\n\n"
        status = status_text(report, self._now, is_wide=True)
        self._archive.add(f"{folder}/status.txt", redacted_text(stamp + status))
        explained = explanation(report, self._now)
        self._archive.add(f"{folder}/explain.txt", redacted_text(stamp + explained))
        self._archive.add(f"{folder}/service.json", redacted_document(read.service.manifest))
        self._archive.add(f"{folder}/objects.json", redacted_document(_list_of(read.objects)))
        events = {"apiVersion": "v1", "kind": "List", "items": read.events}
        self._archive.add(f"{folder}/events.json", redacted_document(events))

    async def _log(self, log: _Log) -> None:
        limits = self._plan.limits
        part = LogPart(
            container=log.container,
            tail_lines=limits.log_lines,
            # The server cuts the end off, which matters most: ask for more, keep the end.
            max_bytes=4 * limits.log_bytes,
            is_previous=log.is_previous,
        )
        try:
            text = await self._reader.pod_log(log.pod.ref, part)
        except ClusterError as error:
            self._archive.leave_out(log.path, _line(error))
            return
        kept = _end_of(text, limits.log_bytes)
        if len(kept) < len(text):
            self._archive.leave_out(log.path, f"only its last {_size(limits.log_bytes)} are here")
        self._archive.add(log.path, redacted_text(kept))


def _service_logs(services: Sequence[ServiceRead]) -> list[_Log]:
    """Logs of all pods; those of pods that are not ready first."""
    unready: list[_Log] = []
    ready: list[_Log] = []
    for read in services:
        is_ready = {pod.child.uid: pod.is_ready for pod in read.found.observed.pods}
        for item in read.objects:
            if item.kind == POD:
                target = ready if is_ready.get(item.uid) else unready
                target += _pod_logs(item, f"{_folder(read.service)}/logs")
    return [*unready, *ready]


def _logs_of(operator: Sequence[StoredObject]) -> list[_Log]:
    pods = (item for item in operator if item.kind == POD)
    return [log for pod in pods for log in _pod_logs(pod, f"operator/logs/{pod.namespace}")]


def _pod_logs(pod: StoredObject, folder: str) -> Iterator[_Log]:
    status = pod.manifest.get("status") or {}
    states = (
        *(status.get("initContainerStatuses") or ()),
        *(status.get("containerStatuses") or ()),
    )
    restarted = {item["name"] for item in states if item.get("restartCount")}
    for container in _containers(pod.manifest):
        name = container["name"]
        for is_previous in (False, True) if name in restarted else (False,):
            suffix = ".previous" if is_previous else ""
            yield _Log(
                pod=pod,
                container=name,
                is_previous=is_previous,
                path=f"{folder}/{pod.name}.{name}{suffix}.log",
            )


def _containers(manifest: Manifest) -> list[dict[str, Any]]:
    spec = manifest.get("spec") or {}
    return [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]


def _folder(service: StoredObject) -> str:
    return f"services/{service.namespace}/{service.name}"


def _list_of(objects: Sequence[StoredObject]) -> dict[str, Any]:
    ordered = sorted(objects, key=lambda item: (item.kind.kind, item.namespace, item.name))
    items = [
        {**item.manifest, "apiVersion": item.kind.api_version, "kind": item.kind.kind}
        for item in ordered
    ]
    return {"apiVersion": "v1", "kind": "List", "items": items}


def _end_of(text: str, max_bytes: int) -> str:
    """Whole lines at the end: half a line may be a secret without the name before it."""
    data = text.encode()
    if len(data) <= max_bytes:
        return text
    kept = data[-max_bytes:]
    return kept[kept.find(b"\n") + 1 :].decode(errors="replace")


def _line(error: Exception) -> str:
    return shortened(str(error), 400)


def _size(num_bytes: int) -> str:
    return f"{num_bytes / (1 << 20):.1f} MiB" if num_bytes >= 1 << 20 else f"{num_bytes >> 10} KiB"
