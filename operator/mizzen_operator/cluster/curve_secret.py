"""Owns the Secrets with services' CURVE keys: each made once, never read back, never logged.

Does not own their names, labels and owner (render does), when one goes (planner) nor mounting it.

Invariants: the key material leaves this module in the body of one POST only. State: the UID of
each service's present Secret as last confirmed; losing it costs one refused POST and one empty
patch.
"""

import base64
import logging
from collections.abc import Callable
from dataclasses import dataclass

import zmq

from mizzen_operator import worker_contract
from mizzen_operator.cluster.client import ClusterClient, Precondition
from mizzen_operator.cluster.failures import NotFoundError
from mizzen_operator.cluster.ownership import Ownership, ownership, require_ours
from mizzen_operator.errors import ConflictError
from mizzen_operator.store import Manifest, ObjectRef, ObjectUid, ServiceUid, StoredObject

logger = logging.getLogger(__name__)

RECHECK_EVERY_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmedSecret:
    """A Secret that existed at `confirmed_at_s`."""

    ref: ObjectRef
    uid: ObjectUid
    confirmed_at_s: float


class CurveSecrets:
    """Makes sure that each service has its Secret, without the right to read one."""

    def __init__(self, client: ClusterClient, *, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._confirmed: dict[ServiceUid, ConfirmedSecret] = {}

    async def ensure(
        self, service: StoredObject, ref: ObjectRef, rendered: Manifest, *, is_service_well: bool
    ) -> None:
        """Create the Secret if needed.

        While the service is well the last confirmation is trusted (a watch would need the right to
        read Secrets); otherwise it is renewed at most every RECHECK_EVERY_S.
        """
        key = ServiceUid(service.uid)
        known = self._confirmed.get(key)
        if known is not None and known.ref == ref:
            is_recent = self._clock() - known.confirmed_at_s < RECHECK_EVERY_S
            if is_service_well or is_recent:
                return
            if await self._is_still(ref, known.uid):
                self._confirm(key, ref, known.uid)
                return
        try:
            found = await self._client.create_unread(ref, {**rendered, "data": _new_keys()})
        except ConflictError:
            found = await self._client.touch_unread(ref, uid=None)
            require_ours(service, ref, found)
        else:
            logger.info("created %s", ref, extra={"service_uid": service.uid})
        self._confirm(key, ref, ObjectUid(found["metadata"]["uid"]))

    async def drop(self, service: StoredObject, ref: ObjectRef) -> None:
        """Delete a Secret whose keys nobody uses; one that is not the service's own is left."""
        known = self._confirmed.get(ServiceUid(service.uid))
        if known is not None and known.ref == ref:
            # Before the call, whose outcome may stay unknown: the same keys may be wanted again.
            self.drop_memory(ServiceUid(service.uid))
        try:
            found = await self._client.touch_unread(ref, uid=None)
            if ownership(found, service, ref.kind) is not Ownership.OURS:
                return
            await self._client.delete(ref, Precondition(uid=ObjectUid(found["metadata"]["uid"])))
        except NotFoundError:
            return
        logger.info("deleted %s: no pod uses its keys", ref, extra={"service_uid": service.uid})

    def drop_memory(self, uid: ServiceUid) -> None:
        """The service is gone; the garbage collector takes its Secrets."""
        self._confirmed.pop(uid, None)

    def _confirm(self, key: ServiceUid, ref: ObjectRef, uid: ObjectUid) -> None:
        self._confirmed[key] = ConfirmedSecret(ref=ref, uid=uid, confirmed_at_s=self._clock())

    async def _is_still(self, ref: ObjectRef, uid: ObjectUid) -> bool:
        try:
            await self._client.touch_unread(ref, uid=uid)
        except (NotFoundError, ConflictError):
            return False
        return True


def _new_keys() -> dict[str, str]:
    """Two fresh key pairs, Z85 text in base64 as a Secret's `data` wants it."""
    server_public, server_secret = zmq.curve_keypair()
    client_public, client_secret = zmq.curve_keypair()
    keys = {
        worker_contract.CURVE_SERVER_SECRET: server_secret,
        worker_contract.CURVE_SERVER_PUBLIC: server_public,
        worker_contract.CURVE_CLIENT_SECRET: client_secret,
        worker_contract.CURVE_CLIENT_PUBLIC: client_public,
    }
    return {name: base64.b64encode(value).decode() for name, value in keys.items()}
