"""Which owners have too few pods, as far as a snapshot tells."""

from dataclasses import replace

from tests.operator.documents import resolved
from tests.operator.planner.world import World, foreign, ready_pod

from mizzen_operator.observed import Observed, PodFacts
from mizzen_operator.planner.shortage import owners_short_of_pods
from mizzen_operator.render import labels
from mizzen_operator.spec.resolve import Resolved


def split() -> Resolved:
    return resolved(topology="Split", replicas=2, tokenizer={"replicas": 1})


def running() -> World:
    world = World(service=split())
    world.run()
    return world


def pod_of(world: World, index: int, *, deleting: bool = False) -> PodFacts:
    facts = world.groups()[index].facts
    child = foreign(f"{facts.child.name}-0", "Pod", facts.child.uid)
    return ready_pod(replace(child, deleting=deleting))


def short(world: World, observed: Observed) -> dict[str, str]:
    found = owners_short_of_pods(world.service, observed, world.plan().apply)
    return {role: owner["metadata"]["name"] for role, owner in found.items()}


def test_a_group_without_its_pod_is_short_and_others_are_not() -> None:
    world = running()
    first, second = world.groups()
    assert short(world, world.observed()) == {"worker": first.name}
    one = replace(world.observed(), pods=(*world.observed().pods, pod_of(world, 0)))
    assert short(world, one) == {"worker": second.name}


def test_a_pod_that_ends_is_in_the_place_of_the_next_one() -> None:
    world = running()
    pods = (*world.observed().pods, pod_of(world, 0, deleting=True), pod_of(world, 1))
    assert short(world, replace(world.observed(), pods=pods)) == {}


def test_tokenizers_that_end_or_are_of_another_cohort_do_not_count() -> None:
    world = running()
    workers = (pod_of(world, 0), pod_of(world, 1))
    (tokenizer,) = world.observed().pods
    ending = replace(tokenizer, child=replace(tokenizer.child, deleting=True))
    other = {**tokenizer.child.labels, labels.COHORT: "other"}
    former = replace(tokenizer, child=replace(tokenizer.child, labels=other))
    for pod in (ending, former):
        seen = replace(world.observed(), pods=(*workers, pod))
        assert short(world, seen) == {"tokenizer": "demo-tokenizer"}


def test_what_does_not_live_yet_is_not_short() -> None:
    world = World(service=split())
    wanted = owners_short_of_pods(world.service, world.observed(), world.plan().apply)
    assert set(wanted) == {"tokenizer"}


def test_the_group_of_another_service_is_no_measure() -> None:
    world = running()
    mine = world.observed()
    strange = tuple(
        replace(facts, child=replace(facts.child, owner_uid="other"))
        for facts in mine.stateful_sets
    )
    assert short(world, replace(mine, stateful_sets=strange)) == {}
