import asyncio
from functools import partial
from typing import Any

import pytest
from tests.operator.fake_cluster import Call, FakeCluster

from mizzen_operator.cluster.failures import NotFoundError
from mizzen_operator.cluster.resync import Resync, ResyncTiming, Scope, ServiceListener
from mizzen_operator.errors import ClusterError, ForbiddenError, ThrottledError, UnavailableError
from mizzen_operator.observed import Lack
from mizzen_operator.render.labels import SERVICE_UID
from mizzen_operator.store import (
    CHILD_SELECTOR,
    OPTIONAL_KINDS,
    POD,
    SERVICE_KIND,
    ResourceKind,
    ServiceUid,
    Store,
    stored_object,
)

OPTIONAL = OPTIONAL_KINDS[1]


class World:
    """A cluster with pods, a store that no watch feeds, and a clock that sleeping moves."""

    def __init__(self) -> None:
        self.cluster = FakeCluster()
        self.store = Store()
        self.now_s = 100.0
        self.changed: list[str] = []
        self.slept_s: list[float] = []
        self.while_sleeping: list[Any] = []
        self.resync = Resync(
            self.cluster,
            self.store,
            scope=Scope(namespace=None, child_label_selector=CHILD_SELECTOR),
            listener=ServiceListener(changed=self.changed.append, routine=self.changed.append),
            clock=lambda: self.now_s,
            timing=ResyncTiming(every_s=300, retry_s=10, first_settle_s=60, settle_s=5),
        )

    async def sleep(self, seconds: float) -> None:
        self.slept_s.append(seconds)
        self.now_s += seconds
        if self.while_sleeping:
            self.while_sleeping.pop(0)()

    def put_pod(self, name: str, service: str = "s1") -> dict[str, Any]:
        labels = {SERVICE_UID: service}
        return self.cluster.put(
            POD, {"kind": "Pod", "metadata": {"name": name, "namespace": "ns", "labels": labels}}
        )

    def put_optional(self, name: str) -> dict[str, Any]:
        metadata = {"name": name, "namespace": "ns", "labels": {SERVICE_UID: "s1"}}
        return self.cluster.put(OPTIONAL, {"kind": OPTIONAL.kind, "metadata": metadata})

    def put_service(self) -> str:
        service = {"metadata": {"name": "x", "namespace": "ns"}}
        created = stored_object(SERVICE_KIND, self.cluster.put(SERVICE_KIND, service))
        self.store.observe(created)
        return created.uid

    def fail(self, error: type[ClusterError] | None) -> None:
        """What the API server says from now on."""

        def before(call: Call) -> None:
            if error is not None:
                raise error("so it is")

        self.cluster.before = before

    def repair(self, kind: ResourceKind = POD) -> int:
        return asyncio.run(self.resync.repair(kind, self.sleep))


def test_what_the_watch_missed_is_read_and_its_service_told() -> None:
    world = World()
    world.put_pod("a")
    began_s = world.now_s
    assert world.repair() == 1
    assert world.now_s - began_s >= 60
    assert world.changed == ["s1"]
    assert world.store.num_objects(POD) == 1
    assert world.store.is_synced((POD,))


def test_what_went_before_the_watch_began_does_not_delay_the_start() -> None:
    world = World()
    world.put_pod("a")
    world.while_sleeping = [lambda: world.cluster.remove(world.cluster.refs(POD)[0])]
    assert world.repair() == 0
    assert len(world.slept_s) == 1


def test_while_the_watch_reads_a_large_fleet_it_is_left_in_peace() -> None:
    """However long it takes: each LIST would delay it, and a GET for each object even more."""
    world = World()
    pods = [world.put_pod(f"p{index}") for index in range(300)]

    def deliver(pod: dict[str, Any]) -> None:
        world.store.observe(stored_object(POD, pod))

    world.while_sleeping = [partial(deliver, pod) for pod in pods]
    assert world.repair() == 0
    assert sum(world.slept_s) > world.resync.timing.first_settle_s
    assert [call.verb for call in world.cluster.calls] == ["list"]


def test_a_watch_that_brings_nothing_is_asked_after_less_and_less_often() -> None:
    world = World()
    world.put_pod("a")
    assert world.repair() == 1
    assert world.slept_s[:5] == [0.5, 1, 2, 4, 5]
    assert set(world.slept_s[5:]) == {5}


def test_what_the_watch_brings_in_time_is_no_repair() -> None:
    world = World()
    pod = world.put_pod("a")
    world.while_sleeping = [lambda: world.store.observe(stored_object(POD, pod))]
    assert world.repair() == 0
    assert len(world.slept_s) == 1
    assert world.changed == []
    assert world.resync.list_s[POD] == sum(world.slept_s)


def test_a_missed_deletion_is_found_and_later_lists_wait_less() -> None:
    world = World()
    world.put_pod("a")
    world.repair()
    world.cluster.remove(world.cluster.refs(POD)[0])
    began_s = world.now_s
    assert world.repair() == 1
    assert 5 <= world.now_s - began_s < 10
    assert world.store.num_objects(POD) == 0
    assert world.changed == ["s1", "s1"]


def test_what_is_deleted_between_the_list_and_the_read_is_forgotten() -> None:
    world = World()
    world.put_pod("a")
    world.repair()
    (ref,) = world.cluster.refs(POD)
    world.cluster.edit(ref, lambda manifest: manifest["metadata"]["labels"].update(new="1"))
    world.while_sleeping = [lambda: world.cluster.remove(ref)]
    assert world.repair() == 1
    assert world.store.num_objects(POD) == 0
    assert world.changed == ["s1", "s1"]


