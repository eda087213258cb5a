"""A group that lost a rank starts anew as a whole, once; one that is well or late is left alone."""

from dataclasses import replace
from datetime import timedelta
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.operator.planner.group_world import OWN_GRACE_S, GroupWorld

from mizzen_operator.planner.pod_ends import lost_pods
from mizzen_operator.planner.restarts import Cause
from mizzen_operator.render.group_life import GroupLife, PastRestart, life_of, with_life
from mizzen_operator.spec.model import Restart

SIZES = pytest.mark.parametrize("size", [2, 3, 4])
LOST_S = Restart().node_lost_seconds


def formed(size: int, restart: Restart | None = None) -> GroupWorld:
    """A group at rest, remembered as formed."""
    world = GroupWorld(size=size, restart=restart or Restart())
    assert world.run() == 0
    assert world.life.formed
    return world


def assert_rests(world: GroupWorld) -> None:
    writes = world.num_writes
    for _ in range(3):
        world.settle(10_000)
        verdict = world.look()
        assert verdict.cause is None
    assert world.num_writes == writes


@SIZES
def test_a_group_that_is_well_is_written_once_and_then_rests(size: int) -> None:
    world = formed(size)
    assert world.num_writes == 1
    assert_rests(world)


def test_one_pod_has_no_peers_and_keeps_its_first_life() -> None:
    world = GroupWorld(size=1)
    world.run()
    for harm in (world.end_container, world.fail, world.delete):
        harm(0)
        world.look()
        world.settle(10)
    assert (world.life, world.num_writes) == (GroupLife(), 0)


@SIZES
def test_row_22_a_rank_replaced_while_nobody_looked_restarts_the_group_exactly_once(
    size: int,
) -> None:
    world = formed(size)
    before = world.uids()
    world.delete(size - 1)
    world.settle(10)
    world.settle(10)
    assert world.group().is_ready, "its controller replaced the pod, and all are ready"
    verdict = world.look()
    assert verdict.cause is Cause.RANK_REPLACED
    assert world.run() == 0
    assert world.life.epoch == 1
    assert world.epochs() == {1}
    assert not world.uids() & before
    assert world.num_pods == 2 * size + 1, "each pod was replaced once"
    assert_rests(world)


@SIZES
@pytest.mark.parametrize("leader", [True, False])
def test_a_container_that_starts_again_restarts_the_group_once(size: int, *, leader: bool) -> None:
    world = formed(size)
    before = world.uids()
    world.end_container(0 if leader else size - 1)
    assert world.look().cause is Cause.RANK_RESTARTED
    # Its peers end too, which is the same incident.
    world.end_container(0)
    world.end_container(1)
    assert world.run() == 0
    assert world.life.epoch == 1
    assert not world.uids() & before


def test_a_failed_pod_restarts_the_group() -> None:
    world = formed(3)
    world.fail(1)
    assert world.look().cause is Cause.RANK_FAILED
    assert world.run() == 0
    assert world.epochs() == {1}


def test_a_rank_that_is_evicted_keeps_its_time_to_drain() -> None:
    world = formed(2)
    world.delete(1)
    writes = world.num_writes
    assert world.look().cause is None
    assert world.num_writes == writes
    assert not world.group().is_ready
    world.settle(10)
    assert world.look().cause is Cause.RANK_REPLACED


def test_what_drains_at_leisure_is_hastened_when_its_group_is_broken() -> None:
    world = formed(2)
    world.lost_ranks.add(1)
    world.delete(1)
    world.end_container(0)
    world.look()
    pod = world.pods[1]
    assert (pod.end_grace_s, pod.child.ends_at) == (10, world.now + timedelta(seconds=10))
    writes = world.num_writes
    world.look()
    assert world.num_writes == writes, "it is asked for once"


@SIZES
def test_a_lost_node_holds_up_its_group_no_longer_than_that(size: int) -> None:
    world = formed(size)
    world.lost_ranks.add(1)
    # What others notice, and what the node controller does.
    world.end_container(0)
    assert world.look().cause is Cause.RANK_RESTARTED
    world.settle(10)
    world.look()
    world.settle(LOST_S - 1)
    world.look()
    assert world.epochs() == {0, 1}
    world.settle(1)
    world.look()
    assert world.epochs() == {1}
    assert world.run() == 0
    assert world.life.epoch == 1
    assert_rests(world)


@SIZES
def test_an_end_that_is_not_confirmed_restarts_the_group(size: int) -> None:
    world = formed(size)
    world.lost_ranks.add(0)
    world.delete(0)
    world.settle(OWN_GRACE_S + LOST_S - 1)
    assert world.look().cause is None
    world.settle(1)
    assert world.look().cause is Cause.NODE_LOST
    assert world.run() == 0
    assert world.life.epoch == 1


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_the_time_of_a_pod_does_not_count_on_a_node_that_does_not_answer(size: int) -> None:
    world = GroupWorld(size=size)
    world.run()
    world.lost_ranks.add(0)
    world.pods[0] = replace(world.pods[0], unreachable_since=world.now)
    world.now += timedelta(seconds=LOST_S)
    assert not list(lost_pods([world.group()], world.restart, world.now)), "nobody deleted it"
    world.delete(0)
    (end,) = lost_pods([world.group()], world.restart, world.now)
    assert end.grace_s == 0


