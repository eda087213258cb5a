import asyncio
from typing import Any

import pytest
from tests.operator.fake_cluster import Call, FakeCluster

from mizzen_operator.cluster.resync import Resync, ResyncTiming, Scope
from mizzen_operator.errors import UnavailableError
from mizzen_operator.render.labels import SERVICE_UID
from mizzen_operator.store import (
    CHILD_SELECTOR,
    POD,
    SERVICE_KIND,
    ServiceUid,
    Store,
    stored_object,
)


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
            on_change=self.changed.append,
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

    def repair(self) -> int:
        return asyncio.run(self.resync.repair(POD, self.sleep))


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


def test_what_the_watch_brings_in_time_is_no_repair() -> None:
    world = World()
    pod = world.put_pod("a")
    world.while_sleeping = [lambda: world.store.observe(stored_object(POD, pod))]
    assert world.repair() == 0
    assert len(world.slept_s) == 1
    assert world.changed == []


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


def test_each_list_of_services_looks_at_all_of_them_again() -> None:
    class StopTestError(Exception):
        pass

    def stop() -> None:
        raise StopTestError

    world = World()
    service = {"metadata": {"name": "x", "namespace": "ns"}}
    created = stored_object(SERVICE_KIND, world.cluster.put(SERVICE_KIND, service))
    world.store.observe(created)
    world.while_sleeping = [lambda: None, stop]
    with pytest.RaisesGroup(StopTestError):
        asyncio.run(world.resync.keep((SERVICE_KIND,), jitter=lambda: 0.0, sleep=world.sleep))
    assert world.changed == [ServiceUid(created.uid)] * 2
