"""A plan that restarts a broken group must not also spend all of the budget on a good one."""

from dataclasses import replace

from tests.operator.documents import resolved
from tests.operator.planner.world import World, foreign, ready_pod

from mizzen_operator.planner.groups import budget_of
from mizzen_operator.render import labels
from mizzen_operator.spec.resolve import Resolved


def _service(context: int) -> Resolved:
    return resolved(
        topology="Split",
        replicas=2,
        engine={"contextLength": context},
        worker={
            "rollout": {"maxSurge": 0, "maxUnavailable": 1},
            "parallelism": {"tensor": 2, "nodes": 2},
        },
    )


def _settled() -> World:
    world = World(service=_service(1))
    world.run()
    for group in world.groups():
        for rank in range(2):
            child = foreign(f"{group.name}-{rank}", "Pod", group.facts.child.uid)
            child = replace(child, annotations={labels.EPOCH: str(group.life.epoch)})
            world.pods.append(ready_pod(child))
    world.carry_out(world.plan())  # Both are formed now.
    return world


def test_a_group_that_starts_anew_counts_as_missing_in_the_roll_out() -> None:
    world = _settled()
    before = world.groups()
    assert [group.is_ready for group in before] == [True, True]
    # A rank of the first group ended and is up again: the group starts anew at the next look.
    broken = world.pods[0]
    world.pods[0] = replace(broken, restarts=1)
    world.service = _service(2)
    got = world.plan()
    removed = {item.name for item in got.delete if item.kind == "StatefulSet"}
    restarted = {item.group for item in got.restarts}
    budget = budget_of(world.service.spec.worker.rollout, world.service.groups)
    assert len(removed | restarted) <= budget.unavailable, (removed, restarted)
