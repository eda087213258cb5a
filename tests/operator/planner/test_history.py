"""Stored revisions over whole runs: found again, numbered, kept in use, and drawn from."""

from dataclasses import replace
from typing import Any

import pytest
from tests.operator.documents import META, resolved
from tests.operator.planner.test_plan import A, B, ready_names, rest, running, service
from tests.operator.planner.world import World, foreign
from tests.operator.spec.rule_examples import document, patched

from mizzen_operator.observed import Observed, RevisionFacts
from mizzen_operator.planner.history import history_of, pinned_defaults
from mizzen_operator.planner.plan import plan
from mizzen_operator.render import labels
from mizzen_operator.render.names import stored_revision_name
from mizzen_operator.spec.model import InferenceService
from mizzen_operator.spec.parse import parse
from mizzen_operator.spec.resolve import Pinned, Resolved

C = {"contextLength": 4096}
OLD = Pinned(template_version="v1", frontend_image="front:old", worker_image="worker:old")
NEW = Pinned(template_version="v1", frontend_image="front:new", worker_image="worker:new")


def numbers(world: World) -> dict[str, int]:
    """Number of each stored revision by its name."""
    return {item.child.name: item.number for item in history_of(world.observed())}


def parsed(**spec: Any) -> InferenceService:
    return parse(document(patched(META, {"spec": spec})))


def named(world: World, name: str) -> dict[str, Any]:
    (found,) = [obj for obj in world.plan().apply if obj["metadata"]["name"] == name]
    return found


def test_a_revision_is_stored_before_the_first_pod_of_it() -> None:
    kinds = [obj["kind"] for obj in World(service=service(A)).plan().apply]
    assert kinds[0] == "ControllerRevision"
    world = running(A)
    assert numbers(world) == {stored_revision_name(world.service): 1}
    rest(world)


def test_going_back_finds_the_stored_revision_and_gives_it_the_highest_number() -> None:
    world = running(A)
    first = world.service
    world.service = service(B)
    world.run()
    second = stored_revision_name(world.service)
    assert numbers(world) == {stored_revision_name(first): 1, second: 2}
    data = dict(world.stored)
    world.service = service(A)
    world.run()
    assert world.service.revision == first.revision
    assert numbers(world) == {stored_revision_name(first): 3, second: 2}
    assert world.stored[stored_revision_name(first)][1] == data[stored_revision_name(first)][1]
    rest(world)


def test_what_shapes_no_pod_stores_nothing() -> None:
    world = running(A)
    before = numbers(world)
    world.service = service(A, replicas=1, networkPolicy="Off")
    world.run()
    assert numbers(world) == before


@pytest.mark.parametrize("limit", [0, 1, 2])
def test_the_oldest_unused_revisions_go_first(limit: int) -> None:
    world = running(A, revisionHistoryLimit=limit)
    for length in (2, 3, 4, 5):
        world.service = service({"contextLength": length}, revisionHistoryLimit=limit)
        world.run()
    assert sorted(numbers(world).values()) == list(range(5 - limit, 6))
    rest(world)


def test_a_revision_that_a_group_lives_by_stays_whatever_the_limit() -> None:
    world = running(A, revisionHistoryLimit=0)
    first = stored_revision_name(world.service)
    broken: set[str] = set()
    for engine in (B, C):
        world.service = service(engine, revisionHistoryLimit=0)
        broken.add(world.service.revision)
        world.run(broken=frozenset(broken))
        assert set(numbers(world)) == {first, stored_revision_name(world.service)}
    world.run()
    assert set(numbers(world)) == {stored_revision_name(world.service)}


