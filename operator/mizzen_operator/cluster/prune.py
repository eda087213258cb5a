"""Owns deleting what the plan names, after a last live look.

Does not own the decision what goes, nor what a deletion must wait for (planner).

Invariant: a deletion happens only to the very object and version that the plan was made from; it
carries both as preconditions.
"""

import logging
from collections.abc import Callable

from mizzen_operator.cluster.client import ClusterClient, Precondition
from mizzen_operator.cluster.failures import NotFoundError
from mizzen_operator.errors import ConflictError
from mizzen_operator.planner.model import Delete
from mizzen_operator.store import (
    ObjectRef,
    ObjectUid,
    Store,
    StoredObject,
    kind_named,
    stored_object,
)

logger = logging.getLogger(__name__)


class Pruner:
    """Carries out planned deletions."""

    def __init__(self, client: ClusterClient, store: Store, *, clock: Callable[[], float]) -> None:
        self._client = client
        self._store = store
        self._clock = clock

    async def delete(self, planned: Delete) -> None:
        """Delete one object that is not gone, nor going that soon; ConflictError if it changed."""
        kind = kind_named(planned.api_version, planned.kind)
        ref = ObjectRef(kind=kind, namespace=planned.namespace, name=planned.name)
        uid, version = ObjectUid(planned.uid), int(planned.resource_version)
        try:
            live = stored_object(kind, await self._client.get(ref))
        except NotFoundError:
            self._store.forget(uid, at_version=version)
            return
        self._store.observe(live)
        if live.uid != uid:
            self._store.forget(uid, at_version=live.resource_version)
            return
        if live.is_being_deleted and not _is_hastened(live, planned.grace_s):
            return
        if live.resource_version != version:
            message = f"{ref} changed since its deletion was planned"
            raise ConflictError(message)
        await self._delete(live, planned.grace_s)
        logger.info("deleted %s: %s", ref, planned.reason, extra={"service_uid": live.service_uid})

    async def _delete(self, live: StoredObject, grace_s: int | None) -> None:
        precondition = Precondition(uid=live.uid, resource_version=live.resource_version)
        try:
            lingering = await self._client.delete(live.ref, precondition, grace_s=grace_s)
        except NotFoundError:
            lingering = None
        if lingering is None:
            self._store.forget(live.uid, at_version=live.resource_version)
        else:
            self._store.wrote(stored_object(live.kind, lingering), now_s=self._clock())


def _is_hastened(live: StoredObject, grace_s: int | None) -> bool:
    """Whether an end that was begun would come sooner if it were asked for with this grace."""
    granted_s = live.manifest["metadata"].get("deletionGracePeriodSeconds")
    return grace_s is not None and granted_s is not None and grace_s < granted_s
