"""What a refused role holds up: its own changes, and a change of cohort as a whole."""

from dataclasses import replace
from typing import Any

import pytest
from tests.operator.documents import resolved
from tests.operator.planner.world import World

from mizzen_operator.errors import Problem
from mizzen_operator.planner.holds import (
    NO_OBJECTION,
    TemplateAnswers,
    role_templates,
)
from mizzen_operator.planner.model import Plan
from mizzen_operator.planner.plan import plan
from mizzen_operator.render import labels
from mizzen_operator.spec.resolve import Resolved

A = {"contextLength": 1024}
B = {"contextLength": 2048}
SLOW = {"drain": {"timeoutSeconds": 5}}
PROBLEM = Problem(field="spec.worker", value="", message="no", remedy="yes")


def service(engine: dict[str, Any], replicas: int = 2, **spec: Any) -> Resolved:
    return resolved(engine=engine, replicas=replicas, topology="Split", **spec)


def running(engine: dict[str, Any], replicas: int = 2) -> World:
    world = World(service=service(engine, replicas))
    world.run()
    return world


def refused(*roles: str) -> TemplateAnswers:
    return TemplateAnswers(refused=dict.fromkeys(roles, PROBLEM))


def planned(world: World, answers: TemplateAnswers) -> Plan:
    return plan(world.service, world.observed(), world.now, answers)


def kinds(wanted: Plan) -> set[str]:
    return {obj["kind"] for obj in wanted.apply}


def test_without_an_objection_the_plan_is_the_same() -> None:
    world = running(A)
    world.service = service(B)
    assert planned(world, NO_OBJECTION) == world.plan()
    full = TemplateAnswers(kept_out={"worker": "full"})
    assert replace(planned(world, full), templates=NO_OBJECTION) == world.plan()


@pytest.mark.parametrize("role", ["worker", "tokenizer"])
def test_a_refused_role_leaves_another_cohort_whole(role: str) -> None:
    world = running(A)
    world.service = service(B)
    wanted = planned(world, refused(role))
    assert (wanted.apply, wanted.delete, wanted.keys) == ((), (), None)
    assert (wanted.is_rolling, wanted.is_refused) == (True, True)
    assert f"refuses the {role} pods" in wanted.blocked_by


def test_refused_workers_of_the_same_cohort_keep_every_group_and_let_tokenizers_go_on() -> None:
    world = running(A)
    world.service = service(A, worker=SLOW)
    wanted = planned(world, refused("worker"))
    assert wanted.delete == ()
    assert "StatefulSet" not in kinds(wanted)
    assert "Deployment" in kinds(wanted)
    found = [obj["metadata"]["labels"].get(labels.ROLE) for obj in wanted.apply]
    assert "worker" not in found


def test_refused_tokenizers_of_the_same_cohort_let_workers_roll() -> None:
    world = running(A)
    world.service = service(A, worker=SLOW)
    wanted = planned(world, refused("tokenizer"))
    assert "Deployment" not in kinds(wanted)
    assert [item.kind for item in wanted.delete] == ["StatefulSet"]


@pytest.mark.parametrize("role", ["worker", "tokenizer"])
def test_in_a_new_service_the_other_role_begins(role: str) -> None:
    world = World(service=service(A))
    wanted = planned(world, refused(role))
    other = {"worker": "Deployment", "tokenizer": "StatefulSet"}[role]
    assert kinds(wanted) & {"Deployment", "StatefulSet"} == {other}
    assert wanted.keys is not None
    assert "ServiceAccount" in kinds(wanted)


def test_what_a_held_role_still_has_is_not_pruned() -> None:
    world = running(A)
    world.service = service(A, replicas=1, worker=SLOW)
    pruned = [item.name for item in world.plan().delete]
    assert "demo-worker" in pruned
    assert planned(world, refused("worker")).delete == ()


def test_a_refused_revision_that_lives_can_be_scaled_down() -> None:
    world = running(A, replicas=3)
    world.service = service(A, replicas=1)
    wanted = planned(world, refused("worker"))
    assert [item.reason for item in wanted.delete] == ["scaled down"] * 2


def test_no_answer_holds_a_role_as_a_refusal_does() -> None:
    world = running(A)
    world.service = service(B)
    wanted = planned(world, TemplateAnswers(unanswered={"worker": "no route"}))
    assert (wanted.apply, wanted.is_refused) == ((), False)
    assert wanted.blocked_by.endswith("could not be asked about the worker pods: no route")


def test_a_roll_out_that_has_to_remove_first_is_asked_about_before() -> None:
    world = running(A)
    world.service = service(B)
    wanted = world.plan()
    groups = [obj for obj in wanted.apply if obj["kind"] == "StatefulSet"]
    revisions = {obj["metadata"]["labels"][labels.REVISION] for obj in groups}
    assert world.service.revision not in revisions
    assert "Deployment" not in kinds(wanted)
    worker, tokenizer = role_templates(world.service, wanted.apply)
    assert (worker.role, worker.owner["kind"]) == ("worker", "StatefulSet")
    assert worker.owner["metadata"]["name"] == f"demo-w-{world.service.revision}-0"
    assert (tokenizer.role, tokenizer.owner["kind"]) == ("tokenizer", "Deployment")
    assert tokenizer.template["metadata"]["labels"][labels.COHORT] == world.service.cohort


def test_what_is_rendered_anyway_is_not_rendered_twice() -> None:
    world = running(A)
    wanted = world.plan()
    worker, tokenizer = role_templates(world.service, wanted.apply)
    assert all(any(obj is item for item in wanted.apply) for obj in worker.objects)
    assert len(worker.objects) == 2
    assert any(tokenizer.owner is item for item in wanted.apply)


@pytest.mark.parametrize(
    ("spec", "roles"),
    [({"replicas": 0}, ["tokenizer"]), ({"stopped": True}, []), ({}, ["worker", "tokenizer"])],
)
def test_only_roles_that_shall_have_pods_are_asked_about(
    spec: dict[str, Any], roles: list[str]
) -> None:
    found = role_templates(service(A, **spec), ())
    assert [item.role for item in found] == roles
