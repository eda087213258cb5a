"""Streams of tokenizers that end: who goes on with them while a new cohort replaces their own."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.operator.documents import resolved
from tests.operator.planner.world import World, foreign, ready_pod

from mizzen_operator.observed import PodFacts
from mizzen_operator.render import labels
from mizzen_operator.render.names import leader_service_name
from mizzen_operator.spec.model import Restart
from mizzen_operator.spec.resolve import Resolved

BEFORE = {"engine": {"contextLength": 1024}}
GRACE = timedelta(seconds=330)
LOST_AFTER = timedelta(seconds=Restart().node_lost_seconds)
LONGER = {"engine": {"contextLength": 4096}}
OTHER_WEIGHTS = {"model": {"source": {"pvc": {"claimName": "other", "path": "m"}}}}
OTHER_ENGINE = {"engine": {"args": ["--queue-ageing=60"]}}
OTHER_TYPE = {"engine": {"dtype": "float32"}}
OTHER_KEYS = {"security": {"keyRotation": "2027-01-01"}}


def service(change: dict[str, Any], replicas: int) -> Resolved:
    return resolved(**{**BEFORE, **change}, replicas=replicas, topology="Split")


def running(replicas: int) -> World:
    world = World(service=service({}, replicas))
    world.run()
    return world


def rolled_with_open_streams(
    change: dict[str, Any], replicas: int = 3
) -> tuple[World, str, PodFacts]:
    """The new cohort serves; one tokenizer pod of the old one still ends. Also the old cohort."""
    world = running(replicas)
    old = world.tokenizer_cohort
    world.service = service(change, replicas)
    while world.tokenizer_cohort == old:
        world.carry_out(world.plan())
        world.settle()
    child = foreign(
        "ending", "Pod", "replica-set",
        **{labels.ROLE: labels.ROLE_TOKENIZER, labels.COHORT: old},
    )  # fmt: skip
    child = replace(child, deleting=True, ends_at=world.now + GRACE)
    pod = replace(ready_pod(child), is_ready=False)
    world.pods.append(pod)
    return world, old, pod


def selector_of(world: World, cohort: str) -> dict[str, str] | None:
    """Where the name leads under which tokenizers of a cohort look for workers."""
    name = leader_service_name(world.service, cohort)
    found = [
        o for o in world.plan().apply if (o["kind"], o["metadata"]["name"]) == ("Service", name)
    ]
    return found[0]["spec"]["selector"] if found else None


def test_streams_that_any_group_can_take_hold_up_nothing() -> None:
    world, old, pod = rolled_with_open_streams(LONGER)
    opened = selector_of(world, old)
    assert opened is not None
    assert labels.COHORT not in opened
    assert opened[labels.POD_INDEX] == "0"
    assert (selector_of(world, world.service.cohort) or {})[labels.COHORT] == world.service.cohort
    world.run()
    assert {group.cohort for group in world.groups()} == {world.service.cohort}
    assert selector_of(world, old) == opened
    world.pods.remove(pod)
    world.run()
    assert selector_of(world, old) is None


@pytest.mark.parametrize("change", [OTHER_WEIGHTS, OTHER_ENGINE, OTHER_TYPE, OTHER_KEYS])
def test_streams_that_only_their_own_cohort_can_end_keep_its_last_group(
    change: dict[str, Any],
) -> None:
    world, old, pod = rolled_with_open_streams(change)
    world.run()
    assert [group.cohort for group in world.groups()].count(old) == 1
    assert (selector_of(world, old) or {})[labels.COHORT] == old
    assert world.plan().blocked_by.startswith("waiting until no tokenizer pod needs ")
    world.pods.remove(pod)
    world.run()
    assert {group.cohort for group in world.groups()} == {world.service.cohort}


def test_a_lost_tokenizer_pod_keeps_nothing() -> None:
    world, old, pod = rolled_with_open_streams(OTHER_WEIGHTS)
    world.run()
    assert pod.child.ends_at is not None
    left_s = (pod.child.ends_at + LOST_AFTER - world.now).total_seconds()
    assert world.plan().requeue_after_s == pytest.approx(left_s)
    world.now += timedelta(seconds=left_s)
    world.run()
    assert {group.cohort for group in world.groups()} == {world.service.cohort}
    assert selector_of(world, old) is None


def test_row_35_a_name_leads_to_its_own_cohort_while_a_pod_takes_new_requests() -> None:
    world = running(3)
    old = world.tokenizer_cohort
    world.service = service(LONGER, 3)
    while world.tokenizer_cohort == old:
        assert (selector_of(world, old) or {})[labels.COHORT] == old
        world.carry_out(world.plan())
        world.settle()
