"""Owns repairing the store by LISTs: at start, then every few minutes and when the watch begins
anew; one task per kind.

Does not own the store's rules nor what a repair triggers: a `ServiceListener` is told. A LIST is
compared only after the watch had time to deliver the same news, so that whatever still differs
then was really missed by the watch. Optional kinds have no watch: their LISTs bring the news, and
tell whether the cluster has such a kind for us at all.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

from mizzen_operator.cluster.client import ClusterClient, VersionList
from mizzen_operator.cluster.failures import NotFoundError
from mizzen_operator.errors import ClusterError, ForbiddenError
from mizzen_operator.observed import Lack
from mizzen_operator.store import (
    OPTIONAL_KINDS,
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

    The first time the watch gets longer, counted from when it last brought anything: it reads
    whole objects, of a large fleet perhaps.
    """

    every_s: float = 300.0
    retry_s: float = 10.0
    first_settle_s: float = 60.0
    first_step_s: float = 0.5
    max_first_step_s: float = 5.0
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceListener:
    """Is told which services to look at."""

    changed: Callable[[ServiceUid], None]
    routine: Callable[[ServiceUid], None]
    """Nothing is known to have changed, but something unseen may have."""


class Resync:
    """Keeps the store true for some kinds."""

    def __init__(
        self,
        client: ClusterClient,
        store: Store,
        *,
        scope: Scope,
        listener: ServiceListener,
        clock: Callable[[], float],
        timing: ResyncTiming | None = None,
    ) -> None:
        self._client = client
        self._store = store
        self._scope = scope
        self._listener = listener
        self._clock = clock
        self.timing = timing or ResyncTiming()
        self.list_s: dict[ResourceKind, float] = {}
        """How long the last LIST of each kind took, until the store agreed with it."""
        self.num_repairs: dict[ResourceKind, int] = {}
        self._hurried: dict[ResourceKind, asyncio.Event] = {}

    async def repair(
        self, kind: ResourceKind, sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    ) -> int:
        """One LIST of a kind and what it takes to agree with it; the number of repairs."""
        began_s = self._clock()
        num_repairs = await self._repair(kind, sleep)
        self.list_s[kind] = self._clock() - began_s
        return num_repairs

    async def _repair(self, kind: ResourceKind, sleep: Callable[[float], Awaitable[None]]) -> int:
        if kind in OPTIONAL_KINDS:
            await self._look_at_optional(kind)
            return 0
        listed = await self._list(kind)
        if self._store.is_synced((kind,)):
            deadline_s = self._clock() + self.timing.settle_s
            while self._num_differences(kind, listed) and self._clock() < deadline_s:
                await sleep(self.timing.settle_step_s)
        else:
            listed = await self._await_watch(kind, listed, sleep)
        num_repairs = await self._make_agree(kind, listed)
        self._store.listed(kind, now_s=self._clock())
        self.num_repairs[kind] = self.num_repairs.get(kind, 0) + num_repairs
        return num_repairs

    async def _await_watch(
        self, kind: ResourceKind, listed: VersionList, sleep: Callable[[float], Awaitable[None]]
    ) -> VersionList:
        """Wait until the watch has read what there is, while it goes on reading; the last LIST.

        LISTs read meanwhile would take the time of the watch, which lives in the same process.
        """
        timing = self.timing
        deadline_s, step_s = self._clock() + timing.first_settle_s, timing.first_step_s
        num_missing = self._num_differences(kind, listed)
        while num_missing and self._clock() < deadline_s:
            await sleep(step_s)
            num_before, num_missing = num_missing, self._num_differences(kind, listed)
            if num_missing < num_before:
                deadline_s = self._clock() + timing.first_settle_s
            else:
                # Of what went between this LIST and the start of the watch no event tells.
                listed = await self._list(kind)
                num_missing = self._num_differences(kind, listed)
                step_s = min(2 * step_s, timing.max_first_step_s)
        return listed

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

    def hurry(self, kind: ResourceKind) -> None:
        """LIST `kind` at once: its watch began anew, which tells nothing of deletions meanwhile.

        Before the first LIST there is nothing that could have been missed.
        """
        if self._store.is_synced((kind,)):
            self._hurry_of(kind).set()

    def _hurry_of(self, kind: ResourceKind) -> asyncio.Event:
        return self._hurried.setdefault(kind, asyncio.Event())

    async def _rest(
        self, kind: ResourceKind, seconds: float, sleep: Callable[[float], Awaitable[None]]
    ) -> None:
        """Sleep until the next LIST is due or there is a hurry."""
        hurry = self._hurry_of(kind)
        ends = [asyncio.ensure_future(sleep(seconds)), asyncio.ensure_future(hurry.wait())]
        try:
            done, _ = await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for end in done:
                end.result()
        finally:
            hurry.clear()
            for end in ends:
                end.cancel()

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
                self._all_changed()
            await self._rest(kind, self.timing.every_s * (1.0 - 0.1 * jitter()), sleep)

    async def _look_at_optional(self, kind: ResourceKind) -> None:
        """Take in what there is of it; a failure stops nothing but what the kind is for."""
        try:
            listed = await self._list(kind)
            await self._make_agree(kind, listed)
        except NotFoundError:
            self._note(kind, Lack.NOT_INSTALLED)
        except ForbiddenError:
            self._note(kind, Lack.NOT_ALLOWED)
        except ClusterError:
            if not self._store.is_synced((kind,)):
                self._note(kind, Lack.NO_ANSWER)
            raise
        else:
            self._note(kind, None)

    def _note(self, kind: ResourceKind, lack: Lack | None) -> None:
        self._store.listed(kind, now_s=self._clock())
        if self._store.lacks(kind, lack):
            logger.info("%s: %s", kind, "there" if lack is None else lack.value)
            self._all_changed()

    def _all_changed(self) -> None:
        for uid in self._store.service_uids():
            self._listener.routine(uid)

    async def _list(self, kind: ResourceKind) -> VersionList:
        return await self._client.list_versions(
            kind,
            namespace=self._scope.namespace,
            label_selector=self._scope.selector_of(kind),
        )

    def _num_differences(self, kind: ResourceKind, listed: VersionList) -> int:
        diff = self._store.diff(kind, listed.items, list_version=listed.list_version)
        return len(diff.gone) + len(diff.outdated)

    async def _make_agree(self, kind: ResourceKind, listed: VersionList) -> int:
        diff = self._store.diff(kind, listed.items, list_version=listed.list_version)
        for gone in diff.gone:
            self._store.forget(gone.uid, at_version=listed.list_version)
            self._changed(gone)
        # One that cannot be read must not keep what was read of the others from being taken in.
        lives = await asyncio.gather(*map(self._live, diff.outdated), return_exceptions=True)
        failures: list[BaseException] = []
        for item, live in zip(diff.outdated, lives, strict=True):
            if isinstance(live, BaseException):
                failures.append(live)
                continue
            if live is None or live.uid != item.uid:
                gone_since = self._store.forget(item.uid, at_version=item.resource_version)
                if gone_since is not None:
                    self._changed(gone_since)
            if live is not None and self._store.observe(live):
                self._changed(live)
        if failures:
            raise failures[0]
        return len(diff.gone) + len(diff.outdated)

    async def _live(self, item: ObjectVersion) -> StoredObject | None:
        """The object that has this name now; None if there is none."""
        try:
            return stored_object(item.ref.kind, await self._client.get(item.ref))
        except NotFoundError:
            return None

    def _changed(self, changed: StoredObject) -> None:
        if changed.service_uid is not None:
            self._listener.changed(changed.service_uid)
