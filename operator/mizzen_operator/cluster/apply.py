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
from mizzen_operator.cluster.ownership import require_ours
from mizzen_operator.errors import ConflictError
from mizzen_operator.store import (
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

    def __init__(self, client: ClusterClient, store: Store, *, clock: Callable[[], float]) -> None:
        self._client = client
        self._store = store
        self._clock = clock
        self._settled: dict[ServiceUid | None, dict[ObjectUid, SettledDrift]] = {}

    async def bring_to(
        self, service: StoredObject, ref: ObjectRef, rendered: Manifest, known: StoredObject | None
    ) -> None:
        """Create or apply if needed.

        `known` is the stored object of that name, if any. Raises NameConflictError when the name
        is taken by an object that is not ours, ConflictError when it is worth looking again.
        """
        if known is None:
            await self._create(service, ref, rendered)
        else:
            require_ours(service, ref, known.manifest)
            await self._apply_if_needed(known, rendered)

    def drop_memory(self, uid: ServiceUid) -> None:
        """The service is gone, and its objects with it."""
        self._settled.pop(uid, None)

    async def _create(self, service: StoredObject, ref: ObjectRef, rendered: Manifest) -> None:
        try:
            created = await self._client.create(ref, rendered)
        except ConflictError:
            # The name is taken, but the store did not know: it is ours and new to us, or foreign.
            live = stored_object(ref.kind, await self._client.get(ref))
            require_ours(service, ref, live.manifest)
            self._store.observe(live)
            await self._apply_if_needed(live, rendered)
        else:
            self._remember(stored_object(ref.kind, created), rendered)
            logger.info("created %s", ref, extra={"service_uid": service.uid})

    async def _apply_if_needed(self, known: StoredObject, rendered: Manifest) -> None:
        if not self._needs_apply(known, rendered):
            return
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
