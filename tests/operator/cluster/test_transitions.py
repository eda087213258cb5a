"""Events warn of what went wrong, not of what the user asked for."""

import pytest

from mizzen_operator.cluster.events import Occurrence
from mizzen_operator.cluster.status_writer import transitions

State = tuple[str, str]


def _told(kind: str, old: State | None, new: State) -> list[Occurrence]:
    def status(state: State | None) -> dict[str, object]:
        if state is None:
            return {}
        truth, reason = state
        condition = {"type": kind, "status": truth, "reason": reason, "message": "m"}
        return {"conditions": [{**condition, "lastTransitionTime": "t0"}]}

    return list(transitions(status(old), status(new)))


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("Available", "ScaledToZero"),
        ("Ready", "ScaledToZero"),
        ("Ready", "Stopped"),
        ("Ready", "Paused"),
        ("Ready", "RollingOut"),
        ("Placed", "Pending"),
    ],
)
def test_what_was_asked_for_is_no_warning(kind: str, reason: str) -> None:
    (event,) = _told(kind, ("True", "Good"), ("False", reason))
    assert (event.is_warning, event.reason) == (False, reason)


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        ("Available", ("True", "Serving"), ("False", "NoReadyGroup")),
        ("Accepted", ("True", "Valid"), ("False", "InvalidSpec")),
        ("Accepted", None, ("False", "InvalidSpec")),
        ("Degraded", ("False", "AsExpected"), ("True", "CrashLoopBackOff")),
        ("Placed", ("True", "Scheduled"), ("False", "Unschedulable")),
        ("Placed", ("False", "Pending"), ("False", "Unschedulable")),
        ("Placed", ("False", "Pending"), ("False", "PodsRefused")),
        ("Placed", ("False", "Unschedulable"), ("False", "QuotaPending")),
        ("Placed", None, ("False", "QuotaPending")),
        ("ResolvedRefs", None, ("False", "ClaimNotFound")),
        ("ResolvedRefs", ("True", "Resolved"), ("False", "SecretMissing")),
        ("Ready", ("False", "RollingOut"), ("False", "ProgressDeadlineExceeded")),
    ],
)
def test_what_went_wrong_is_a_warning(kind: str, old: State | None, new: State) -> None:
    (event,) = _told(kind, old, new)
    assert (event.is_warning, event.reason) == (True, new[1])


@pytest.mark.parametrize(
    ("kind", "old", "new"),
    [
        ("Placed", ("False", "Unschedulable"), ("False", "Pending")),
        ("Placed", ("False", "Unschedulable"), ("False", "Unschedulable")),
        ("Placed", ("False", "Pending"), ("True", "Scheduled")),
        ("Ready", ("False", "RollingOut"), ("False", "NoReadyGroup")),
        ("Progressing", ("False", "Complete"), ("True", "RollingOut")),
        ("Available", None, ("False", "NoReadyGroup")),
    ],
)
def test_the_rest_is_not_told(kind: str, old: State | None, new: State) -> None:
    assert _told(kind, old, new) == []


def test_an_alarm_in_the_same_state_is_another_occurrence() -> None:
    (calm,) = _told("Placed", ("True", "Scheduled"), ("False", "Pending"))
    (alarm,) = _told("Placed", ("False", "Pending"), ("False", "Unschedulable"))
    assert calm.identity != alarm.identity


LAST = "2026-01-01T00:00:00Z RankFailed"


def _with_epoch(epoch: int | None, last: str = LAST) -> dict[str, object]:
    more = {} if epoch is None else {"epoch": epoch, "lastRestart": last}
    return {"groups": [{"name": "g-0", **more}]}


def test_a_restart_of_a_group_is_told_once() -> None:
    (event,) = transitions(_with_epoch(0), _with_epoch(1))
    assert (event.is_warning, event.reason) == (True, "GroupRestarted")
    assert event.message == f"group g-0 starts anew as epoch 1: {LAST}"
    assert not list(transitions(_with_epoch(1), _with_epoch(1)))
    (later,) = transitions(_with_epoch(0), _with_epoch(1, "2026-02-01T00:00:00Z RankFailed"))
    assert later.identity != event.identity


@pytest.mark.parametrize("before", [{}, _with_epoch(None)])
def test_the_epoch_of_a_group_that_was_not_known_is_no_news(before: dict[str, object]) -> None:
    assert not list(transitions(before, _with_epoch(0)))


def _with_groups(desired: int | None, generation: int = 1) -> dict[str, object]:
    roles = {} if desired is None else {"roles": {"worker": {"desired": desired}}}
    return {"observedGeneration": generation, **roles}


def test_row_39_a_single_group_is_told_once_that_it_has_no_budget() -> None:
    (event,) = transitions({}, _with_groups(1))
    assert (event.is_warning, event.reason) == (False, "SingleGroup")
    assert "PodDisruptionBudget" in event.message
    (later,) = transitions(_with_groups(3), _with_groups(1, generation=2))
    assert later.identity == event.identity, "one Event as long as the first one is there"
    for before, after in ((1, 1), (None, 2), (1, 2), (1, 0), (1, None)):
        assert not list(transitions(_with_groups(before), _with_groups(after))), (before, after)
