import asyncio
import copy
from datetime import UTC, datetime

import pytest

from mizzen_operator.cluster.failures import LeadershipLostError, NotFoundError
from mizzen_operator.cluster.lease import LEASE, Leadership, LeaseTiming
from mizzen_operator.errors import ConflictError, UnavailableError
from mizzen_operator.store import ObjectRef

REF = ObjectRef(kind=LEASE, namespace="mizzen", name="mizzen-operator")
TIMING = LeaseTiming(duration_s=45, renew_every_s=5, retry_every_s=2, margin_s=15)


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s

    async def sleep(self, seconds: float) -> None:
        self.now_s += seconds


class Leases:
    """One Lease on an API server that may be away, or lose its answer after the write."""

    def __init__(self) -> None:
        self.lease = None
        self.version = 0
        self.is_away = False
        self.loses_answer = False

    async def read(self, ref):
        self._answer()
        if self.lease is None:
            raise NotFoundError("no Lease")
        return copy.deepcopy(self.lease)

    async def create(self, ref, manifest):
        self._answer()
        if self.lease is not None:
            raise ConflictError("exists")
        return self._store(manifest)

    async def replace(self, ref, manifest):
        self._answer()
        if manifest["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise ConflictError("changed")
        stored = self._store(manifest)
        if self.loses_answer:
            self.loses_answer = False
            raise UnavailableError("no answer")
        return stored

    def _answer(self) -> None:
        if self.is_away:
            raise UnavailableError("away")

    def _store(self, manifest):
        self.version += 1
        self.lease = copy.deepcopy(dict(manifest))
        self.lease["metadata"] = {**manifest["metadata"], "resourceVersion": str(self.version)}
        return copy.deepcopy(self.lease)


def leadership(leases: Leases, clock: Clock, identity: str = "a") -> Leadership:
    return Leadership(
        leases,
        REF,
        identity=identity,
        clock=clock,
        now=lambda: datetime(2026, 1, 1, tzinfo=UTC),
        timing=TIMING,
    )


def test_row_40_only_one_of_two_leads_and_the_other_takes_over_after_the_duration() -> None:
    async def scenario() -> None:
        leases, clock = Leases(), Clock()
        first, second = leadership(leases, clock), leadership(leases, clock, "b")
        assert await first.try_acquire()
        assert not await second.try_acquire()
        started_s = clock.now_s
        await second.acquire(clock.sleep)
        assert clock.now_s - started_s > TIMING.duration_s
        assert not first.is_held
        with pytest.raises(LeadershipLostError):
            await first.renew()
        assert leases.lease["spec"]["leaseTransitions"] == 1

    asyncio.run(scenario())


def test_a_renewing_holder_is_never_displaced() -> None:
    async def scenario() -> None:
        leases, clock = Leases(), Clock()
        first, second = leadership(leases, clock), leadership(leases, clock, "b")
        await first.try_acquire()
        for _ in range(100):
            clock.now_s += TIMING.renew_every_s
            assert await first.renew()
            assert not await second.try_acquire()

    asyncio.run(scenario())


def test_a_restart_with_the_same_identity_resumes_at_once() -> None:
    async def scenario() -> None:
        leases, clock = Leases(), Clock()
        await leadership(leases, clock).try_acquire()
        assert await leadership(leases, clock).try_acquire()
        assert leases.lease["spec"]["leaseTransitions"] == 0

    asyncio.run(scenario())


def test_a_standby_says_once_why_it_cannot_ask(caplog: pytest.LogCaptureFixture) -> None:
    async def scenario() -> None:
        leases, clock = Leases(), Clock()
        leases.is_away = True

        async def sleep(seconds: float) -> None:
            await clock.sleep(seconds)
            leases.is_away = clock.now_s < 1010

        await leadership(leases, clock).acquire(sleep)

    asyncio.run(scenario())
    assert [record.getMessage() for record in caplog.records] == [
        "cannot ask for the Lease yet: away"
    ]


def test_release_lets_a_standby_in_at_once() -> None:
    async def scenario() -> None:
        leases, clock = Leases(), Clock()
        first = leadership(leases, clock)
        await first.try_acquire()
        await first.release()
        assert await leadership(leases, clock, "b").try_acquire()
        with pytest.raises(LeadershipLostError):
            first.require()

    asyncio.run(scenario())


def test_row_40_writes_are_refused_once_less_than_the_margin_is_left() -> None:
    async def scenario() -> None:
        leases, clock = Leases(), Clock()
        holder = leadership(leases, clock)
        with pytest.raises(LeadershipLostError, match=r"0\.0 s left, a write needs 15 s"):
            holder.require()
        await holder.try_acquire()
        clock.now_s += TIMING.duration_s - TIMING.margin_s
        holder.require()
        clock.now_s += 0.1
        with pytest.raises(LeadershipLostError):
            holder.require()

    asyncio.run(scenario())


def test_a_silent_server_is_forgiven_until_the_margin_then_the_lease_is_lost() -> None:
    async def scenario() -> None:
        leases, clock = Leases(), Clock()
        holder = leadership(leases, clock)
        await holder.try_acquire()
        acquired_s = clock.now_s
        leases.is_away = True
        with pytest.raises(LeadershipLostError):
            await holder.keep(clock.sleep)
        assert TIMING.duration_s - TIMING.margin_s < clock.now_s - acquired_s < TIMING.duration_s

    asyncio.run(scenario())


def test_validity_counts_from_before_the_renewal_was_sent() -> None:
    async def scenario() -> None:
        leases, clock = Leases(), Clock()
        holder = leadership(leases, clock)
        answer = leases.create

        async def slow(ref, manifest):
            clock.now_s += TIMING.duration_s - TIMING.margin_s + 1
            return await answer(ref, manifest)

        leases.create = slow
        assert await holder.try_acquire()
        with pytest.raises(LeadershipLostError):
            holder.require()

    asyncio.run(scenario())


def test_an_own_renewal_whose_answer_was_lost_is_recognised() -> None:
    async def scenario() -> None:
        leases, clock = Leases(), Clock()
        holder = leadership(leases, clock)
        await holder.try_acquire()
        leases.loses_answer = True
        assert not await holder.renew()
        assert await holder.renew()

    asyncio.run(scenario())
