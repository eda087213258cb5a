"""Owns knowing which namespaces another installation serves, so that two never serve one.

Does not own leaving them alone (`main`). An operator of one namespace holds its Lease there, under
the name that all installations use; one of the whole cluster looks for such Leases.

Invariants: as with our own Lease, a holder is judged by how long its record stayed unchanged here,
never by its wall-clock stamp; one seen for the first time counts as living. While the API server
does not answer, nothing is forgotten.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from typing import Any, Protocol

from mizzen_operator.cluster.lease import LEASE
from mizzen_operator.cluster.request import Request
from mizzen_operator.errors import ClusterError
from mizzen_operator.store import Manifest, ObjectRef

logger = logging.getLogger(__name__)

LOOK_EVERY_S = 10.0
DEFAULT_DURATION_S = 45.0


class Caller(Protocol):
    """What answers a request with JSON; may raise a `ClusterError`."""

    async def call(self, request: Request) -> dict[str, Any]:
        """The answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SeenLease:
    """The Lease of one namespace as last seen to change."""

    record: tuple[str, str]
    """Holder and stamp."""
    at_s: float
    duration_s: float

    def is_alive(self, now_s: float) -> bool:
        """Whether its holder may still be at work."""
        return bool(self.record[0]) and now_s - self.at_s < self.duration_s


class ServedElsewhere:
    """Namespaces that another installation serves."""

    def __init__(
        self,
        client: Caller,
        own: ObjectRef,
        *,
        clock: Callable[[], float],
        on_change: Callable[[], None],
    ) -> None:
        self._client = client
        self._own = own
        self._clock = clock
        self._on_change = on_change
        self._seen: dict[str, SeenLease] = {}
        self.namespaces: frozenset[str] = frozenset()

    async def look(self) -> None:
        """List the Leases once and take in what changed."""
        request = Request(
            verb="list",
            resource=str(LEASE),
            method="GET",
            path=LEASE.path(namespace=None),
            # Also what the right is limited to: other Leases cannot be listed.
            query=(("fieldSelector", f"metadata.name={self._own.name}"),),
        )
        try:
            found = (await self._client.call(request))["items"] or ()
        except ClusterError as error:
            logger.warning("cannot look for operators of single namespaces: %s", error)
            return
        now_s = self._clock()
        self._seen = {item["metadata"]["namespace"]: self._take_in(item, now_s) for item in found}
        self._seen.pop(self._own.namespace, None)
        alive = frozenset(name for name, seen in self._seen.items() if seen.is_alive(now_s))
        if alive == self.namespaces:
            return
        self._say(alive - self.namespaces, "is served by an operator of its own: left to that")
        self._say(self.namespaces - alive, "has no operator of its own any more: served from here")
        self.namespaces = alive
        self._on_change()

    async def keep_looking(self, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep) -> None:
        """Look again for ever."""
        while True:
            await sleep(LOOK_EVERY_S)
            await self.look()

    def _take_in(self, lease: Manifest, now_s: float) -> SeenLease:
        spec = lease.get("spec") or {}
        record = (spec.get("holderIdentity") or "", spec.get("renewTime") or "")
        known = self._seen.get(lease["metadata"]["namespace"])
        if known is not None and known.record == record:
            return known
        duration_s = float(spec.get("leaseDurationSeconds") or DEFAULT_DURATION_S)
        return SeenLease(record=record, at_s=now_s, duration_s=duration_s)

    def _say(self, names: Iterable[str], what: str) -> None:
        for name in sorted(names):
            logger.warning("namespace %s %s", name, what)
