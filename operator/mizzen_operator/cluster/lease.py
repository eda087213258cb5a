"""Owns the claim to be the one operator that writes: a Lease, renewed, fenced by a local clock.

Does not own what happens on loss; `main.py` ends the process.

Invariants: validity is counted on the monotonic clock from *before* the renewal was sent;
`require` refuses when less than the margin is left, and the margin exceeds the longest write.
A holder is judged by how long its record stayed unchanged here, never by its wall-clock stamp.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from mizzen_operator.cluster.failures import LeadershipLostError, NotFoundError
from mizzen_operator.errors import ClusterError, ConflictError
from mizzen_operator.store import Manifest, ObjectRef, ResourceKind

logger = logging.getLogger(__name__)

LEASE = ResourceKind(api_version="coordination.k8s.io/v1", kind="Lease", plural="leases")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTiming:
    """Seconds; `margin_s` must exceed the time-out of any write."""

    duration_s: float = 45.0
    renew_every_s: float = 5.0
    retry_every_s: float = 2.0
    margin_s: float = 15.0


class LeaseClient(Protocol):
    """The three calls on one Lease; none of them asks the fence."""

    async def read(self, ref: ObjectRef) -> Manifest:
        """The Lease, or NotFoundError."""

    async def create(self, ref: ObjectRef, manifest: Manifest) -> Manifest:
        """POST; ConflictError if somebody else was first."""

    async def replace(self, ref: ObjectRef, manifest: Manifest) -> Manifest:
        """PUT at the manifest's resourceVersion; ConflictError if it changed meanwhile."""


class Leadership:
    """Acquires and keeps one Lease for `identity`."""

    def __init__(
        self,
        client: LeaseClient,
        ref: ObjectRef,
        *,
        identity: str,
        clock: Callable[[], float],
        now: Callable[[], datetime],
        timing: LeaseTiming | None = None,
    ) -> None:
        self._client = client
        self._ref = ref
        self._identity = identity
        self._clock = clock
        self._now = now
        self.timing = timing or LeaseTiming()
        self._held: Manifest | None = None
        self._valid_until_s = float("-inf")
        self._seen_version = ""
        self._seen_at_s = float("-inf")

    @property
    def is_held(self) -> bool:
        """Whether the Lease is ours and still valid, margin apart."""
        return self._held is not None and self._clock() < self._valid_until_s

    def require(self) -> None:
        """Raise LeadershipLostError unless a write that starts now ends while we still lead."""
        left_s = self._valid_until_s - self._clock()
        if self._held is None or left_s < self.timing.margin_s:
            message = (
                f"Lease {self._ref.namespace}/{self._ref.name} has {max(left_s, 0):.1f} s left,"
                f" a write needs {self.timing.margin_s:.0f} s"
            )
            raise LeadershipLostError(message)

    async def acquire(self, sleep: Callable[[float], Any] = asyncio.sleep) -> None:
        """Wait, as a standby, until the Lease is ours. Unreachable servers only prolong it."""
        said = ""
        while True:
            try:
                if await self.try_acquire():
                    return
            except ClusterError as error:
                # A standby has nothing to lose: it asks again, and says each new reason once.
                if str(error) != said:
                    logger.warning("cannot ask for the Lease yet: %s", error)
                said = str(error)
            await sleep(self.timing.retry_every_s)

    async def try_acquire(self) -> bool:
        """One attempt; True if the Lease is ours now."""
        started_s = self._clock()
        try:
            current = await self._client.read(self._ref)
        except NotFoundError:
            return await self._take(None, started_s)
        spec = current.get("spec") or {}
        holder = spec.get("holderIdentity") or ""
        if holder in ("", self._identity) or self._is_abandoned(current, spec):
            return await self._take(current, started_s)
        return False

    async def keep(self, sleep: Callable[[float], Any] = asyncio.sleep) -> None:
        """Renew for ever; raises LeadershipLostError when the Lease is lost or runs out."""
        delay_s = self.timing.renew_every_s
        while True:
            await sleep(delay_s)
            is_renewed = await self.renew()
            delay_s = self.timing.renew_every_s if is_renewed else self.timing.retry_every_s

    async def renew(self) -> bool:
        """Renew once; a call without answer is forgiven (False) while validity exceeds the margin.

        A conflict is looked into: it may be an own renewal whose answer was lost.
        """
        started_s = self._clock()
        try:
            if await self._take(self._held, started_s) or await self.try_acquire():
                return True
        except ClusterError:
            self.require()
            return False
        self._held = None
        message = f"Lease {self._ref.namespace}/{self._ref.name} was taken by somebody else"
        raise LeadershipLostError(message)

    async def release(self) -> None:
        """Hand over at once to a standby; for a graceful end, after the last write."""
        held, self._held = self._held, None
        if held is None:
            return
        spec = {**held["spec"], "holderIdentity": "", "leaseDurationSeconds": 1}
        try:
            await self._client.replace(self._ref, {**held, "spec": spec})
        except ClusterError as error:
            logger.warning("a standby has to wait until the Lease runs out: %s", error)

    async def _take(self, current: Manifest | None, started_s: float) -> bool:
        try:
            if current is None:
                self._held = await self._client.create(self._ref, self._record(None))
            else:
                self._held = await self._client.replace(self._ref, self._record(current))
        except ConflictError:
            return False
        self._valid_until_s = started_s + self.timing.duration_s
        return True

    def _is_abandoned(self, current: Manifest, spec: Mapping[str, Any]) -> bool:
        version = current["metadata"]["resourceVersion"]
        if version != self._seen_version:
            self._seen_version, self._seen_at_s = version, self._clock()
        duration_s = float(spec.get("leaseDurationSeconds") or self.timing.duration_s)
        return self._clock() - self._seen_at_s > duration_s

    def _record(self, current: Manifest | None) -> Manifest:
        stamp = self._now().strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        old = (current or {}).get("spec") or {}
        is_ours = old.get("holderIdentity") == self._identity
        num_changes = int(old.get("leaseTransitions") or 0)
        metadata = {"name": self._ref.name, "namespace": self._ref.namespace}
        return {
            "apiVersion": LEASE.api_version,
            "kind": LEASE.kind,
            "metadata": metadata if current is None else current["metadata"],
            "spec": {
                "holderIdentity": self._identity,
                "leaseDurationSeconds": int(self.timing.duration_s),
                "acquireTime": old.get("acquireTime", stamp) if is_ours else stamp,
                "renewTime": stamp,
                "leaseTransitions": num_changes if is_ours or current is None else num_changes + 1,
            },
        }


def loss_in(error: BaseException) -> LeadershipLostError | None:
    """The loss of the Lease inside an error or a group of errors, if it is there."""
    if isinstance(error, LeadershipLostError):
        return error
    if isinstance(error, BaseExceptionGroup):
        found = (loss_in(inner) for inner in error.exceptions)
        return next((lost for lost in found if lost is not None), None)
    return None
