"""Owns the Events that tell of edits of our objects by others that were taken back.

Does not own taking them back (`apply.py`), nor values: an Event names fields only.

Invariant: however long another controller fights, each field manager gets one Event per object
and `QUIET_S`. State: when the last one was, for `QUIET_S`; losing it costs one Event. One that
cannot be posted is lost, for what it tells of is taken back by then; the log has it.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mizzen_operator.cluster.client import FieldManager
from mizzen_operator.cluster.drift import Path, applied_hash, drifted_paths, path_text
from mizzen_operator.cluster.events import EventPoster, Occurrence
from mizzen_operator.cluster.field_ownership import managers_of
from mizzen_operator.render import labels
from mizzen_operator.store import ROLE_SCALER, Manifest, ObjectUid, ServiceUid, StoredObject

logger = logging.getLogger(__name__)

QUIET_S = 600.0
MAX_FIELDS = 5
_OURS = frozenset(manager.value for manager in FieldManager)
STATE_FIELDS: Mapping[str, frozenset[Path]] = {
    "StatefulSet": frozenset(
        {
            ("metadata", "annotations", labels.FORMED),
            ("metadata", "annotations", labels.RESTARTS),
            ("spec", "template", "metadata", "annotations", labels.EPOCH),
        }
    ),
    ROLE_SCALER.kind: frozenset(
        {("metadata", "annotations", labels.PROPAGATED), ("spec", "replicas")}
    ),
}
"""State that objects carry (a group's epoch, a role's scale), by kind: what is rendered of one was
read from it. Whoever writes it is obeyed, and it changes without the spec, so where it differs
nobody was contradicted."""

Told = tuple[ObjectUid, str]
"""An object, and the field manager that an Event told of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edit:
    """What one field manager changed of an object."""

    manager: str
    """Empty where the API server does not know: it keeps nobody for what was removed."""
    fields: tuple[str, ...]


class UndoneEdits:
    """Tells of edits that were taken back."""

    def __init__(self, events: EventPoster, *, clock: Callable[[], float]) -> None:
        self._events = events
        self._clock = clock
        self._told_at_s: dict[ServiceUid | None, dict[Told, float]] = {}

    async def tell(
        self,
        service: StoredObject,
        rendered: Manifest,
        *,
        before: StoredObject,
        after: StoredObject,
    ) -> None:
        """Compare an object before and after it was applied, and tell who had changed it."""
        edits = undone_edits(rendered, before=before, after=after)
        if not edits:
            return
        told_at_s = still_quiet(self._told_at_s.get(before.service_uid, {}), self._clock())
        self._told_at_s[before.service_uid] = told_at_s
        for edit in edits:
            occurrence = occurrence_of(edit, before)
            logger.warning(
                "%s: %s", before.ref, occurrence.message, extra={"service_uid": before.service_uid}
            )
            key, now_s = (before.uid, edit.manager), self._clock()
            if is_due(told_at_s.get(key), now_s):
                await self._events.post(service, occurrence)
                told_at_s[key] = now_s

    def drop_memory(self, uid: ServiceUid) -> None:
        """The service is gone."""
        self._told_at_s.pop(uid, None)


def undone_edits(rendered: Manifest, *, before: StoredObject, after: StoredObject) -> list[Edit]:
    """Edits of others that the apply took back, sorted by manager; pure.

    What still differs was not taken back. What differed because another thing is rendered now
    counts only where somebody else had written it.
    """
    undone = drifted_paths(rendered, before.manifest) - drifted_paths(rendered, after.manifest)
    undone -= STATE_FIELDS.get(before.kind.kind, frozenset())
    if not undone:
        return []
    is_as_last = applied_hash(rendered) == applied_hash(before.manifest)
    entries = before.managed_fields
    fields: dict[str, list[str]] = {}
    for path in undone:
        others = managers_of(entries, path, before.manifest) - _OURS
        for manager in others or ({""} if is_as_last else ()):
            fields.setdefault(manager, []).append(path_text(path))
    return [Edit(manager=name, fields=tuple(sorted(fields[name]))) for name in sorted(fields)]


def is_due(last_s: float | None, now_s: float) -> bool:
    """Whether a field manager of an object is told of again; times in seconds; pure."""
    return last_s is None or now_s - last_s >= QUIET_S


def still_quiet(told_at_s: Mapping[Told, float], now_s: float) -> dict[Told, float]:
    """The moments that still count: objects come and go, and managers have any name; pure."""
    return {told: last_s for told, last_s in told_at_s.items() if not is_due(last_s, now_s)}


def occurrence_of(edit: Edit, edited: StoredObject) -> Occurrence:
    """The Event of one edit; pure. The object's version tells it from a later one."""
    named = ", ".join(edit.fields[:MAX_FIELDS])
    more = len(edit.fields) - MAX_FIELDS
    return Occurrence(
        is_warning=True,
        reason="EditUndone",
        message=f"{edit.manager or 'somebody'} changed {named}"
        f"{f' and {more} more' if more > 0 else ''} of {edited.kind.kind} {edited.name}, which the "
        "operator put right; change the InferenceService instead, or set spec.paused to have its "
        "objects left alone",
        identity=("EditUndone", edited.uid, str(edited.resource_version), edit.manager),
    )
