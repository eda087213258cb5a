"""Each condition tells what the live objects show, and nothing moves while the world rests."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from tests.operator.documents import resolved
from tests.operator.planner.world import START, World, foreign, ready_pod

from mizzen_operator.errors import Problem
from mizzen_operator.observed import ClaimFacts, Observed, PodFacts, ServiceFacts
from mizzen_operator.planner.holds import TemplateAnswers
from mizzen_operator.planner.plan import plan
from mizzen_operator.render.labels import ROLE, ROLE_WORKER
from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.status.refused import refused_status
from mizzen_operator.status.status import service_status

BOUND = ClaimFacts(name="weights", phase="Bound", access_modes=("ReadOnlyMany",))
LATER = START + timedelta(hours=1)


def _service(**spec: Any) -> Resolved:
    return resolved(**{"topology": "Split", "tokenizer": {"replicas": 1}, **spec})


def _pod(world: World, owner: str, **facts: Any) -> PodFacts:
    uid = next(child.uid for child in world.children.values() if child.name == owner)
    base = ready_pod(replace(foreign(f"{owner}-0", "Pod", uid), created_at=world.now))
    return replace(base, **facts)


def _observed(world: World, *pods: PodFacts, claims: tuple[ClaimFacts, ...] = (BOUND,)) -> Observed:
    services = tuple(
        ServiceFacts(child=child)
        for (kind, _), child in world.children.items()
        if kind == "Service"
    )
    return replace(world.observed(), pods=pods, claims=claims, claims_known=True, services=services)


def _running(service: Resolved) -> tuple[World, Observed]:
    world = World(service=service)
    world.run()
    pods = [_pod(world, name) for kind, name in list(world.children) if kind == "StatefulSet"]
    return world, _observed(world, *pods)


def _started(service: Resolved) -> World:
    world = World(service=service)
    world.carry_out(world.plan())
    return world


def _judged(world: World, observed: Observed, failure: str = "") -> dict[str, Any]:
    return service_status(world.service, observed, world.plan(), world.now, failure)


def _condition(status: dict[str, Any], kind: str) -> tuple[str, str, str]:
    (found,) = (item for item in status["conditions"] if item["type"] == kind)
    return found["status"], found["reason"], found["message"]


def test_a_running_service_is_ready() -> None:
    world, observed = _running(_service(replicas=2))
    status = _judged(world, observed)
    truths = {item["type"]: item["status"] for item in status["conditions"]}
    assert truths == {
        "Accepted": "True",
        "ResolvedRefs": "True",
        "ModelReady": "True",
        "Placed": "True",
        "Available": "True",
        "Progressing": "False",
        "RoutingReady": "True",
        "Degraded": "False",
        "Ready": "True",
    }
    assert status["replicas"] == 2
    assert status["url"] == "http://demo.default.svc"
    assert status["modelName"] == "demo"
    assert status["resolvedModel"] == {"source": "pvc://weights/model.gguf"}
    assert status["currentRevision"] == status["updateRevision"] == world.service.revision
    assert "rollout" not in status
    assert status["roles"]["worker"]["summary"] == "2/2"
    assert status["roles"]["tokenizer"]["summary"] == "1/1"
    assert [row["state"] for row in status["groups"]] == ["Ready", "Ready"]
    assert "apps.kubernetes.io/pod-index=0" in status["selector"]
    assert all(item["observedGeneration"] == 1 for item in status["conditions"])


def test_the_status_of_a_resting_world_does_not_change() -> None:
    world, observed = _running(_service())
    first = _judged(world, observed)
    again = replace(observed, service=replace(observed.service, status=first))
    assert service_status(world.service, again, world.plan(), LATER) == first


def test_transition_times_change_only_with_the_status() -> None:
    world, observed = _running(_service())
    first = _judged(world, observed)
    written = replace(observed.service, status=first)
    lame = replace(observed.pods[0], is_ready=False, waiting_reason="CrashLoopBackOff")
    world.set_ready(observed.stateful_sets[0].child.name, ready=False)
    broken = replace(_observed(world, lame), service=written)
    second = service_status(world.service, broken, world.plan(), LATER)
    times = {item["type"]: item["lastTransitionTime"] for item in second["conditions"]}
    before = {item["type"]: item["lastTransitionTime"] for item in first["conditions"]}
    changed = {kind for kind in times if times[kind] != before[kind]}
    assert changed == {"Available", "Degraded", "Progressing", "Ready"}
    assert times["Ready"] == "2026-01-01T01:00:00Z"


def test_an_unschedulable_pod_lifts_the_schedulers_message() -> None:
    world = _started(_service())
    name = world.groups()[0].name
    message = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."
    stuck = _pod(world, name, is_ready=False, node_name="", unschedulable_message=message)
    status = _judged(world, _observed(world, stuck))
    assert _condition(status, "Placed") == ("False", "Unschedulable", f"{name}-0: {message}")
    assert _condition(status, "Ready")[1] == "NoReadyGroup"
    assert status["groups"][0]["state"] == "Pending"
    assert status["groups"][0]["reason"] == "Unschedulable"


@pytest.mark.parametrize(
    ("claims", "reason"),
    [((), "ClaimNotFound"), ((replace(BOUND, phase="Pending"),), "VolumePending")],
)
def test_a_missing_claim_is_the_first_reason(claims: tuple[ClaimFacts, ...], reason: str) -> None:
    world = _started(_service())
    status = _judged(world, _observed(world, claims=claims))
    assert _condition(status, "ModelReady")[:2] == ("False", reason)
    assert _condition(status, "Ready")[:2] == ("False", reason)
    assert "weights" in _condition(status, "Ready")[2]


def test_a_claim_that_may_not_be_read_is_judged_by_the_groups_that_loaded_it() -> None:
    world = _started(_service())
    unread = replace(_observed(world), claims=(), claims_known=False)
    assert _condition(_judged(world, unread), "ModelReady")[0] == "Unknown"
    world.settle()
    loaded = replace(_observed(world), claims=(), claims_known=False)
    assert _condition(_judged(world, loaded), "ModelReady")[:2] == ("True", "Loaded")


def test_a_broken_image_is_degraded_and_says_what_to_see() -> None:
    world = _started(_service())
    name = world.groups()[0].name
    broken = _pod(
        world,
        name,
        is_ready=False,
        waiting_reason="ImagePullBackOff",
        waiting_message='Back-off pulling image "w:1"',
    )
    status = _judged(world, _observed(world, broken))
    assert _condition(status, "Degraded")[:2] == ("True", "ImagePullBackOff")
    assert 'pulling image "w:1"' in _condition(status, "Ready")[2]


def test_restarts_without_readiness_are_degraded() -> None:
    world = _started(_service())
    pod = _pod(world, world.groups()[0].name, is_ready=False, restarts=3, last_exit="OOMKilled")
    truth, reason, message = _condition(_judged(world, _observed(world, pod)), "Degraded")
    assert (truth, reason) == ("True", "Restarting")
    assert "3 restarts; last end: OOMKilled" in message


def test_row_10_a_late_group_exceeds_its_deadline_but_a_restarted_one_begins_anew() -> None:
    world = _started(_service(engine={"startupDeadlineSeconds": 60}))
    pod = _pod(world, world.groups()[0].name, is_ready=False)
    world.now += timedelta(seconds=61)
    late = _judged(world, _observed(world, pod))
    assert _condition(late, "Progressing")[:2] == ("False", "ProgressDeadlineExceeded")
    restarted = replace(pod, started_at=world.now - timedelta(seconds=5))
    fresh = _judged(world, _observed(world, restarted))
    assert _condition(fresh, "Progressing")[:2] == ("True", "RollingOut")


def test_row_10_a_rollout_is_available_but_not_ready() -> None:
    world, observed = _running(_service(replicas=2))
    world.service = _service(replicas=2, worker={"drain": {"timeoutSeconds": 1}})
    world.carry_out(world.plan())
    status = _judged(world, _observed(world, *observed.pods))
    assert _condition(status, "Available")[0] == "True"
    assert _condition(status, "Progressing")[:2] == ("True", "RollingOut")
    assert _condition(status, "Ready")[:2] == ("False", "RollingOut")
    assert status["updateRevision"] == world.service.revision


def test_a_rollout_says_where_from_where_to_and_how_far() -> None:
    world, observed = _running(_service(replicas=2))
    before = world.service.revision
    world.service = _service(replicas=2, worker={"drain": {"timeoutSeconds": 1}})
    status = _judged(world, observed)
    assert (status["currentRevision"], status["updateRevision"]) == (before, world.service.revision)
    assert status["rollout"] == {"from": before, "to": world.service.revision, "updated": "0/2"}
    paused = _service(replicas=2, paused=True, worker={"drain": {"timeoutSeconds": 1}})
    world.service = paused
    assert _judged(world, observed)["rollout"]["blockedBy"] == "spec.paused is true"


def test_a_group_that_is_missing_says_in_ready_what_it_waits_for() -> None:
    world, observed = _running(_service(replicas=2))
    name = world.groups()[1].name
    world.set_ready(name, ready=False)
    stuck = _pod(world, name, is_ready=False, node_name="", unschedulable_message="no GPU")
    seen = _observed(world, observed.pods[0], stuck)
    _, _, message = _condition(_judged(world, seen), "Ready")
    assert message.endswith(f"; {name} waits for a node: no GPU")


def test_without_a_ready_tokenizer_nothing_is_available() -> None:
    world, observed = _running(_service())
    world.ready["demo-tokenizer"] = 0
    status = _judged(world, _observed(world, *observed.pods))
    assert _condition(status, "Available")[:2] == ("False", "NoReadyTokenizer")


@pytest.mark.parametrize(
    ("spec", "reason"), [({"stopped": True}, "Stopped"), ({"replicas": 0}, "ScaledToZero")]
)
def test_row_15_a_service_without_pods_says_who_wanted_that(
    spec: dict[str, Any], reason: str
) -> None:
    world, observed = _running(_service(**spec))
    status = _judged(world, observed)
    assert _condition(status, "Available")[:2] == ("False", reason)
    assert _condition(status, "Ready")[1] == reason
    assert _condition(status, "Progressing")[:2] == ("False", "Complete")


def test_scaling_to_zero_is_progress_until_the_last_group_has_ended() -> None:
    world, observed = _running(_service())
    world.service = _service(replicas=0)
    world.carry_out(world.plan())
    status = _judged(world, _observed(world, *observed.pods))
    assert _condition(status, "Progressing")[:2] == ("True", "RollingOut")
    world.settle()
    status = _judged(world, _observed(world))
    assert _condition(status, "Progressing")[:2] == ("False", "Complete")


@pytest.mark.parametrize(
    ("state", "words"),
    [("starting", "starting: "), ("ready", "not counted"), ("ending", "ending: ")],
)
def test_a_pod_that_is_there_is_named(state: str, words: str) -> None:
    world, observed = _running(_service())
    world.set_ready(world.groups()[0].name, ready=False)
    child = observed.pods[0].child
    worker = {**child.labels, ROLE: ROLE_WORKER}
    child = replace(child, deleting=state == "ending", labels=worker)
    pod = replace(observed.pods[0], child=child, is_ready=state == "ready")
    quiet = replace(world.plan(), blocked_by="")
    seen = _observed(world, pod)
    message = _condition(service_status(world.service, seen, quiet, world.now), "Available")[2]
    assert words in message
    assert pod.child.name in message
    none = service_status(world.service, _observed(world), quiet, world.now)
    assert _condition(none, "Available")[2] == "no worker pod exists yet"


def test_a_load_balancer_without_an_address_is_not_routed() -> None:
    service = _service(routing={"service": {"type": "LoadBalancer"}})
    world, observed = _running(service)
    assert _condition(_judged(world, observed), "RoutingReady")[1] == "AddressPending"
    given = tuple(replace(facts, ingress_addresses=("192.0.2.1",)) for facts in observed.services)
    status = _judged(world, replace(observed, services=given))
    assert _condition(status, "RoutingReady")[0] == "True"


def test_a_failed_reconcile_is_degraded() -> None:
    world, observed = _running(_service())
    status = _judged(world, observed, failure="403: quota exceeded")
    assert _condition(status, "Degraded") == ("True", "ReconcileError", "403: quota exceeded")


PROBLEM = Problem(field="spec.x", value="1", message="is wrong", remedy="use 2")


def _refused(world: World, observed: Observed, problem: Problem = PROBLEM) -> dict[str, Any]:
    before = replace(observed.service, status=_judged(world, observed), generation=2)
    return refused_status([problem], replace(observed, service=before), LATER)


def test_a_refused_spec_names_the_field_and_what_runs_is_judged() -> None:
    world, observed = _running(_service())
    status, before = _refused(world, observed), _judged(world, observed)
    message = "spec.x: is wrong (found 1); use 2; the pods of the last good spec go on"
    assert _condition(status, "Accepted") == ("False", "InvalidSpec", message)
    assert _condition(status, "Ready") == ("False", "InvalidSpec", message)
    assert _condition(status, "Available") == _condition(before, "Available")
    for kind in ("ModelReady", "Placed", "RoutingReady"):
        assert _condition(status, kind)[0] == "True", kind
    assert _condition(status, "Progressing")[:2] == ("False", "SpecRefused")
    assert _condition(status, "Degraded")[0] == "False"
    assert (status["observedGeneration"], status["replicas"]) == (2, 1)
    for key in ("url", "roles", "groups", "selector"):
        assert status[key] == before[key], key


def test_a_pod_that_breaks_while_the_spec_is_refused_is_seen() -> None:
    world, observed = _running(_service(replicas=2))
    status = _judged(world, observed)
    lame = replace(observed.pods[0], is_ready=False, waiting_reason="CrashLoopBackOff")
    for group in world.groups():
        world.set_ready(group.name, ready=False)
    broken = replace(_observed(world, lame), service=replace(observed.service, status=status))
    status = refused_status([PROBLEM], broken, LATER)
    assert _condition(status, "Available")[:2] == ("False", "NoReadyGroup")
    assert "CrashLoopBackOff" in _condition(status, "Available")[2]
    assert _condition(status, "Degraded")[0] == "True"
    assert _condition(status, "Placed")[:2] == ("False", "Pending")
    assert status["roles"]["worker"]["summary"] == "0/2"


def test_tokenizers_and_addresses_count_while_the_spec_is_refused() -> None:
    world, observed = _running(_service())
    world.ready["demo-tokenizer"] = 0
    waiting = tuple(replace(facts, type="LoadBalancer") for facts in observed.services)
    seen = replace(_observed(world, *observed.pods), services=waiting)
    status = _refused(world, seen)
    assert _condition(status, "Available")[:2] == ("False", "NoReadyTokenizer")
    assert _condition(status, "RoutingReady")[:2] == ("False", "AddressPending")
    status = _refused(world, replace(seen, services=()))
    assert _condition(status, "RoutingReady")[:2] == ("False", "ServiceMissing")


def test_a_spec_refused_from_the_start_has_nothing_that_goes_on() -> None:
    world = World(service=_service())
    status = refused_status([PROBLEM], world.observed(), LATER)
    assert _condition(status, "Accepted")[2] == PROBLEM.sentence()
    assert _condition(status, "Available")[:2] == ("False", "SpecRefused")
    assert _condition(status, "ModelReady")[0] == "Unknown"
    assert status["roles"]["worker"]["summary"] == "0/0"


def test_a_long_refusal_still_says_what_goes_on() -> None:
    world, observed = _running(_service())
    long = replace(PROBLEM, message="x" * 5000)
    message = _condition(_refused(world, observed, long), "Accepted")[2]
    assert len(message) == 1024
    assert message.endswith("; the pods of the last good spec go on")


REFUSED = replace(PROBLEM, reason="InvalidPodTemplate")


def _answered(world: World, observed: Observed, **answers: Any) -> dict[str, Any]:
    wanted = plan(world.service, observed, world.now, TemplateAnswers(**answers))
    return service_status(world.service, observed, wanted, world.now)


def test_a_refused_template_is_not_accepted_and_what_runs_is_judged() -> None:
    world, observed = _running(_service())
    world.service = _service(worker={"drain": {"timeoutSeconds": 5}})
    status = _answered(world, observed, refused={"worker": REFUSED})
    message = f"{REFUSED.sentence()}; the pods of the last good spec go on"
    assert _condition(status, "Accepted") == ("False", "InvalidPodTemplate", message)
    assert _condition(status, "Ready") == ("False", "InvalidPodTemplate", message)
    assert _condition(status, "Progressing") == (
        "False", "TemplateRefused",
        "the API server refuses the worker pods: condition Accepted says why",
    )  # fmt: skip
    assert _condition(status, "Available")[0] == "True"
    assert _condition(status, "Degraded")[0] == "False"


def test_refused_tokenizers_do_not_hide_that_workers_roll() -> None:
    world, observed = _running(_service())
    refused = {"tokenizer": REFUSED}
    assert _condition(_answered(world, observed, refused=refused), "Progressing")[0] == "False"
    world.service = _service(worker={"drain": {"timeoutSeconds": 5}})
    assert _condition(_answered(world, observed, refused=refused), "Progressing")[0] == "True"


def test_a_full_quota_is_the_reason_for_missing_pods_and_for_nothing_else() -> None:
    world, observed = _running(_service())
    full = {"worker": "exceeded quota: team"}
    assert _condition(_answered(world, observed, kept_out=full), "Placed")[:2] == (
        "True", "Scheduled",
    )  # fmt: skip
    missing = replace(observed, pods=())
    status = _answered(world, missing, kept_out=full)
    assert _condition(status, "Placed") == (
        "False", "QuotaPending", "exceeded quota: team; pods are made as soon as there is room",
    )  # fmt: skip
    assert _condition(status, "Accepted")[0] == "True"


def test_a_full_quota_is_told_beside_what_the_scheduler_says() -> None:
    world = _started(_service())
    stuck = _pod(world, world.groups()[0].name, node_name="", unschedulable_message="no GPU")
    status = _answered(world, _observed(world, stuck), kept_out={"tokenizer": "exceeded quota: t"})
    truth, reason, message = _condition(status, "Placed")
    assert (truth, reason) == ("False", "Unschedulable")
    assert message.endswith("no GPU; exceeded quota: t; pods are made as soon as there is room")


def test_messages_fit_the_schema() -> None:
    world, observed = _running(_service())
    status = _judged(world, observed, failure="x" * 5000)
    assert len(_condition(status, "Degraded")[2]) == 1024


def test_the_status_fits_its_schema() -> None:
    from mizzen_operator.spec.crd import crd

    schema = crd()["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"]
    world, observed = _running(_service())

    def check(value: Any, part: dict[str, Any], path: str) -> None:
        if isinstance(value, dict):
            for name, item in value.items():
                assert name in part["properties"], f"{path}.{name} is not in the CRD"
                check(item, part["properties"][name], f"{path}.{name}")
        elif isinstance(value, list):
            for item in value:
                check(item, part["items"], f"{path}[]")

    check(_judged(world, observed), schema, "status")
    check(_refused(world, observed), schema, "status")


def test_a_unified_service_needs_no_tokenizers() -> None:
    world, observed = _running(resolved(routing={"service": {"port": 8080}}))
    status = _judged(world, observed)
    assert _condition(status, "Ready")[0] == "True"
    assert set(status["roles"]) == {"worker"}
    assert status["url"] == "http://demo.default.svc:8080"


def test_tokenizers_that_start_are_progress_and_not_ready() -> None:
    world, observed = _running(_service())
    world.updated["demo-tokenizer"] = 0
    status = _judged(world, _observed(world, *observed.pods))
    assert _condition(status, "Progressing")[:2] == ("True", "TokenizersStarting")
    assert _condition(status, "Ready")[:2] == ("False", "TokenizersNotReady")


def test_a_service_that_is_not_there_yet_is_not_routed() -> None:
    world, observed = _running(_service())
    status = _judged(world, replace(observed, services=()))
    assert _condition(status, "RoutingReady")[:2] == ("False", "ServiceMissing")


def test_a_pod_without_a_node_is_pending() -> None:
    world = _started(_service())
    pod = _pod(world, world.groups()[0].name, is_ready=False, node_name="")
    assert _condition(_judged(world, _observed(world, pod)), "Placed")[:2] == ("False", "Pending")


def test_paused_is_said_and_what_runs_stays_available() -> None:
    world, observed = _running(_service())
    world.service = _service(paused=True)
    status = _judged(world, observed)
    assert _condition(status, "Progressing")[:2] == ("False", "Paused")
    assert _condition(status, "Available")[0] == "True"


def test_a_paused_service_that_was_changed_is_not_ready() -> None:
    world, observed = _running(_service())
    world.service = _service(paused=True, engine={"contextLength": 77})
    status = _judged(world, observed)
    assert _condition(status, "Ready")[:2] == ("False", "Paused")
    assert _condition(status, "Available")[0] == "True"
