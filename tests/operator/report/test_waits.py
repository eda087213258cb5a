"""What a pod waits for, where the tests of the verbs do not lead."""

from dataclasses import replace
from datetime import UTC, datetime

from tests.operator.planner.world import foreign, ready_pod

from mizzen_operator.report.waits import wait_of

NOW = datetime(2026, 1, 1, 1, tzinfo=UTC)
POD = ready_pod(foreign("p-0", "Pod", "owner"))
LAME = replace(POD, is_ready=False)


def test_a_ready_pod_waits_for_nothing() -> None:
    assert wait_of(POD, [], NOW) is None


def test_an_ended_pod_waits_for_its_replacement() -> None:
    wait = wait_of(replace(LAME, phase="Failed"), [], NOW)
    assert wait is not None
    assert (wait.reason, wait.text) == ("Ended", "its replacement: it has ended (Failed)")


def test_a_pod_that_the_scheduler_has_not_seen_says_so() -> None:
    wait = wait_of(replace(LAME, node_name="", phase="Pending"), [], NOW)
    assert wait is not None
    assert (wait.reason, wait.text) == ("Scheduling", "a node: the scheduler has not answered yet")


def test_a_pod_that_keeps_restarting_does_not_just_wait_for_a_probe() -> None:
    pod = replace(LAME, node_name="n", restarts=4, started_at=NOW, last_exit="OOMKilled")
    wait = wait_of(pod, [], NOW)
    assert wait is not None
    assert wait.reason == "RestartingContainer"
    assert "its 4 restarts; last end: OOMKilled" in wait.text


def test_an_ending_pod_without_a_deadline_still_says_that_it_ends() -> None:
    pod = replace(LAME, child=replace(LAME.child, deleting=True, ends_at=None))
    wait = wait_of(pod, [], NOW)
    assert wait is not None
    assert (wait.reason, wait.text, wait.until) == ("Draining", "its end", None)
