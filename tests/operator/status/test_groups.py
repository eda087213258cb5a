"""Rows and counts of groups: state, reason, since when, by live objects alone."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from tests.operator.documents import resolved
from tests.operator.planner.world import START, World, foreign, ready_pod

from mizzen_operator.observed import Observed, PodFacts
from mizzen_operator.planner.groups import Group, groups_of
from mizzen_operator.render import labels
from mizzen_operator.status.groups import (
    MAX_GROUPS,
    MAX_MESSAGE,
    group_rows,
    tokenizer_counts,
    worker_counts,
)
from mizzen_operator.status.keptout import KeptOut

LATER = START + timedelta(minutes=5)
QUOTA = {"worker": KeptOut(reason="QuotaPending", text="exceeded quota: q")}


def world_of(replicas: int = 1, *, ready: bool = False) -> World:
    world = World(service=resolved(replicas=replicas))
    world.carry_out(world.plan())
    for group in world.groups():
        world.set_ready(group.name, ready=ready)
    return world


def pod_of(group: Group, **facts: Any) -> PodFacts:
    child = foreign(f"{group.name}-0", "Pod", group.facts.child.uid)
    own = {**child.labels, labels.ROLE: labels.ROLE_WORKER}
    return replace(ready_pod(replace(child, labels=own, created_at=LATER)), **facts)


def only_row(world: World, *pods: PodFacts, **more: Any) -> dict[str, Any]:
    observed = replace(world.observed(), pods=pods)
    (row,) = group_rows(groups_of(observed), more.get("kept_out", {}), {})
    return row


def test_a_ready_group_tells_all_but_a_reason() -> None:
    world = world_of(ready=True)
    (group,) = world.groups()
    since = datetime(2026, 1, 1, 7, tzinfo=START.tzinfo)
    assert only_row(world, pod_of(group, ready_changed_at=since, restarts=2)) == {
        "name": group.name,
        "role": "worker",
        "revision": world.service.revision,
        "state": "Ready",
        "ready": "1/1",
        "restarts": 2,
        "leader": f"{group.name}-0",
        "since": "2026-01-01T07:00:00Z",
    }


@pytest.mark.parametrize(
    ("facts", "state", "reason"),
    [
        ({"node_name": "", "unschedulable_message": "no GPU"}, "Pending", "Unschedulable"),
        ({"node_name": ""}, "Pending", "Scheduling"),
        ({}, "Forming", "ContainerCreating"),
        ({"started_at": START}, "Forming", "StartupProbe"),
        ({"waiting_reason": "ErrImagePull"}, "Failed", "ImagePullBackOff"),
        ({"started_at": START, "restarts": 3}, "Failed", "RestartingContainer"),
    ],
)
def test_row_16_a_group_says_what_it_waits_for(
    facts: dict[str, Any], state: str, reason: str
) -> None:
    world = world_of()
    (group,) = world.groups()
    row = only_row(world, pod_of(group, is_ready=False, **facts))
    assert (row["state"], row["reason"]) == (state, reason)
    assert row["message"]
    assert row["since"] == "2026-01-01T00:05:00Z"


def test_a_group_without_its_pod_says_what_keeps_it_out_and_not_since_when() -> None:
    world = world_of()
    row = only_row(world, kept_out=QUOTA)
    assert (row["state"], row["reason"]) == ("Pending", "QuotaPending")
    assert "exceeded quota: q" in row["message"]
    assert not {"since", "leader"} & set(row)
    assert only_row(world)["reason"] == "PodMissing"


def test_a_pod_that_is_evicted_is_what_its_group_waits_for() -> None:
    world = world_of()
    (group,) = world.groups()
    pod = pod_of(group)
    row = only_row(world, replace(pod, child=replace(pod.child, deleting=True, ends_at=LATER)))
    assert (row["state"], row["reason"]) == ("Draining", "Draining")
    assert row["drainsUntil"] == "2026-01-01T00:05:00Z"


def test_a_leaving_group_drains_since_its_deletion() -> None:
    world = world_of(ready=True)
    (group,) = world.groups()
    leaving = replace(group.facts.child, deleting=True, ends_at=LATER)
    world.children["StatefulSet", group.name] = leaving
    row = only_row(world, pod_of(group))
    assert (row["state"], row["reason"], row["since"]) == (
        "Draining",
        "Draining",
        "2026-01-01T00:05:00Z",
    )
    assert row["message"] == "the end of 1 of its pods"
    assert only_row(world)["message"] == "the end of its StatefulSet"


def test_of_very_many_groups_those_that_are_not_ready_are_told() -> None:
    world = world_of(MAX_GROUPS + 6, ready=True)
    last = world.groups()[-1].name
    world.set_ready(last, ready=False)
    rows = group_rows(world.groups(), {}, {})
    assert len(rows) == MAX_GROUPS
    assert last in {row["name"] for row in rows}
    assert [row["name"] for row in rows] == sorted(row["name"] for row in rows)


def test_a_long_message_is_cut() -> None:
    world = world_of()
    (group,) = world.groups()
    lame = pod_of(group, is_ready=False, node_name="", unschedulable_message="x" * 5000)
    assert len(only_row(world, lame)["message"]) == MAX_MESSAGE


def counts(world: World, observed: Observed) -> dict[str, Any]:
    return worker_counts(groups_of(observed), observed, desired=3, revision=world.service.revision)


def test_counts_are_of_live_objects() -> None:
    world = world_of(3, ready=True)
    first, second, third = world.groups()
    world.set_ready(second.name, ready=False)
    world.children["StatefulSet", third.name] = replace(third.facts.child, deleting=True)
    stuck = pod_of(second, is_ready=False, node_name="", unschedulable_message="no GPU")
    seen = replace(world.observed(), pods=(pod_of(first, restarts=2), stuck))
    assert counts(world, seen) == {
        "desired": 3,
        "groups": 2,
        "readyGroups": 1,
        "updatedGroups": 2,
        "drainingGroups": 1,
        "unschedulable": 1,
        "restarts": 2,
        "summary": "1/3",
    }


def test_tokenizers_that_are_not_there_count_as_none() -> None:
    found = tokenizer_counts(None, world_of().observed(), desired=2)
    assert (found["ready"], found["updated"], found["summary"]) == (0, 0, "0/2")
