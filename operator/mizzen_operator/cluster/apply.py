"""Owns bringing one object to its rendered form: create by POST, then apply to the known UID.

Does not own which objects are wanted, nor deleting those that are not (`prune.py`).

Invariants: an object that is not ours is never written; an object that is as rendered causes no
call. State: fields that the API server or a webhook keeps changing back are remembered per
object and hash, so that they are not fought over for ever; losing this memory costs one apply.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass

from mizzen_operator.cluster.client import ClusterClient, FieldManager, Precondition
from mizzen_operator.cluster.drift import applied_hash, drifted_fields
from mizzen_operator.cluster.ownership import Ownership, ownership
from mizzen_operator.errors import ConflictError, NameConflictError
from mizzen_operator.store import (
    Manifest,
    ObjectRef,
    ObjectUid,
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

    def __init__(self, client: ClusterClient, store: Store, *, clock: Callable[[], float]) -> None:
        self._client = client
        self._store = store
        self._clock = clock
        self._settled: dict[ObjectUid, SettledDrift] = {}

    async def bring_to(
        self, service: StoredObject, ref: ObjectRef, rendered: Manifest, known: StoredObject | None
    ) -> bool:
        """Create or apply if needed; True if something was written.

        `known` is the stored object of that name, if any. Raises NameConflictError when the name
        is taken by an object that is not ours, ConflictError when it is worth looking again.
        """
        if known is None:
            return await self._create(service, ref, rendered)
        self._require_ours(service, known.manifest, ref)
        if not self._needs_apply(known, rendered):
            return False
        await self._apply(known, rendered)
        return True

    def drop_memory(self, uid: ObjectUid) -> None:
        """The object is gone."""
        self._settled.pop(uid, None)

    async def _create(self, service: StoredObject, ref: ObjectRef, rendered: Manifest) -> bool:
        try:
            created = await self._client.create(ref, rendered)
        except ConflictError:
            return await self._meet_existing(service, ref, rendered)
        self._remember(stored_object(ref.kind, created), rendered)
        logger.info("created %s", ref, extra={"service_uid": service.uid})
        return True

    async def _meet_existing(
        self, service: StoredObject, ref: ObjectRef, rendered: Manifest
    ) -> bool:
        """The name is taken, but the store did not know: it is ours and new to us, or foreign."""
        live = stored_object(ref.kind, await self._client.get(ref))
        self._require_ours(service, live.manifest, ref)
        self._store.observe(live)
        if self._needs_apply(live, rendered):
            await self._apply(live, rendered)
        return True

    async def _apply(self, known: StoredObject, rendered: Manifest) -> None:
        applied = await self._client.apply(
            known.ref,
            rendered,
            manager=FieldManager.CONTROLLER,
            precondition=Precondition(uid=known.uid),
        )
        self._remember(stored_object(known.kind, applied), rendered)
        logger.info("applied %s", known.ref, extra={"service_uid": known.service_uid})

    def _needs_apply(self, known: StoredObject, rendered: Manifest) -> bool:
        wanted_hash = applied_hash(rendered)
        if applied_hash(known.manifest) != wanted_hash:
            return True
        settled = self._settled.get(known.uid)
        tolerated = (
            settled.fields
            if settled is not None and settled.applied_hash == wanted_hash
            else frozenset()
        )
        return bool(drifted_fields(rendered, known.manifest) - tolerated)

    def _remember(self, written: StoredObject, rendered: Manifest) -> None:
        self._store.wrote(written, now_s=self._clock())
        fields = drifted_fields(rendered, written.manifest)
        if fields:
            logger.warning(
                "%s keeps other values than applied in %s", written.ref, ", ".join(sorted(fields))
            )
            self._settled[written.uid] = SettledDrift(
                applied_hash=applied_hash(rendered), fields=fields
            )
        else:
            self._settled.pop(written.uid, None)

    def _require_ours(self, service: StoredObject, live: Manifest, ref: ObjectRef) -> None:
        whose = ownership(live, service)
        if whose is Ownership.FOREIGN:
            raise NameConflictError(kind=ref.kind.kind, name=ref.name)
        if whose is Ownership.REMNANT or "deletionTimestamp" in live["metadata"]:
            message = f"{ref} of an earlier life is still being deleted"
            raise ConflictError(message)
