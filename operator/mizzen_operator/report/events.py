"""Owns what is told of Events of any component: facts of one, in its older and its newer form.

Does not own reading them (``support``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mizzen_operator.container_states import moment_of


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFacts:
    """One Event of any component about one object; repetitions are counted in it."""

    about_kind: str
    about_name: str
    about_uid: str
    is_warning: bool
    reason: str
    message: str
    count: int
    last_at: datetime | None


def event_of(obj: Mapping[str, Any]) -> EventFacts:
    """Facts of a ``v1`` Event, in its older and its newer form."""
    about = obj.get("involvedObject") or {}
    series = obj.get("series") or {}
    last = series.get("lastObservedTime") or obj.get("lastTimestamp") or obj.get("eventTime")
    return EventFacts(
        about_kind=about.get("kind", ""),
        about_name=about.get("name", ""),
        about_uid=about.get("uid", ""),
        is_warning=obj.get("type") == "Warning",
        reason=obj.get("reason") or "",
        message=" ".join((obj.get("message") or "").split()),
        count=series.get("count") or obj.get("count") or 1,
        last_at=moment_of(last or obj["metadata"].get("creationTimestamp")),
    )
