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
