import random
from contextlib import suppress
from typing import Any

import pytest
from tests.operator.fake_cluster import (
    DEPLOYMENT,
    STATEFULSET,
    Call,
    FakeCluster,
    OperatorDied,
)
from tests.operator.fake_controllers import Controllers
from tests.operator.fake_operator import (
    DEFAULTS,
    Clock,
    FakeOperator,
    cluster_with_claim,
    condition,
    converge,
    service_manifest,
    started,
)
from tests.scale import count

from mizzen_operator.cluster.events import EVENT
from mizzen_operator.errors import (
    ConflictError,
    ForbiddenError,
    RejectedError,
    ThrottledError,
    UnavailableError,
)
from mizzen_operator.spec.resolve import Defaults
from mizzen_operator.store import (
    SECRET,
    SERVICE_KIND,
)


def what_matters(cluster: FakeCluster) -> list[Any]:
    """Every object without what differs between two equal worlds."""
    found = []
    for manifest in cluster.objects():
        if manifest["kind"] == "Event":
            continue
        for name in ("uid", "resourceVersion", "generation"):
            manifest["metadata"].pop(name, None)
        for owner in manifest["metadata"].get("ownerReferences") or ():
            owner.pop("uid")
        if manifest["kind"] == "Secret":
            assert len(manifest.pop("data")) == 4
        for item in (manifest.get("status") or {}).get("conditions") or ():
            item.pop("lastTransitionTime", None)
        found.append(manifest)
    return found


def test_a_restarted_operator_writes_nothing_but_asks_for_its_secret() -> None:
    operator = started()
    operator.die()
    num_writes, dry_runs = len(operator.cluster.writes), operator.cluster.dry_runs
    successor = FakeOperator(operator.cluster, operator.clock)
    successor.run()
    later = operator.cluster.writes[num_writes:]
    assert operator.cluster.dry_runs == dry_runs
    assert {(call.verb, call.ref.kind) for call in later} == {("create", SECRET), ("patch", SECRET)}
    before = operator.cluster.objects()
    successor.reconcile_all()
    assert operator.cluster.objects() == before


def all_changes(cluster: FakeCluster) -> None:
    """Creation, a rolling change, scaling down, other keys; monitoring comes and goes."""
    engine = {"args": ["--seed", "1"]}
    for spec in (
        {"replicas": 2, "observability": {}},
        {"replicas": 2, "observability": {"interval": "30s", "rules": False}, "engine": engine},
        {"replicas": 1, "engine": engine},
        {"replicas": 1, "engine": engine, "security": {"keyRotation": "2027-01-01"}},
    ):
        yield lambda spec=spec: cluster.put(SERVICE_KIND, service_manifest(**spec))


def live(cluster: FakeCluster, *, die_after: int | None, successor: Defaults = DEFAULTS) -> int:
    """Live through all changes, dying once after the given number of writes; number of writes.

    The successor may be another release, with other defaults.
    """
    clock = Clock()
    operator = FakeOperator(cluster, clock)
    num_writes = 0

    def count(call: Call) -> None:
        nonlocal num_writes
        num_writes += 1
        if num_writes == die_after:
            raise OperatorDied

    cluster.after_write = count
    for change in all_changes(cluster):
        change()
        try:
            converge(operator)
        except OperatorDied:
            operator.die()
            operator = FakeOperator(cluster, clock, successor)
            converge(operator)
    operator.die()
    return num_writes


def test_dying_after_any_write_leads_to_the_same_world() -> None:
    undisturbed = cluster_with_claim()
    num_writes = live(undisturbed, die_after=None)
    assert num_writes > 20
    expected = what_matters(undisturbed)
    for die_after in range(1, num_writes + 1, count(check=5, full=1)):
        cluster = cluster_with_claim()
        live(cluster, die_after=die_after)
        assert what_matters(cluster) == expected, f"after write {die_after}"


def test_an_upgrade_after_any_write_leads_to_the_same_world() -> None:
    undisturbed = cluster_with_claim()
    num_writes = live(undisturbed, die_after=None)
    expected = what_matters(undisturbed)
    later = Defaults(frontend_image="mizzen/frontend:2", worker_image="mizzen/worker:2")
    offer = "UpdateAvailable"
    # The first is the ServiceAccount, the second stores what it begins with.
    for die_after in range(2, num_writes + 1, count(check=5, full=1)):
        cluster = cluster_with_claim()
        live(cluster, die_after=die_after, successor=later)
        found = what_matters(cluster)
        (status,) = (item["status"] for item in found if item["kind"] == SERVICE_KIND.kind)
        assert [item["type"] for item in status["conditions"]].count(offer) == 1
        status["conditions"] = [item for item in status["conditions"] if item["type"] != offer]
        assert found == expected, f"after write {die_after}"


@pytest.mark.parametrize(
    ("first", "error"),
    [
        (0, ConflictError("changed")),
        (1, UnavailableError("away")),
        (2, ThrottledError("slowly", retry_after_s=1.0)),
    ],
)
def test_every_call_may_fail_once(first: int, error: Exception) -> None:
    """Every third call in the quick checks: the three errors take turns."""
    expected = what_matters(started(observability={}).cluster)
    num_calls = len(started(observability={}).cluster.calls)
    step = count(check=3, full=1)
    for number in range(first % step, num_calls, step):
        cluster = cluster_with_claim()
        cluster.put(SERVICE_KIND, service_manifest(observability={}))
        operator = FakeOperator(cluster, Clock())
        operator.run_lists()
        left = number

        def fail(call: Call) -> None:
            nonlocal left
            left -= 1
            if left == -1:
                raise error

        cluster.before = fail
        converge(operator)
        assert what_matters(cluster) == expected, f"call {number}"