def test_a_pod_that_somebody_holds_or_that_was_removed_is_not_deleted_again_and_again() -> None:
    world = GroupWorld(size=1)
    world.lost_ranks.add(0)
    world.delete(0)
    world.now += timedelta(days=1)
    pod = world.pods[0]
    assert list(lost_pods([world.group()], world.restart, world.now))
    for done in (replace(pod, is_held=True), replace(pod, end_grace_s=0)):
        world.pods[0] = done
        assert not list(lost_pods([world.group()], world.restart, world.now))


@SIZES
def test_row_23_a_late_image_restarts_nothing(size: int) -> None:
    world = GroupWorld(size=size, late_ranks={size - 1})
    for rank in range(size):
        world.pods[rank] = replace(world.pods[rank], is_ready=False)
    for _ in range(20):
        world.settle(60)
        assert world.look().cause is None
    world.late_ranks.clear()
    world.settle()
    assert world.run() == 0
    assert (world.life.epoch, world.num_writes) == (0, 1)


def test_row_24_a_rank_that_always_crashes_is_restarted_ever_more_slowly_and_then_left() -> None:
    world = formed(4)
    world.broken_ranks.add(3)
    start, moments = world.now, []
    verdict = world.look()
    for _ in range(10_000):
        world.settle(1)
        verdict = world.look()
        if len(world.life.restarts) > len(moments):
            moments.append(world.life.restarts[-1].at)
        if verdict.is_exhausted:
            break
    waits = [(b - a).total_seconds() for a, b in pairwise(moments)]
    assert (moments[0] - start).total_seconds() <= 1
    assert waits == [30, 60, 120, 240, 480, 600, 600]
    assert verdict.cause is Cause.RANK_RESTARTED
    writes = world.num_writes
    world.settle(100_000)
    assert world.look().is_exhausted, "time alone does not bring it back"
    assert world.num_writes == writes

    world.life = replace(world.life, restarts=())
    assert world.look().cause is Cause.RANK_RESTARTED, "a person took the annotation away"
    world.broken_ranks.clear()
    world.run()
    assert_rests(world)


def test_a_raised_budget_lets_it_go_on() -> None:
    world = formed(2, Restart(max_restarts=1))
    world.broken_ranks.add(1)
    world.settle(1)
    world.look()
    world.settle(100)
    assert world.look().is_exhausted
    world.restart = Restart(max_restarts=2)
    assert world.look().life.epoch == 2


def test_a_group_that_comes_back_while_it_waits_is_taken_as_it_is() -> None:
    world = formed(2)
    world.end_container(0)
    assert world.run() == 1
    world.end_container(0)
    assert world.look().not_before is not None
    world.settle(1)
    assert world.group().is_ready
    assert world.look().cause is None
    assert world.life.epoch == 1
    assert_rests(world)


def test_restarts_of_long_ago_count_no_more() -> None:
    world = formed(2)
    for number in range(1, 12):
        world.end_container(1)
        assert world.look().life.epoch == number
        world.run()
        world.settle(Restart().window_seconds)
    assert len(world.life.restarts) == 1


def test_a_clock_that_was_wrong_holds_up_nothing() -> None:
    world = formed(2)
    future = PastRestart(at=world.now + timedelta(days=30), reason="RankFailed")
    world.life = replace(world.life, restarts=(future,))
    world.end_container(0)
    verdict = world.look()
    assert verdict.life.epoch == 1
    assert future not in verdict.life.restarts


def test_an_epoch_that_a_hand_set_back_rises_above_that_of_every_pod() -> None:
    world = formed(2)
    world.end_container(0)
    world.run()
    world.now += timedelta(hours=1)
    world.life = replace(world.life, epoch=0, formed="by hand")
    assert world.look().life.epoch == 2


def test_a_life_is_read_as_it_was_written() -> None:
    bare = {"metadata": {}, "spec": {"template": {"metadata": {}}}}
    world = formed(2)
    world.end_container(0)
    world.run()
    assert world.life.restarts
    written = with_life(bare, world.life)
    template = written["spec"]["template"]["metadata"]["annotations"]
    assert life_of(template, written["metadata"]["annotations"]) == world.life
    assert life_of({}, {}) == GroupLife()
    assert "annotations" not in with_life(bare, GroupLife())["metadata"]
    by_hand = {"serving.mizzen.dev/restarts": "soon, 2026-99-01T00:00:00Z RankFailed, x"}
    assert life_of({"serving.mizzen.dev/epoch": "-1"}, by_hand) == GroupLife()


HARMS = ("end_container", "fail", "delete", "lose", "look", "time")


@given(
    size=st.integers(1, 4),
    steps=st.lists(st.tuples(st.sampled_from(HARMS), st.integers(0, 3)), max_size=20),
)
def test_whatever_happens_it_ends_with_one_life(size: int, steps: list[tuple[str, int]]) -> None:
    world = GroupWorld(size=size)
    epoch = 0
    for harm, pick in steps:
        rank = pick % size
        if harm == "look":
            world.look()
        elif harm == "time":
            world.settle(30)
        elif harm == "lose":
            world.lost_ranks.add(rank)
            world.delete(rank)
        elif harm == "delete":
            world.delete(rank)
        else:
            getattr(world, harm)(rank)
        assert world.life.epoch >= epoch
        epoch = world.life.epoch
    for rank, pod in world.pods.items():
        if pod.phase == "Failed":
            # Its controller deletes what has failed.
            world.delete(rank)
    world.run()
    assert world.epochs() == {world.life.epoch}
    assert bool(world.life.formed) is (size > 1)
    assert_rests(world)
