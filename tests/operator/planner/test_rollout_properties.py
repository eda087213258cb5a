"""Any history of specs, failures and delays keeps the bounds and comes to rest at the last spec."""

from hypothesis import given
from hypothesis import strategies as st
from tests.operator.documents import resolved
from tests.operator.planner.world import World

from mizzen_operator.planner.groups import budget_of

SPECS = st.fixed_dictionaries(
    {
        "context": st.sampled_from([1, 2, 3]),
        "replicas": st.integers(0, 4),
        "surge": st.sampled_from([0, 1, 2, "25%"]),
        "unavailable": st.sampled_from([0, 1, 2, "50%"]),
        "stopped": st.just(value=False) | st.booleans(),
        "paused": st.just(value=False) | st.booleans(),
        "nodes": st.sampled_from([1, 1, 2, 3]),
        "topology": st.sampled_from(["Split", "Split", "Unified"]),
    }
)
STEPS = st.lists(
    st.one_of(SPECS, st.sampled_from(["plan", "ready", "unready", "end"]), st.integers(0, 5)),
    max_size=25,
)


def _service(spec: dict[str, object]):
    unavailable = spec["unavailable"]
    if spec["surge"] == 0 and unavailable == 0:
        unavailable = 1
    return resolved(
        topology=spec["topology"],
        paused=spec["paused"],
        replicas=spec["replicas"],
        stopped=spec["stopped"],
        engine={"contextLength": spec["context"]},
        worker={
            "rollout": {"maxSurge": spec["surge"], "maxUnavailable": unavailable},
            "parallelism": {"tensor": spec["nodes"], "nodes": spec["nodes"]},
        },
    )


def _plan_within_bounds(world: World) -> None:
    service = world.service
    budget = budget_of(service.spec.worker.rollout, service.groups)
    before = world.groups()
    ready_before = sum(group.is_ready for group in before)
    world.carry_out(world.plan())
    after = world.groups()
    assert len(after) <= max(len(before), service.groups + budget.surge)
    ready_after = sum(group.is_ready for group in after)
    assert ready_after >= min(ready_before, service.groups - budget.unavailable)


def _come_to_rest(world: World) -> None:
    for _ in range(40):
        writes = world.num_writes
        _plan_within_bounds(world)
        is_moving = any(group.is_leaving or not group.is_ready for group in world.groups())
        world.settle()
        if writes == world.num_writes and not is_moving:
            return
    raise AssertionError


def _move(world: World, action: str, pick: int) -> None:
    fitting = [
        group
        for group in world.groups()
        if (action == "end") is group.is_leaving and (action == "unready") is group.is_ready
    ]
    if action == "end":
        fitting = [group for group in world.groups() if group.is_leaving]
    if not fitting:
        return
    name = fitting[pick % len(fitting)].name
    if action == "end":
        world.end(name)
    else:
        world.set_ready(name, ready=action == "ready")


@given(first=SPECS, steps=STEPS)
def test_rows_30_31_33_and_34_bounds_hold_and_every_history_ends(
    first: dict[str, object], steps: list[object]
) -> None:
    world = World(service=_service(first))
    pick, last = 0, first
    for step in steps:
        if isinstance(step, dict):
            last = step
            world.service = _service(step)
        elif isinstance(step, int):
            pick = step
        elif step == "plan":
            _plan_within_bounds(world)
        else:
            _move(world, str(step), pick)
    world.service = _service(last | {"paused": False})
    _come_to_rest(world)
    wanted = {(world.service.revision, index) for index in range(world.service.groups)}
    found = {(group.revision, group.index) for group in world.groups() if group.is_ready}
    assert len(found) == len(wanted) == len(world.groups())
    assert {revision for revision, _ in found} <= {world.service.revision}
    writes = world.num_writes
    world.carry_out(world.plan())
    assert world.num_writes == writes