STORM = (
    ConflictError("changed"),
    UnavailableError("away"),
    ThrottledError("slowly", retry_after_s=1.0),
)


def live_in_a_storm(seed: int) -> FakeCluster:
    """Live through all changes while every third call fails somehow; then the storm ends."""
    dice = random.Random(seed)
    cluster = cluster_with_claim()
    operator = FakeOperator(cluster, Clock())
    operator.run_lists()

    def fail(call: Call) -> None:
        if dice.random() < 0.33:
            raise dice.choice(STORM)

    for change in all_changes(cluster):
        change()
        cluster.before = fail
        for _ in range(dice.randrange(1, 30)):
            # It may go on for longer than anybody tries: only what follows must come to rest.
            with suppress(AssertionError):
                operator.run()
            if not operator.dirty:
                break
        cluster.before = lambda call: None
        converge(operator)
    return cluster


def test_a_storm_leads_to_the_same_world() -> None:
    undisturbed = cluster_with_claim()
    live(undisturbed, die_after=None)
    expected = what_matters(undisturbed)
    for seed in range(count(check=5, full=100)):
        assert what_matters(live_in_a_storm(seed)) == expected, f"seed {seed}"


@pytest.mark.parametrize("jump_s", [-3600.0, 3600.0])
def test_a_jump_of_the_clock_deletes_nothing_and_stops_nothing(jump_s: float) -> None:
    """Wall time jumps after a write, and back at the next change."""
    undisturbed = cluster_with_claim()
    num_writes = live(undisturbed, die_after=None)
    expected = what_matters(undisturbed)
    deleted = [call.ref for call in undisturbed.writes if call.verb == "delete"]
    for jump_after in range(1, num_writes + 1, count(check=7, full=1)):
        cluster, clock = cluster_with_claim(), Clock()
        operator = FakeOperator(cluster, clock)
        num_done = 0

        def jump(call: Call, clock: Clock = clock, jump_after: int = jump_after) -> None:
            nonlocal num_done
            num_done += 1
            if num_done == jump_after:
                clock.jumped_s = jump_s

        cluster.after_write = jump
        for change in all_changes(cluster):
            clock.jumped_s = 0.0
            change()
            converge(operator)
        assert what_matters(cluster) == expected, f"after write {jump_after}"
        assert [call.ref for call in cluster.writes if call.verb == "delete"] == deleted


def test_a_deletion_planned_from_old_news_is_not_carried_out() -> None:
    operator = started(replicas=2)
    cluster = operator.cluster
    cluster.put(SERVICE_KIND, service_manifest(replicas=1))
    victims = set(cluster.refs(STATEFULSET))

    def interfere(call: Call) -> None:
        if call.verb == "get" and call.ref in victims:
            cluster.before = lambda call: None
            cluster.edit(call.ref, lambda manifest: manifest["metadata"].update(annotations={}))

    cluster.before = interfere
    converge(operator)
    assert any("changed since its deletion was planned" in str(e) for e in operator.errors)
    assert len(cluster.refs(STATEFULSET)) == 1


@pytest.mark.parametrize("error", [ForbiddenError("quota"), RejectedError("spec: invalid")])
def test_what_a_person_must_see_is_in_the_status_and_retried(error) -> None:
    cluster = cluster_with_claim()
    cluster.put(SERVICE_KIND, service_manifest())
    is_failing = True

    def refuse(call: Call) -> None:
        nonlocal num_refused
        if is_failing and call.ref.kind == DEPLOYMENT and call.is_write:
            num_refused += 1
            raise error

    num_refused = 0
    cluster.before = refuse
    operator = FakeOperator(cluster, Clock())
    with pytest.raises(AssertionError, match="not at rest"):
        operator.run()
    degraded = condition(cluster, "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "ReconcileError")
    assert str(error) in degraded["message"]
    is_failing = False
    converge(operator)
    assert condition(cluster, "Degraded")["status"] == "False"


def test_one_event_per_transition_also_across_a_crash() -> None:
    cluster = cluster_with_claim()
    cluster.put(SERVICE_KIND, service_manifest())
    operator = FakeOperator(cluster, Clock())

    def die_at_status(call: Call) -> None:
        if call.subresource == "status" and cluster.refs(EVENT):
            cluster.before = lambda call: None
            raise OperatorDied

    operator.run()
    Controllers(cluster).settle()
    cluster.before = die_at_status
    with pytest.raises(OperatorDied):
        operator.run()
    operator.die()
    converge(FakeOperator(cluster, operator.clock))
    texts = [event["message"] for event in cluster.objects(EVENT)]
    assert len(texts) == len(set(texts))
    assert any(text.startswith("Ready is True") for text in texts)


def test_a_change_missed_by_the_watch_is_found_by_a_list() -> None:
    operator = started()
    cluster = operator.cluster
    operator.die()
    cluster.remove(cluster.refs(DEPLOYMENT)[0])
    operator.run_lists()
    operator.run()
    assert len(cluster.refs(DEPLOYMENT)) == 1
    assert sum(operator.resync.num_repairs.values()) > 0
