"""Roll-outs, scaling and pruning as whole runs: they end, keep their bounds, and then rest."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.operator.documents import resolved
from tests.operator.planner.world import World, adopt, foreign, ready_pod

from mizzen_operator.observed import PodFacts
from mizzen_operator.planner.groups import Group, lost_groups
from mizzen_operator.render import labels
from mizzen_operator.spec.model import Restart
from mizzen_operator.spec.resolve import Pinned, Resolved

LOST_AFTER = timedelta(seconds=Restart().node_lost_seconds)
A = {"contextLength": 1024}
B = {"contextLength": 2048}


def service(
    engine: dict[str, Any], replicas: int = 3, *, pinned: Pinned | None = None, **spec: Any
) -> Resolved:
    return resolved(pinned, engine=engine, replicas=replicas, topology="Split", **spec)


def running(engine: dict[str, Any], replicas: int = 3, **spec: Any) -> World:
    world = World(service=service(engine, replicas, **spec))
    world.run()
    return world


def ready_names(world: World) -> set[str]:
    return {group.name for group in world.groups() if group.is_ready}


def names(wanted: Resolved, *indices: int) -> set[str]:
    return {f"demo-w-{wanted.revision}-{index}" for index in indices}


def rest(world: World) -> None:
    """A second plan of a finished world writes nothing."""
    writes = world.num_writes
    wanted = world.plan()
    world.carry_out(wanted)
    assert world.num_writes == writes
    assert wanted.delete == ()
    assert wanted.blocked_by == ""
    assert not wanted.is_rolling
    assert wanted.requeue_after_s is None


def test_a_new_service_gets_all_its_groups_at_once() -> None:
    world = World(service=service(A))
    world.carry_out(world.plan())
    assert {group.index for group in world.groups()} == {0, 1, 2}
    world.run()
    assert ready_names(world) == names(world.service, 0, 1, 2)
    rest(world)


def test_row_3_a_rollout_replaces_one_at_a_time_by_default() -> None:
    world = running(A)
    world.service = service(B)
    fewest, most = 3, 3
    for _ in range(20):
        world.carry_out(world.plan())
        fewest = min(fewest, len(ready_names(world)))
        most = max(most, len(world.groups()))
        world.settle()
    assert (fewest, most) == (2, 3)
    assert ready_names(world) == names(world.service, 0, 1, 2)
    rest(world)


def test_with_surge_a_new_group_is_ready_before_the_old_one_goes() -> None:
    rollout = {"rollout": {"maxSurge": 1, "maxUnavailable": 0}}
    world = running(A, replicas=1, worker=rollout)
    world.service = service(B, replicas=1, worker=rollout)
    world.carry_out(world.plan())
    assert len(world.groups()) == 2
    assert not any(group.is_leaving for group in world.groups())
    world.run()
    assert ready_names(world) == names(world.service, 0)


@pytest.mark.parametrize(
    ("replicas", "surge", "unavailable"), [(1, 1, 0), (2, 0, 1), (3, 0, 1), (3, 1, 1), (4, 2, 2)]
)
def test_row_32_tokenizers_always_have_a_group_of_their_cohort(
    replicas: int, surge: int, unavailable: int
) -> None:
    worker = {"rollout": {"maxSurge": surge, "maxUnavailable": unavailable}}
    world = running(A, replicas, worker=worker)
    world.service = service(B, replicas, worker=worker)
    for _ in range(30):
        world.carry_out(world.plan())
        assert world.is_serving()
        for group in world.groups():
            if group.is_leaving:
                world.end(group.name)
        world.carry_out(world.plan())
        assert world.is_serving()
        world.settle()
        assert world.is_serving()
    assert world.tokenizer_cohort == world.service.cohort
    rest(world)


def test_row_35_tokenizers_stay_with_the_larger_cohort() -> None:
    world = running(A, replicas=4)
    world.service = service(B, replicas=4)
    for _ in range(15):
        world.carry_out(world.plan())
        followed = world.children["Deployment", "demo-tokenizer"].labels[labels.COHORT]
        ready = [group.cohort for group in world.groups() if group.is_ready]
        assert ready.count(followed) >= len(ready) / 2
        world.settle()
    assert followed == world.service.cohort


def test_row_32_a_rollout_waits_for_tokenizers_that_cannot_move() -> None:
    world = running(A, replicas=2)
    old = world.tokenizer_cohort
    world.service = service(B, replicas=2)
    for _ in range(10):
        world.carry_out(world.plan())
        world.settle()
        world.tokenizer_cohort = old
    assert {group.cohort for group in world.groups()} == {old, world.service.cohort}
    assert world.plan().blocked_by.startswith("waiting until no tokenizer pod needs ")


def test_a_broken_revision_stops_the_rollout_and_says_why() -> None:
    world = running(A)
    world.service = service(B)
    world.run(broken=frozenset({world.service.revision}))
    assert len(ready_names(world)) == 2
    wanted = world.plan()
    assert wanted.blocked_by == f"waiting until demo-w-{world.service.revision}-0 is ready"
    assert wanted.is_rolling
    assert wanted.requeue_after_s is not None


def test_row_3_going_back_adopts_the_groups_that_still_live() -> None:
    world = running(A)
    kept = ready_names(world)
    world.service = service(B)
    world.run(broken=frozenset({world.service.revision}))
    survivors = kept & ready_names(world)
    uids = {group.name: group.facts.child.uid for group in world.groups()}
    world.service = service(A)
    world.run()
    assert ready_names(world) == kept
    assert survivors
    now = {group.name: group.facts.child.uid for group in world.groups()}
    assert all(now[name] == uids[name] for name in survivors)
    rest(world)


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (3, 0), (0, 2)])
def test_scaling_keeps_the_lowest_indices(before: int, after: int) -> None:
    world = running(A, replicas=before)
    world.service = service(A, replicas=after)
    world.run()
    assert ready_names(world) == names(world.service, *range(after))
    rest(world)


def test_row_43_scaling_down_takes_unready_groups_first() -> None:
    world = running(A)
    lame = f"demo-w-{world.service.revision}-0"
    world.set_ready(lame, ready=False)
    world.service = service(A, replicas=2)
    (gone,) = world.plan().delete
    assert (gone.name, gone.reason) == (lame, "scaled down")


def test_stopped_keeps_services_and_removes_pods() -> None:
    world = running(A)
    world.service = service(A, stopped=True)
    world.run()
    assert world.groups() == []
    assert ("Service", "demo") in world.children
    assert world.replicas["demo-tokenizer"] == 0
    rest(world)


def test_paused_leaves_everything_as_it_is() -> None:
    world = running(A)
    world.service = service(B, replicas=1, paused=True)
    wanted = world.plan()
    assert (wanted.apply, wanted.delete, wanted.keys) == ((), (), None)
    assert wanted.blocked_by == "spec.paused is true"


def test_services_of_an_old_revision_stay_until_its_last_group_has_ended() -> None:
    world = running(A, replicas=1)
    old = world.service
    world.service = service(B, replicas=1)
    world.carry_out(world.plan())
    kept = {f"demo-w-{old.revision}", f"demo-leaders-{old.cohort}"}
    assert all(("Service", name) in world.children for name in kept)
    world.run()
    assert not any(("Service", name) in world.children for name in kept)


def test_ranks_of_a_leaving_group_may_talk_until_it_has_ended() -> None:
    wide = {"parallelism": {"tensor": 2, "nodes": 2}}
    world = running(A, replicas=2, worker=wide)
    policies = {("NetworkPolicy", name) for name in names(world.service, 0, 1)}
    assert policies <= set(world.children)
    leaving = ("NetworkPolicy", f"demo-w-{world.service.revision}-1")
    world.service = service(A, replicas=1, worker=wide)
    for _ in range(3):
        world.carry_out(world.plan())
        assert policies <= set(world.children)
    world.run()
    assert policies & set(world.children) == policies - {leaving}
    rest(world)
    world.service = service(A, replicas=1, worker=wide, networkPolicy="Off")
    world.run()
    assert not [name for kind, name in world.children if kind == "NetworkPolicy"]


def test_row_34_a_group_of_several_pods_rolls_as_one() -> None:
    world = running(A, replicas=1, worker={"parallelism": {"tensor": 6, "nodes": 3}})
    old = world.service
    world.service = service(A, replicas=1, worker={"parallelism": {"tensor": 6, "nodes": 2}})
    world.run()
    assert ready_names(world) == names(world.service, 0)
    assert not [name for kind, name in world.children if old.revision in name]
    rest(world)


def test_only_our_own_objects_are_pruned() -> None:
    world = running(A)
    uid = world.service.uid
    adopt(world, foreign("orphan", "Service", uid))
    adopt(world, foreign("other", "Service", "somebody"))
    adopt(world, foreign("unlisted", "Ingress", uid))
    (gone,) = world.plan().delete
    assert (gone.name, gone.uid, gone.resource_version) == ("orphan", "uid-orphan", "1")


def test_row_25_a_change_of_topology_removes_what_the_other_had() -> None:
    world = running(A)
    world.service = resolved(engine=A, replicas=2)
    world.run()
    kinds = {kind for kind, _ in world.children}
    assert "Deployment" not in kinds
    assert len(ready_names(world)) == 2
    rest(world)


def test_a_service_that_is_being_deleted_is_left_to_the_garbage_collector() -> None:
    world = running(A)
    observed = world.observed()
    gone = replace(observed, service=replace(observed.service, deleting=True))
    from mizzen_operator.planner.plan import plan

    wanted = plan(world.service, gone, world.now)
    assert (wanted.apply, wanted.delete) == ((), ())


def _pod(world: World, *, revision: str, waiting: str, ready: bool = False) -> PodFacts:
    (group,) = world.groups()
    child = replace(
        foreign("pod-0", "Pod", group.facts.child.uid, **{"controller-revision-hash": revision}),
        resource_version="7",
    )
    return replace(ready_pod(child), is_ready=ready, waiting_reason=waiting, restarts=3)


@pytest.mark.parametrize(
    ("revision", "waiting", "ready", "goes"),
    [
        ("r0", "CrashLoopBackOff", False, True),
        ("r0", "ImagePullBackOff", False, True),
        ("r0", "ContainerCreating", False, False),
        ("r0", "", True, False),
        ("r1", "CrashLoopBackOff", False, False),
    ],
)
def test_a_dead_pod_of_an_outdated_template_is_deleted(
    revision: str, waiting: str, *, ready: bool, goes: bool
) -> None:
    world = running(A, replicas=1)
    world.pods = [_pod(world, revision=revision, waiting=waiting, ready=ready)]
    deleted = [(item.kind, item.name, item.resource_version) for item in world.plan().delete]
    assert deleted == ([("Pod", "pod-0", "7")] if goes else [])


def test_the_next_look_is_when_a_starting_group_will_be_late() -> None:
    world = World(service=service(A | {"startupDeadlineSeconds": 100}))
    world.carry_out(world.plan())
    world.now += timedelta(seconds=40)
    assert world.plan().requeue_after_s == 60.0
    world.now += timedelta(seconds=100)
    assert world.plan().requeue_after_s is None


def test_keys_are_wanted_where_pods_talk_to_each_other() -> None:
    keys = World(service=service(A)).plan().keys
    assert keys is not None
    assert keys.metadata["name"] == "demo-curve"
    assert keys.metadata["labels"][labels.SERVICE_UID]
    assert World(service=resolved()).plan().keys is None


def test_a_group_that_still_drains_is_waited_for() -> None:
    world = running(A, replicas=2)
    world.service = service(B, replicas=1)
    world.carry_out(world.plan())
    world.carry_out(world.plan())
    leaving = [group.name for group in world.groups() if group.is_leaving]
    assert len(leaving) == 2
    assert world.plan().blocked_by == f"waiting until {', '.join(leaving)} has ended"
    assert world.plan().apply


def test_a_finished_rollout_waits_for_what_still_drains_of_the_wanted_revision() -> None:
    world = running(A, replicas=2)
    world.service = service(A, replicas=1)
    world.carry_out(world.plan())
    wanted = world.plan()
    assert wanted.blocked_by == f"waiting until demo-w-{world.service.revision}-1 has ended"
    assert wanted.is_rolling


def _ending_pod(group: Group, ends_at: datetime) -> PodFacts:
    child = foreign(f"{group.name}-0", "Pod", group.facts.child.uid)
    return ready_pod(replace(child, deleting=True, ends_at=ends_at))


def test_a_lost_group_holds_up_nothing() -> None:
    world = running(A, replicas=1)
    world.service = service(B, replicas=1)
    world.carry_out(world.plan())
    (leaving,) = world.groups()
    assert leaving.is_leaving
    ends_at = world.now + timedelta(seconds=30)
    world.pods = [_ending_pod(leaving, ends_at)]
    waits = world.plan()
    assert waits.blocked_by == f"waiting until {leaving.name} has ended"
    assert waits.requeue_after_s == (ends_at - world.now + LOST_AFTER).total_seconds()

    world.now = ends_at + LOST_AFTER
    wanted = world.plan()
    (delete,) = wanted.delete
    assert (delete.kind, delete.name, delete.grace_s) == ("Pod", f"{leaving.name}-0", 0)
    world.carry_out(wanted)
    assert [group.revision for group in world.groups() if not group.is_leaving] == [
        world.service.revision
    ]
    assert leaving.name in {group.name for group in world.groups()}


def test_a_group_is_not_lost_while_one_of_its_pods_still_has_time() -> None:
    world = running(A, replicas=1)
    world.service = service(B, replicas=1)
    world.carry_out(world.plan())
    (leaving,) = world.groups()
    over = world.now - 2 * LOST_AFTER
    late = _ending_pod(leaving, over)
    world.pods = [late, _ending_pod(leaving, world.now)]
    assert lost_groups(world.groups(), Restart(), world.now) == frozenset()
    world.pods = [
        _ending_pod(leaving, over),
        replace(world.pods[0], child=foreign("new", "Pod", leaving.facts.child.uid)),
    ]
    assert lost_groups(world.groups(), Restart(), world.now) == frozenset()
    world.pods = []
    assert lost_groups(world.groups(), Restart(), world.now) == frozenset()
