"""Owns bringing one object to its rendered form: create by POST, then apply to the known UID.

Does not own which objects are wanted, nor deleting those that are not (`prune.py`).

Invariants: an object that is not ours is never written; an object that is as rendered causes no
call; state that an object carries (a group's epoch, a role's scale) is never written over from an
older reading, so that what somebody else writes meanwhile is never taken back. State: fields that
the API server or a webhook keeps changing back are remembered per object and hash, so that they are
not fought over for ever; losing this memory costs one apply.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from mizzen_operator.cluster.client import ClusterClient, Precondition, manager_of
from mizzen_operator.cluster.drift import applied_hash, drifted_fields
from mizzen_operator.cluster.failures import NotFoundError
from mizzen_operator.cluster.field_ownership import as_applied
from mizzen_operator.cluster.ownership import require_ours
from mizzen_operator.cluster.undone_edits import STATE_FIELDS, UndoneEdits
from mizzen_operator.errors import ConflictError, RejectedError
from mizzen_operator.planner.scale import with_live_scale
from mizzen_operator.store import (
    ROLE_SCALER,
    Manifest,
    ObjectRef,
    ObjectUid,
    ServiceUid,
    Store,
    StoredObject,
    stored_object,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledDrift:
    """Fields of one object that stay different after an apply of this hash."""

    applied_hash: str
    fields: frozenset[str]


class Applier:
    """Creates and applies children of services."""

    def __init__(
        self,
        client: ClusterClient,
        store: Store,
        undone_edits: UndoneEdits,
        *,
        clock: Callable[[], float],
    ) -> None:
        self._client = client
        self._store = store
        self._undone_edits = undone_edits
        self._clock = clock
        self._settled: dict[ServiceUid | None, dict[ObjectUid, SettledDrift]] = {}

    async def bring_to(
        self, service: StoredObject, ref: ObjectRef, rendered: Manifest, known: StoredObject | None
    ) -> None:
        """Create or apply if needed.

        `known` is the stored object of that name, if any. Raises NameConflictError when the name
        is taken by an object that is not ours, LingeringError while it is by one that is going,
        ConflictError when it is worth looking again.
        """
        if known is None:
            await self._create(service, ref, rendered)
        else:
            require_ours(service, ref, known.manifest)
            await self._apply_if_needed(service, known, rendered)

    async def look_again(self, known: StoredObject) -> None:
        """Bring the store up to date on an object of a kind that nothing watches."""
        try:
            live = stored_object(known.kind, await self._client.get(known.ref))
        except NotFoundError:
            live = None
        if live is None or live.uid != known.uid:
            self._store.forget(known.uid, at_version=known.resource_version)
        if live is not None:
            self._store.observe(live)

    def drop_memory(self, uid: ServiceUid) -> None:
        """The service is gone, and its objects with it."""
        self._settled.pop(uid, None)
        self._undone_edits.drop_memory(uid)

    async def _create(self, service: StoredObject, ref: ObjectRef, rendered: Manifest) -> None:
        try:
            created = await self._client.create(ref, rendered)
        except ConflictError:
            # The name is taken, but the store did not know: it is ours and new to us, or foreign.
            live = stored_object(ref.kind, await self._client.get(ref))
            require_ours(service, ref, live.manifest)
            self._store.observe(live)
            if ref.kind.kind in STATE_FIELDS:
                # It was rendered as a new one, without what this one remembers.
                raise
            await self._apply_if_needed(service, live, rendered)
        else:
            self._remember(stored_object(ref.kind, created), rendered)
            logger.info("created %s", ref, extra={"service_uid": service.uid})

    async def _apply_if_needed(
        self, service: StoredObject, known: StoredObject, rendered: Manifest
    ) -> None:
        if known.kind == ROLE_SCALER:
            rendered = with_live_scale(rendered, known.manifest)
        if not self._needs_apply(known, rendered):
            return
        live = await self._own(known)
        try:
            written = await self._send(live, rendered)
        except RejectedError:
            # What others added to a list may not go together with what we apply to it.
            taken_back = await self._take_back(live, rendered)
            if taken_back is None:
                raise
            written = taken_back
        else:
            if drifted_fields(rendered, written.manifest):
                written = await self._take_back(written, rendered) or written
        self._remember(written, rendered)
        logger.info("applied %s", known.ref, extra={"service_uid": known.service_uid})
        await self._undone_edits.tell(service, rendered, before=known, after=written)

    async def _take_back(self, live: StoredObject, rendered: Manifest) -> StoredObject | None:
        """Apply as the only owner of the object; None if nobody else owns a field of it."""
        owned = await self._own(live, with_others=True)
        if owned is live:
            return None
        logger.warning("taking back %s, which somebody else changed", live.ref)
        return await self._send(owned, rendered)

    async def _own(self, live: StoredObject, *, with_others: bool = False) -> StoredObject:
        """The object with its fields counted as applied by us; the same one if they are."""
        try:
            return await self._own_at_version(live, with_others=with_others)
        except ConflictError:
            if live.kind.kind in STATE_FIELDS:
                raise
            # Its controller writes a status right after each change: look once more.
            newer = stored_object(live.kind, await self._client.get(live.ref))
            if newer.uid != live.uid:
                raise
            return await self._own_at_version(newer, with_others=with_others)

    async def _own_at_version(self, live: StoredObject, *, with_others: bool) -> StoredObject:
        manager = manager_of(live.kind)
        fields = as_applied(live.managed_fields, manager=manager, with_others=with_others)
        if fields is None:
            return live
        precondition = Precondition(uid=live.uid, resource_version=live.resource_version)
        return stored_object(live.kind, await self._client.own(live.ref, fields, precondition))

    async def _send(self, live: StoredObject, rendered: Manifest) -> StoredObject:
        version = live.resource_version if live.kind.kind in STATE_FIELDS else None
        applied = await self._client.apply(
            live.ref,
            rendered,
            manager=manager_of(live.kind),
            precondition=Precondition(uid=live.uid, resource_version=version),
        )
        return stored_object(live.kind, applied)

    def _needs_apply(self, known: StoredObject, rendered: Manifest) -> bool:
        wanted_hash = applied_hash(rendered)
        if applied_hash(known.manifest) != wanted_hash:
            return True
        settled = self._settled.get(known.service_uid, {}).get(known.uid)
        tolerated = (
            settled.fields
            if settled is not None and settled.applied_hash == wanted_hash
            else frozenset()
        )
        return bool(drifted_fields(rendered, known.manifest) - tolerated)

    def _remember(self, written: StoredObject, rendered: Manifest) -> None:
        self._store.wrote(written, now_s=self._clock())
        fields = drifted_fields(rendered, written.manifest)
        settled = self._settled.setdefault(written.service_uid, {})
        if fields:
            logger.warning(
                "%s keeps other values than applied in %s", written.ref, ", ".join(sorted(fields))
            )
            settled[written.uid] = SettledDrift(applied_hash=applied_hash(rendered), fields=fields)
        else:
            settled.pop(written.uid, None)