def test_a_failed_list_is_tried_again_soon_and_freshness_tells() -> None:
    class StopTestError(Exception):
        pass

    world = World()
    is_away = False

    def answer(call: Call) -> None:
        if is_away:
            raise UnavailableError("away")

    def go_away() -> None:
        nonlocal is_away
        is_away = True

    def stop() -> None:
        raise StopTestError

    world.cluster.before = answer
    world.while_sleeping = [go_away, lambda: None, lambda: None, stop]
    with pytest.RaisesGroup(StopTestError):
        asyncio.run(world.resync.keep((POD,), jitter=lambda: 0.5, sleep=world.sleep))
    assert world.slept_s == [285.0, 10.0, 10.0, 10.0]
    max_age_s = world.resync.timing.max_age_s
    assert world.store.stale_kinds((POD,), now_s=world.now_s, max_age_s=max_age_s) == ()
    later_s = world.now_s + max_age_s
    assert world.store.stale_kinds((POD,), now_s=later_s, max_age_s=max_age_s) == (POD,)


@pytest.mark.parametrize("kind", [POD, OPTIONAL])
def test_one_that_cannot_be_read_leaves_the_others_repaired(kind: ResourceKind) -> None:
    world = World()
    put = world.put_pod if kind == POD else world.put_optional
    for name in "abcdef":
        put(name)

    def throttle(call: Call) -> None:
        if call.verb == "get" and call.ref.name == "b":
            raise ThrottledError("slowly", retry_after_s=1.0)

    world.cluster.before = throttle
    with pytest.raises(ThrottledError):
        world.repair(kind)
    assert world.store.num_objects(kind) == 5
    assert world.changed == ["s1"] * 5
    world.fail(None)
    world.changed.clear()
    world.repair(kind)
    assert world.store.num_objects(kind) == 6
    assert world.changed == ["s1"]


def test_each_list_of_services_looks_at_all_of_them_again() -> None:
    class StopTestError(Exception):
        pass

    def stop() -> None:
        raise StopTestError

    world = World()
    uid = world.put_service()
    world.while_sleeping = [lambda: None, stop]
    with pytest.RaisesGroup(StopTestError):
        asyncio.run(world.resync.keep((SERVICE_KIND,), jitter=lambda: 0.0, sleep=world.sleep))
    assert world.changed == [ServiceUid(uid)] * 2


def test_a_watch_that_begins_anew_hurries_the_next_list() -> None:
    class StopTestError(Exception):
        pass

    world = World()
    is_hurried = False

    async def sleep(seconds: float) -> None:
        """Nobody wakes from the long rest but by the hurry."""
        nonlocal is_hurried
        if seconds < 10:
            world.now_s += seconds
        elif is_hurried:
            raise StopTestError
        else:
            is_hurried = True
            world.put_pod("a")
            world.resync.hurry(POD)
            await asyncio.Event().wait()

    world.resync.hurry(POD)  # before the first LIST it changes nothing
    with pytest.RaisesGroup(StopTestError):
        asyncio.run(world.resync.keep((POD,), jitter=lambda: 0.0, sleep=sleep))
    assert [call.verb for call in world.cluster.calls].count("list") == 2
    assert world.resync.num_repairs == {POD: 1}
    assert world.changed == ["s1"]


def test_news_of_an_optional_kind_come_from_its_lists_without_waiting_for_a_watch() -> None:
    world = World()
    world.put_optional("a")
    assert world.repair(OPTIONAL) == 0
    assert world.slept_s == []
    assert world.changed == ["s1"]
    world.cluster.remove(world.cluster.refs(OPTIONAL)[0])
    assert world.repair(OPTIONAL) == 0
    assert world.store.num_objects(OPTIONAL) == 0
    assert world.changed == ["s1", "s1"]
    assert world.resync.num_repairs == {}


@pytest.mark.parametrize(
    ("error", "lack"),
    [(NotFoundError, Lack.NOT_INSTALLED), (ForbiddenError, Lack.NOT_ALLOWED)],
)
def test_what_the_cluster_lacks_is_known_and_each_service_hears_of_a_change(
    error: type[ClusterError], lack: Lack
) -> None:
    world = World()
    uid = world.put_service()
    world.put_optional("a")
    world.repair(OPTIONAL)
    world.changed.clear()
    world.fail(error)
    for _ in range(3):
        world.repair(OPTIONAL)
    assert world.store.lacking() == {OPTIONAL.kind: lack}
    assert world.changed == [uid]
    assert world.store.is_synced((OPTIONAL,))
    world.fail(None)
    world.repair(OPTIONAL)
    assert world.store.lacking() == {}
    assert world.store.num_objects(OPTIONAL) == 1


def test_an_optional_kind_that_gives_no_answer_does_not_hold_up_the_start() -> None:
    world = World()
    world.fail(UnavailableError)
    with pytest.raises(UnavailableError):
        world.repair(OPTIONAL)
    assert world.store.is_synced((OPTIONAL,))
    assert world.store.lacking() == {OPTIONAL.kind: Lack.NO_ANSWER}
    world.fail(None)
    world.repair(OPTIONAL)
    assert world.store.lacking() == {}
    # Once it is known, a failure changes nothing: what was there is there.
    world.fail(UnavailableError)
    with pytest.raises(UnavailableError):
        world.repair(OPTIONAL)
    assert world.store.lacking() == {}
