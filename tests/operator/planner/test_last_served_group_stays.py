"""A third revision while tokenizers are still of the first: its last worker group must stay."""

import pytest
from tests.operator.documents import resolved
from tests.operator.planner.world import World

from mizzen_operator.spec.resolve import Resolved


def _service(context: int) -> Resolved:
    return resolved(
        topology="Split",
        replicas=3,
        engine={"contextLength": context},
        worker={"rollout": {"maxSurge": 3, "maxUnavailable": 0}},
    )


def _settle_groups(world: World) -> None:
    """As ``settle``, but no tokenizer pod of another cohort starts: its image is not found."""
    for group in world.groups():
        if group.is_leaving:
            world.end(group.name)
        elif not group.is_ready:
            world.set_ready(group.name, ready=True)


@pytest.mark.parametrize("third", [3, 4, 5, 6])
@pytest.mark.parametrize("second", [2, 7, 8])
def test_clients_are_served_while_a_third_revision_replaces_a_second(
    second: int, third: int
) -> None:
    world = World(service=_service(1))
    world.run()
    assert world.is_serving()
    world.service = _service(second)
    for _ in range(8):
        world.carry_out(world.plan())
        assert world.is_serving()
        _settle_groups(world)
    world.service = _service(third)
    for _ in range(8):
        before = [(group.name, group.cohort) for group in world.groups()]
        wanted = world.plan()
        world.carry_out(wanted)
        assert world.is_serving(), (
            world.tokenizer_cohort,
            before,
            [item.name for item in wanted.delete],
        )
        _settle_groups(world)
