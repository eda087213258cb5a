"""What is remembered of dry runs: when they are made again, and what is told while none is made."""

from itertools import pairwise
from typing import Any

import pytest
from tests.operator.fake_cluster import DEPLOYMENT, STATEFULSET, Call
from tests.operator.fake_operator import cluster_with_claim, condition, converge, started
from tests.operator.test_dry_run import BIG, change, limit_range

from mizzen_operator.errors import RejectedError
from mizzen_operator.store import POD, SECRET, ObjectRef


def test_a_refusal_is_asked_about_again_after_growing_delays_and_heals() -> None:
    cluster = cluster_with_claim()
    cluster.admit = limit_range()
    operator = started(cluster, worker=BIG)
    moments: list[float] = []

    def note(call: Call) -> None:
        if call.is_dry_run and call.ref.kind == STATEFULSET:
            moments.append(operator.clock.now_s)

    cluster.before = note
    writes = len(cluster.writes)
    for _ in range(600):
        # As slow as the queue is: the wait that the last pass asked for, at most 4 s of it.
        (wait_s,) = operator.waits_s.values()
        assert wait_s is not None
        operator.clock.now_s += max(0.0, min(wait_s, 4.0) - 2.0)
        operator.reconcile_all()
    gaps = [later - sooner for sooner, later in pairwise(moments)]
    assert len(gaps) > 6
    for gap_s, delay_s in zip(gaps, (20, 40, 80, 160, 300, 300), strict=False):
        assert delay_s <= gap_s < delay_s + 5
    # The keys of a service that is not well are looked after as ever.
    assert {call.ref.kind for call in cluster.writes[writes:]} <= {SECRET}
    cluster.admit = lambda ref, manifest: None
    operator.clock.now_s += 300
    operator.reconcile_all()
    converge(operator)
    assert condition(cluster, "Ready")["status"] == "True"
    assert condition(cluster, "Accepted")["reason"] == "Valid"


def test_an_edit_is_asked_about_at_once() -> None:
    cluster = cluster_with_claim()
    cluster.admit = limit_range()
    operator = started(cluster, worker=BIG)
    change(operator, worker={"resources": {"requests": {"cpu": "2"}}})
    assert condition(cluster, "Ready")["status"] == "True"


def test_an_edit_of_what_is_no_part_of_the_template_is_asked_about_at_once() -> None:
    """A policy may speak of the owner; what was accepted is not asked about again."""
    cluster = cluster_with_claim()

    def admit(ref: ObjectRef, manifest: dict[str, Any]) -> None:
        if ref.kind == DEPLOYMENT and manifest["spec"]["replicas"] > 2:
            raise RejectedError("422", said="at most 2 replicas")

    cluster.admit = admit
    operator = started(cluster, tokenizer={"replicas": 5})
    assert "at most 2 replicas" in condition(cluster, "Accepted")["message"]
    before = len(cluster.dry_runs)
    change(operator, tokenizer={"replicas": 2})
    assert {call.ref.name for call in cluster.dry_runs[before:] if call.ref.kind != POD} == {
        ref.name for ref in cluster.refs(DEPLOYMENT)
    }
    assert len(cluster.dry_runs) == before + 2
    assert condition(cluster, "Ready")["status"] == "True"


@pytest.mark.parametrize("engine", [{}, {"contextLength": 77}], ids=["same-cohort", "new-cohort"])
def test_a_refused_service_that_is_paused_stays_refused_and_asks_nothing(
    engine: dict[str, Any],
) -> None:
    operator = started()
    cluster = operator.cluster
    cluster.admit = limit_range()
    change(operator, worker=BIG, engine=engine)
    said = condition(cluster, "Accepted")["message"]
    asked = len(cluster.dry_runs)
    change(operator, worker=BIG, engine=engine, paused=True)
    operator.clock.now_s += 1000
    operator.reconcile_all()
    assert len(cluster.dry_runs) == asked
    assert list(operator.waits_s.values()) == [None]
    accepted = condition(cluster, "Accepted")
    assert (accepted["reason"], accepted["message"]) == ("InvalidPodTemplate", said)
    assert condition(cluster, "Ready")["reason"] == "InvalidPodTemplate"
    assert condition(cluster, "Progressing")["reason"] == "Paused"
    assert condition(cluster, "Available")["status"] == "True"
    # The answer was about another template.
    change(operator, paused=True)
    assert condition(cluster, "Accepted")["reason"] == "Valid"
    assert condition(cluster, "Ready")["status"] == "True"
    assert len(cluster.dry_runs) == asked
    change(operator, worker=BIG, engine=engine)
    assert len(cluster.dry_runs) > asked
    assert condition(cluster, "Accepted")["reason"] == "InvalidPodTemplate"
