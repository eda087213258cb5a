"""Owns writing statuses and the Events of their transitions, only when something changed.

Does not own what the status says. The Events go first: their names tell which transition they
are, so a crash before the status is written repeats nothing and loses nothing.

State: what the API server made of the last status written, so that a field it does not keep is
not written for ever; losing it costs one write.
"""

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
from mizzen_operator.cluster.failures import UnfitObjectError
from mizzen_operator.spec.served import MissingFields, without_fields
from mizzen_operator.store import ObjectUid, ServiceUid, Store, StoredObject, stored_object

MIN_INTERVAL_S = 1.0
_BAD_STATUS = {"Degraded": "True"}
_QUIET = frozenset({"Progressing"})
_QUIET_UNLESS_BAD = frozenset({"RoutingReady", "Placed", "ModelReady", "Fits", "Granted"})
_TOLD_AT_START = frozenset({"Accepted", "ResolvedRefs", "Degraded", "Fits", "MonitoringReady"})
"""Bad from the first moment on; the others are, before anything has started."""
_CALM = frozenset(
    {
        "ScaledToZero",
        "Stopped",
        "Paused",
        "RollingOut",
        "Pending",
        "Downloading",
        "ServiceRefused",
    }
)
"""Reasons that are no Warning: what the user asked for, a pod that just looks for a node, and what
another object tells."""
_ALARMS = frozenset({"Unschedulable", "QuotaPending", "PodsRefused", "ProgressDeadlineExceeded"})
"""Reasons that are told also where another one stood before in the same state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LastWrite:
    """The last status written for a subject."""

    wanted: Mapping[str, Any]
    kept: Mapping[str, Any]
    at_s: float


def nothing_missing() -> MissingFields:
    """Of a cluster whose definitions are those of this release."""
    return {}


class StatusWriter:
    """Writes statuses of services and of their role scalers."""

    def __init__(
        self,
        client: ClusterClient,
        store: Store,
        events: EventPoster,
        *,
        clock: Callable[[], float],
        missing: Callable[[], MissingFields] = nothing_missing,
    ) -> None:
        self._client = client
        self._store = store
        self._events = events
        self._clock = clock
        self._missing = missing
        self._last: dict[ServiceUid | None, dict[ObjectUid, LastWrite]] = {}

    async def write(self, subject: StoredObject, status: Mapping[str, Any]) -> float | None:
        """Write if needed; if it is too soon, nothing is written and the seconds to wait returned.

        Only the status's own changes are compared, so an unchanged world costs no call.
        """
        # An older definition refuses a status with a field that it does not know, as a whole.
        status = without_fields({"status": status}, self._missing().get(subject.kind.kind, ()))
        status = status.get("status") or {}
        live = subject.manifest.get("status") or {}
        last = self._last.get(subject.service_uid, {}).get(subject.uid)
        if live == status or (last is not None and (last.wanted, last.kept) == (status, live)):
            return None
        if last is not None and self._clock() - last.at_s < MIN_INTERVAL_S:
            return MIN_INTERVAL_S - (self._clock() - last.at_s)
        for occurrence in (*transitions(live, status), *retentions(live, status)):
            await self._events.post(subject, occurrence)
        await self._write(subject, status)
        return None

    def drop_memory(self, uid: ServiceUid) -> None:
        """The service is gone."""
        self._last.pop(uid, None)

    async def _write(self, subject: StoredObject, status: Mapping[str, Any]) -> None:
        written = await self._send(subject, status)
        taken_back = additions(written.manifest.get("status") or {}, status)
        if taken_back:
            precondition = Precondition(uid=written.uid, resource_version=written.resource_version)
            replaced = await self._client.replace_in_status(subject.ref, taken_back, precondition)
            written = stored_object(subject.kind, replaced)
        self._store.wrote(written, now_s=self._clock())
        self._last.setdefault(subject.service_uid, {})[subject.uid] = LastWrite(
            wanted=status, kept=written.manifest.get("status") or {}, at_s=self._clock()
        )

    async def _send(self, subject: StoredObject, status: Mapping[str, Any]) -> StoredObject:
        precondition = Precondition(uid=subject.uid)
        try:
            written = await self._client.apply(
                subject.ref,
                {
                    "apiVersion": subject.kind.api_version,
                    "kind": subject.kind.kind,
                    "metadata": {"name": subject.name, "namespace": subject.namespace},
                    "status": status,
                },
                manager=FieldManager.STATUS,
                precondition=precondition,
                subresource=Subresource.STATUS,
            )
        except UnfitObjectError:
            # Its owner has to hear of it all the same: a patch looks at what it changes only.
            gone = dict.fromkeys(subject.manifest.get("status") or {})
            fields = {**gone, **status}
            written = await self._client.replace_in_status(subject.ref, fields, precondition)
        return stored_object(subject.kind, written)


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
    """What changed in a way that a person wants to hear of; pure.

    Of a condition that is another status, or an alarm of another reason than before. The identity
    of an occurrence names what was left, or what was begun, which is the same however often it is
    computed.
    """
    yield from _conditions_changed(before, after)
    yield from _groups_restarted(before, after)
    yield from _left_single(before, after)


def _conditions_changed(
    before: Mapping[str, Any], after: Mapping[str, Any]
) -> Iterator[Occurrence]:
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


def _groups_restarted(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Occurrence]:
    earlier = {row["name"]: row.get("epoch", 0) for row in before.get("groups") or ()}
    for row in after.get("groups") or ():
        epoch = row.get("epoch", 0)
        if epoch > earlier.get(row["name"], epoch):
            last = row.get("lastRestart", "its epoch was set by hand")
            yield Occurrence(
                is_warning=True,
                reason="GroupRestarted",
                message=f"group {row['name']} starts anew as epoch {epoch}: {last}",
                identity=("GroupRestarted", row["name"], str(epoch), last),
            )


def _left_single(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Occurrence]:
    """A single group gets no PodDisruptionBudget: one would keep its node from ever draining."""
    old, new = (
        ((status.get("roles") or {}).get("worker") or {}).get("desired")
        for status in (before, after)
    )
    if new == 1 and old != 1:
        yield Occurrence(
            is_warning=False,
            reason="SingleGroup",
            message="an eviction or a node drain interrupts the only worker group; with "
            "spec.replicas of 2 or more a PodDisruptionBudget lets one group go at a time",
            identity=("SingleGroup",),
        )


def retentions(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Occurrence]:
    """One occurrence for a claim that will outlive the service: later nobody could tell; pure."""
    model, old = after.get("resolvedModel") or {}, before.get("resolvedModel") or {}
    is_told = bool(old.get("retained")) and old.get("claim") == model.get("claim")
    if not model.get("retained") or is_told:
        return
    at = f" at {model['revision']}" if "revision" in model else ""
    yield Occurrence(
        is_warning=False,
        reason="WeightsRetained",
        message=f"claim {model['claim']} holds {model['source']}{at}; it stays when the service "
        "needs it no more or is deleted, until you delete it",
        identity=("WeightsRetained", model["claim"]),
    )


def _is_told(old: Mapping[str, Any] | None, condition: Mapping[str, Any]) -> bool:
    kind, is_bad = condition["type"], _is_bad(condition)
    if kind in _QUIET:
        return False
    if old is None:
        return is_bad and (kind in _TOLD_AT_START or condition["reason"] in _ALARMS)
    if old["status"] == condition["status"]:
        return is_bad and condition["reason"] in _ALARMS - {old["reason"]}
    return is_bad or kind not in _QUIET_UNLESS_BAD


def _is_bad(condition: Mapping[str, Any]) -> bool:
    return bool(condition["status"] == _BAD_STATUS.get(condition["type"], "False"))
