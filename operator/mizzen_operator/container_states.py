"""Owns reading what a pod's status says of its containers: waiting, running, how they ended.

Does not own the facts of the pod that are made of it (``observed``). Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

_IN_TURN = frozenset({None, "", "ContainerCreating", "PodInitializing"})
MAX_EXIT_MESSAGE = 200
"""Of what a container says of its end the last part is kept: that is where errors stand."""


def moment_of(text: str | None) -> datetime | None:
    """The moment that the API server writes; None for none."""
    return datetime.fromisoformat(text) if text else None


def own_and_others(
    status: Mapping[str, Any], own_name: str
) -> tuple[list[Mapping[str, Any]], list[Mapping[str, Any]]]:
    """States of the container of this name, and of the pod's others in the order of their start."""
    containers = status.get("containerStatuses") or ()
    found = [*(status.get("initContainerStatuses") or ()), *containers]
    own = [item for item in found if item["name"] == own_name]
    return own, [item for item in found if item not in own]


def first_waiting(containers: Iterable[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The first container that waits for more than its turn, else the first that waits at all;
    empty if none does."""
    waiting = [item for item in containers if waiting_state(item)]
    held_up = [item for item in waiting if waiting_state(item).get("reason") not in _IN_TURN]
    return next(iter([*held_up, *waiting]), {})


def waiting_state(container: Mapping[str, Any]) -> Mapping[str, Any]:
    """Reason and message of a container that waits; empty if it does not."""
    return (container.get("state") or {}).get("waiting") or {}


def last_start(containers: Sequence[Mapping[str, Any]]) -> datetime | None:
    """When the container that started last did so; None if none runs."""
    running = [(item.get("state") or {}).get("running") or {} for item in containers]
    moments = [moment_of(state.get("startedAt")) for state in running]
    return max((moment for moment in moments if moment is not None), default=None)


def last_exit(containers: Sequence[Mapping[str, Any]]) -> str:
    """How the first container that ever ended did so, in one line; empty if none did."""
    ended = last_end(containers)
    if not ended:
        return ""
    said = " ".join(ended.get("message", "").split())[-MAX_EXIT_MESSAGE:]
    code = f"{ended.get('reason', 'Error')}, exit code {ended.get('exitCode', '?')}"
    return f"{code}: {said}" if said else code


def last_failure(containers: Sequence[Mapping[str, Any]]) -> str:
    """How the first container that ever failed did so, with its name; empty if none did."""
    failed = (item for item in containers if last_end([item]).get("exitCode", 0) != 0)
    item = next(failed, None)
    return "" if item is None else f"container {item['name']}: {last_exit([item])}"


def last_end(containers: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """State of the first container that ever ended, at its end; empty if none did."""
    states = (item.get(key) or {} for item in containers for key in ("state", "lastState"))
    return next((state["terminated"] for state in states if state.get("terminated")), {})