def test_a_revision_of_a_later_form_is_kept_beside_the_limit() -> None:
    world = running(A, revisionHistoryLimit=1)
    later = stored_revision_name(world.service)
    number, data = world.stored[later]
    for length in (2, 3, 4):
        world.service = service({"contextLength": length}, revisionHistoryLimit=1)
        world.run()
        # As a release after this one might write it.
        world.stored[later] = (number, {"form": 2, "pods": data["spec"], "pinned": data["pinned"]})
    assert ("ControllerRevision", later) in world.children
    assert len(numbers(world)) == 2
    assert later not in numbers(world)
    rest(world)
    # The later release is there again: it counts as the others do.
    world.stored[later] = (number, data)
    world.run()
    assert ("ControllerRevision", later) not in world.children


def test_former_groups_are_rendered_from_their_own_revision() -> None:
    world = running(A)
    old = f"demo-w-{world.service.revision}-0"
    begun = named(world, old)
    # Another operator, another spec, and somebody changed the old group by hand.
    world.service = service(B, pinned=NEW)
    world.carry_out(world.plan())
    child = world.children["StatefulSet", old]
    world.children["StatefulSet", old] = replace(child, annotations={})
    assert named(world, old) == begun
    world.carry_out(world.plan())
    assert world.children["StatefulSet", old].annotations == begun["metadata"]["annotations"]
    world.run()
    assert {group.revision for group in world.groups()} == {world.service.revision}
    rest(world)


@pytest.mark.parametrize("harm", ["lost", "unreadable", "other"])
def test_a_former_group_without_a_readable_revision_is_left_as_it_is(harm: str) -> None:
    world = running(A)
    old, first = f"demo-w-{world.service.revision}-0", stored_revision_name(world.service)
    world.service = service(B)
    number, data = world.stored[first]
    if harm == "lost":
        del world.children["ControllerRevision", first]
    elif harm == "unreadable":
        world.stored[first] = (number, {**data, "spec": {**data["spec"], "later": 1}})
    else:
        world.stored[first] = (number, {**data, "spec": {**data["spec"], "topology": "Unified"}})
    world.carry_out(world.plan())
    rendered = [obj for obj in world.plan().apply if obj["kind"] == "StatefulSet"]
    assert {obj["metadata"]["labels"][labels.REVISION] for obj in rendered} <= {
        world.service.revision
    }
    assert old in ready_names(world)
    world.run()
    rest(world)


# -- which pin a spec gets ------------------------------------------------------------------------


def lived(*lives: Resolved) -> Observed:
    """What is there after the service was each of these in turn."""
    world = World(service=lives[0])
    for life in lives:
        world.service = life
        world.run()
    return world.observed()


def test_a_new_service_has_no_pin() -> None:
    assert pinned_defaults(parsed(), history_of(World(service=resolved()).observed())) is None


def test_another_spec_keeps_the_pin_of_the_newest_revision() -> None:
    history = history_of(lived(resolved(OLD, engine=A), resolved(NEW, engine=B)))
    assert pinned_defaults(parsed(engine=C), history) == NEW


def test_an_earlier_spec_gets_its_own_pin_back() -> None:
    history = history_of(lived(resolved(OLD, engine=A), resolved(NEW, engine=B)))
    assert pinned_defaults(parsed(engine=A), history) == OLD
    assert pinned_defaults(parsed(engine=A, replicas=9), history) == OLD


def test_the_pin_that_a_spec_had_last_wins() -> None:
    history = history_of(lived(resolved(OLD, engine=A), resolved(NEW, engine=A)))
    assert pinned_defaults(parsed(engine=A), history) == NEW


def test_revisions_of_somebody_else_are_not_ours() -> None:
    world = World(service=service(A))
    data = {"pinned": {"templateVersion": "v1", "frontendImage": "f", "workerImage": "w"}}
    theirs = RevisionFacts(
        child=foreign("x", "ControllerRevision", "somebody"), number=9, data=data | {"spec": {}}
    )
    formless = RevisionFacts(
        child=foreign("y", "ControllerRevision", world.service.uid), number=9, data=data
    )
    observed = replace(world.observed(), revisions=(theirs, formless))
    assert history_of(observed) == ()
    wanted = plan(world.service, observed, world.now)
    assert [obj["revision"] for obj in wanted.apply if obj["kind"] == "ControllerRevision"] == [1]
