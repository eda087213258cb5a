"""Owns what somebody meant who wrote a field that is not there, or a flag. Pure.

Does not own that it is refused (``parse``).
"""

import difflib
import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mizzen_operator.spec.schema import spec_schema

_OF_PODS = frozenset(
    {
        "affinity",
        "hostNetwork",
        "initContainers",
        "nodeSelector",
        "priorityClassName",
        "runtimeClassName",
        "schedulerName",
        "serviceAccountName",
        "tolerations",
        "topologySpreadConstraints",
        "volumes",
    }
)
_MOST_PLACES = 3


def closest(word: str, known: Iterable[str]) -> str:
    """The known word that is most like this one; empty if none is."""
    by_lower = {name.lower(): name for name in sorted(known)}
    close = difflib.get_close_matches(word.lower(), list(by_lower), n=1)
    return by_lower[close[0]] if close else ""


def remedy_for_unknown(steps: tuple[int | str, ...]) -> str:
    """What to do about a field, by its path below ``spec``, that this version does not have."""
    name = str(steps[-1])
    siblings = part_at(steps[:-1]).get("properties", {})
    meant = closest(name, siblings)
    if meant:
        return f"did you mean {meant}?"
    places = [path for path in _paths(part_at(()), "spec") if path.rpartition(".")[2] == name]
    if 0 < len(places) <= _MOST_PLACES:
        return f"did you mean {' or '.join(places)}?"
    if name in _OF_PODS:
        return f"did you mean spec.worker.podTemplate.spec.{name}?"
    return "remove it, or compare its spelling with kubectl explain inferenceservice"


def part_at(steps: Iterable[int | str]) -> Mapping[str, Any]:
    """The schema's part for a path below ``spec``; steps that it does not have are left out.

    Such a step names a branch of a union or a key of a map: the field above it is meant.
    """
    part: Mapping[str, Any] = _schema()
    for step in steps:
        below = part.get("items") if isinstance(step, int) else part.get("properties", {}).get(step)
        part = below or part
    return part


@functools.cache
def _schema() -> dict[str, Any]:
    """Made once: a spec may have many mistakes."""
    return spec_schema()


def _paths(part: Mapping[str, Any], above: str) -> Iterator[str]:
    for name, below in part.get("properties", {}).items():
        yield f"{above}.{name}"
        yield from _paths(below, f"{above}.{name}")
