"""Owns writing a service's status and the Events of its transitions, only when something changed.

Does not own what the status says. The Events go first: their names tell which transition they
are, so a crash before the status is written repeats nothing and loses nothing.

State: what the API server made of the last status written, so that a field it does not keep is
not written for ever; losing it costs one write.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mizzen_operator.cluster.client import (
    ClusterClient,
    FieldManager,
    Precondition,
    Subresource,
)
from mizzen_operator.cluster.events import EventPoster, Occurrence
from mizzen_operator.errors import ForbiddenError
from mizzen_operator.store import ServiceUid, Store, StoredObject, stored_object

logger = logging.getLogger(__name__)

MIN_INTERVAL_S = 1.0
_BAD_STATUS = {"Degraded": "True"}
_QUIET = frozenset({"Progressing"})
_QUIET_UNLESS_BAD = frozenset({"RoutingReady", "Placed", "ModelReady"})
_TOLD_AT_START = frozenset({"Accepted", "Degraded"})
"""Bad from the first moment on; the others are, before anything has started."""
_CALM = frozenset({"ScaledToZero", "Stopped", "Paused", "RollingOut", "Pending"})
"""Reasons that are no Warning: what the user asked for, and a pod that just looks for a node."""
_ALARMS = frozenset({"Unschedulable", "ProgressDeadlineExceeded"})
"""Reasons that are told also where a calm one stood before in the same state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastWrite:
    """The last status written for a service."""

    wanted: Mapping[str, Any]
    kept: Mapping[str, Any]
    at_s: float


class StatusWriter:
    """Writes statuses of services."""

    def __init__(
        self,
        client: ClusterClient,
        store: Store,
        events: EventPoster,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._store = store
        self._events = events
        self._clock = clock
        self._last: dict[ServiceUid, LastWrite] = {}

    async def write(self, service: StoredObject, status: Mapping[str, Any]) -> float | None:
        """Write if needed; if it is too soon, nothing is written and the seconds to wait returned.

        Only the status's own changes are compared, so an unchanged world costs no call.
        """
        live = service.manifest.get("status") or {}
        last = self._last.get(ServiceUid(service.uid))
        if live == status or (last is not None and (last.wanted, last.kept) == (status, live)):
            return None
        if last is not None and self._clock() - last.at_s < MIN_INTERVAL_S:
            return MIN_INTERVAL_S - (self._clock() - last.at_s)
        for occurrence in transitions(live, status):
            await self._post(service, occurrence)
        await self._write(service, status)
        return None

    def drop_memory(self, uid: ServiceUid) -> None:
        """The service is gone."""
        self._last.pop(uid, None)

    async def _write(self, service: StoredObject, status: Mapping[str, Any]) -> None:
        written = await self._send(service, status)
        taken_back = additions(written.manifest.get("status") or {}, status)
        if taken_back:
            precondition = Precondition(uid=written.uid, resource_version=written.resource_version)
            replaced = await self._client.replace_in_status(service.ref, taken_back, precondition)
            written = stored_object(service.kind, replaced)
        self._store.wrote(written, now_s=self._clock())
        self._last[ServiceUid(service.uid)] = LastWrite(
            wanted=status, kept=written.manifest.get("status") or {}, at_s=self._clock()
        )

    async def _send(self, service: StoredObject, status: Mapping[str, Any]) -> StoredObject:
        applied = await self._client.apply(
            service.ref,
            {
                "apiVersion": service.kind.api_version,
                "kind": service.kind.kind,
                "metadata": {"name": service.name, "namespace": service.namespace},
                "status": status,
            },
            manager=FieldManager.STATUS,
            precondition=Precondition(uid=service.uid),
            subresource=Subresource.STATUS,
        )
        return stored_object(service.kind, applied)

    async def _post(self, service: StoredObject, occurrence: Occurrence) -> None:
        try:
            await self._events.post(service, occurrence)
        except ForbiddenError as error:
            # A namespace that ends takes no Events; the status matters more.
            logger.warning("no Event for %s: %s", service.ref, error)


def additions(live: Mapping[str, Any], applied: Mapping[str, Any]) -> dict[str, Any]:
    """Lists of the live status that hold more than was applied, as a merge patch; pure.

    An empty list is patched as absent: written, it would be owned by the patch, and no later apply
    could remove it.
    """
    return {
        key: items or None
        for key, items in applied.items()
        if isinstance(items, list) and len(live.get(key) or ()) > len(items)
    }


def transitions(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Occurrence]:
    """One occurrence per condition that changed in a way that a person wants to hear of; pure.

    That is another status, or an alarm where nothing was alarming before. Its identity names the
    state that was left, which is the same however often it is computed.
    """
    earlier = {item["type"]: item for item in before.get("conditions") or ()}
    for condition in after.get("conditions") or ():
        old = earlier.get(condition["type"])
        if not _is_told(old, condition):
            continue
        is_same = old is not None and old["status"] == condition["status"]
        yield Occurrence(
            is_warning=_is_bad(condition) and condition["reason"] not in _CALM,
            reason=condition["reason"],
            message=f"{condition['type']} is {condition['status']}: {condition['message']}",
            identity=(
                condition["type"],
                condition["status"],
                "" if old is None else old["lastTransitionTime"],
                *((condition["reason"],) if is_same else ()),
            ),
        )


def _is_told(old: Mapping[str, Any] | None, condition: Mapping[str, Any]) -> bool:
    kind, is_bad = condition["type"], _is_bad(condition)
    if kind in _QUIET:
        return False
    if old is None:
        return is_bad and kind in _TOLD_AT_START
    if old["status"] == condition["status"]:
        return is_bad and old["reason"] in _CALM and condition["reason"] in _ALARMS
    return is_bad or kind not in _QUIET_UNLESS_BAD


def _is_bad(condition: Mapping[str, Any]) -> bool:
    return bool(condition["status"] == _BAD_STATUS.get(condition["type"], "False"))
