"""Owns the form of conditions: transition times, order, True/False/Unknown.

Does not own what is true (``judge``). Invariant: ``lastTransitionTime`` changes exactly when the
condition's status does, so an unchanged world gives an unchanged object.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from mizzen_operator.spec.wording import moment_text

Truth = Literal["True", "False", "Unknown"]
MAX_MESSAGE = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """One condition as judged now, without times."""

    type: str
    status: Truth
    reason: str
    message: str = ""


def yes(kind: str, reason: str, message: str = "") -> Verdict:
    """A condition that is True."""
    return Verdict(type=kind, status="True", reason=reason, message=message)


def no(kind: str, reason: str, message: str = "") -> Verdict:
    """A condition that is False."""
    return Verdict(type=kind, status="False", reason=reason, message=message)


def unknown(kind: str, reason: str, message: str = "") -> Verdict:
    """A condition that cannot be judged yet."""
    return Verdict(type=kind, status="Unknown", reason=reason, message=message)


def as_conditions(
    verdicts: Iterable[Verdict], before: Mapping[str, Any], *, generation: int, now: datetime
) -> list[dict[str, Any]]:
    """The list for the status; ``before`` is the status as it was last written."""
    earlier = {item["type"]: item for item in before.get("conditions") or ()}
    return [_condition(verdict, earlier, generation, now) for verdict in verdicts]


def _condition(
    verdict: Verdict, earlier: Mapping[str, Mapping[str, Any]], generation: int, now: datetime
) -> dict[str, Any]:
    old = earlier.get(verdict.type, {})
    moment = moment_text(now)
    is_same = old.get("status") == verdict.status and "lastTransitionTime" in old
    message = verdict.message
    if len(message) > MAX_MESSAGE:
        message = f"{message[: MAX_MESSAGE - 3]}..."
    return {
        "type": verdict.type,
        "status": verdict.status,
        "reason": verdict.reason,
        "message": message,
        "observedGeneration": generation,
        "lastTransitionTime": old["lastTransitionTime"] if is_same else moment,
    }
