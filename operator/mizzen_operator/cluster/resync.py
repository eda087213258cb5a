"""Owns repairing the store by LISTs: at start and then every few minutes, one task per kind.

Does not own the store's rules nor what a repair triggers: changed services are handed to a
callback. A LIST is compared only after the watch had time to deliver the same news, so that
whatever still differs then was really missed by the watch.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from mizzen_operator.cluster.client import ClusterClient, VersionList
from mizzen_operator.cluster.failures import NotFoundError
from mizzen_operator.errors import ClusterError
from mizzen_operator.store import (
    SERVICE_KIND,
    ObjectVersion,
    ResourceKind,
    ServiceUid,
    Store,
    StoredObject,
    stored_object,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResyncTiming:
    """Seconds between LISTs (less up to a tenth), after a failed one, and for the watch.

    The first time the watch gets longer: it reads whole objects, of a large fleet perhaps.
    """

    every_s: float = 300.0
    retry_s: float = 10.0
    first_settle_s: float = 60.0
    first_step_s: float = 0.5
    settle_s: float = 5.0
    settle_step_s: float = 0.1

    @property
    def max_age_s(self) -> float:
        """Age of the last LIST at which two were missed."""
        return 2 * (self.every_s + self.retry_s) + self.settle_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Scope:
    """Which objects are looked at."""

    namespace: str | None
    """None: the whole cluster."""
    child_label_selector: str

    def selector_of(self, kind: ResourceKind) -> str | None:
        """Label selector for a kind; services themselves carry no label of ours."""
        return None if kind == SERVICE_KIND else self.child_label_selector


class Resync:
    """Keeps the store true for some kinds."""

    def __init__(
        self,
        client: ClusterClient,
        store: Store,
        *,
        scope: Scope,
        on_change: Callable[[ServiceUid], None],
        clock: Callable[[], float],
        timing: ResyncTiming | None = None,
    ) -> None:
        self._client = client
        self._store = store
        self._scope = scope
        self._on_change = on_change
        self._clock = clock
        self.timing = timing or ResyncTiming()
        self.num_repairs: dict[ResourceKind, int] = {}

    async def repair(
        self, kind: ResourceKind, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> int:
        """One LIST of a kind and what it takes to agree with it; the number of repairs."""
        is_first = not self._store.is_synced((kind,))
        settle_s = self.timing.first_settle_s if is_first else self.timing.settle_s
        deadline_s = self._clock() + settle_s
        listed = await self._list(kind)
        while not self._agrees(kind, listed) and self._clock() < deadline_s:
            if is_first:
                # Of what went between this LIST and the start of the watch no event tells.
                await sleep(self.timing.first_step_s)
                listed = await self._list(kind)
            else:
                await sleep(self.timing.settle_step_s)
        num_repairs = await self._make_agree(kind, listed)
        self._store.listed(kind, now_s=self._clock())
        self.num_repairs[kind] = self.num_repairs.get(kind, 0) + num_repairs
        return num_repairs

    async def keep(
        self,
        kinds: Sequence[ResourceKind],
        *,
        jitter: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Repair every kind now and then for ever; failures are logged and tried again soon."""
        async with asyncio.TaskGroup() as tasks:
            for kind in kinds:
                tasks.create_task(self._keep_one(kind, jitter, sleep))

    async def _keep_one(
        self,
        kind: ResourceKind,
        jitter: Callable[[], float],
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        is_first = True
        while True:
            try:
                num_repairs = await self.repair(kind, sleep)
            except ClusterError as error:
                logger.warning("LIST of %s failed: %s", kind, error)
                await sleep(self.timing.retry_s)
                continue
            if num_repairs and not is_first:
                logger.warning("the watch of %s had missed %d changes", kind, num_repairs)
            is_first = False
            if kind == SERVICE_KIND:
                # What nothing watches (claims, foreign objects) is looked at again now.
                for uid in self._store.service_uids():
                    self._on_change(uid)
            await sleep(self.timing.every_s * (1.0 - 0.1 * jitter()))

    async def _list(self, kind: ResourceKind) -> VersionList:
        return await self._client.list_versions(
            kind,
            namespace=self._scope.namespace,
            label_selector=self._scope.selector_of(kind),
        )

    def _agrees(self, kind: ResourceKind, listed: VersionList) -> bool:
        diff = self._store.diff(kind, listed.items, list_version=listed.list_version)
        return not diff.gone and not diff.outdated

    async def _make_agree(self, kind: ResourceKind, listed: VersionList) -> int:
        diff = self._store.diff(kind, listed.items, list_version=listed.list_version)
        for gone in diff.gone:
            self._store.forget(gone.uid, at_version=listed.list_version)
            self._changed(gone)
        for item in diff.outdated:
            live = await self._live(item)
            if live is None or live.uid != item.uid:
                gone_since = self._store.forget(item.uid, at_version=item.resource_version)
                if gone_since is not None:
                    self._changed(gone_since)
            if live is not None and self._store.observe(live):
                self._changed(live)
        return len(diff.gone) + len(diff.outdated)

    async def _live(self, item: ObjectVersion) -> StoredObject | None:
        """The object that has this name now; None if there is none."""
        try:
            return stored_object(item.ref.kind, await self._client.get(item.ref))
        except NotFoundError:
            return None

    def _changed(self, changed: StoredObject) -> None:
        if changed.service_uid is not None:
            self._on_change(changed.service_uid)
