"""Owns what a group's StatefulSet remembers of its lives, as annotations and back.

Does not own when a life begins (``planner/restarts``). Invariant: a StatefulSet without these
annotations reads as a new life, and a new life is written as no annotation but the first epoch.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from mizzen_operator.render import labels
from mizzen_operator.spec.wording import MOMENT_FORMAT, moment_text


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRestart:
    """One restart of a group as a whole."""

    at: datetime
    """To the second."""
    reason: str
    """CamelCase."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupLife:
    """The present life of a group and the restarts before it."""

    epoch: int = 0
    """Grows by one or more with each restart; ranks of different epochs never work together."""
    formed: str = ""
    """Which pods and containers it was when all were first ready in this epoch; empty before."""
    restarts: tuple[PastRestart, ...] = ()
    """Of late, the last one last."""


NEW_LIFE = GroupLife()


def epoch_of(annotations: Mapping[str, str]) -> int:
    """The epoch that a pod, or a template of pods, belongs to."""
    text = annotations.get(labels.EPOCH, "")
    return int(text) if text.isascii() and text.isdigit() else NEW_LIFE.epoch


def life_of(template_annotations: Mapping[str, str], annotations: Mapping[str, str]) -> GroupLife:
    """What is written on a StatefulSet; what a hand made unreadable counts as absent."""
    entries = map(_entry, annotations.get(labels.RESTARTS, "").split(","))
    return GroupLife(
        epoch=epoch_of(template_annotations),
        formed=annotations.get(labels.FORMED, ""),
        restarts=tuple(entry for entry in entries if entry is not None),
    )


def with_life(stateful_set: Mapping[str, Any], life: GroupLife) -> dict[str, Any]:
    """The finished StatefulSet of a group in this life.

    Its hash stays that of the first life: it tells what the spec makes of it, such as whether pods
    of this template were accepted. What differs by the life alone is seen as a field that differs.
    """
    metadata, spec = stateful_set["metadata"], stateful_set["spec"]
    own = {labels.FORMED: life.formed, labels.RESTARTS: _text_of(life.restarts)}
    written = {key: value for key, value in own.items() if value}
    if written:
        metadata = {**metadata, "annotations": {**metadata.get("annotations", {}), **written}}
    template = spec["template"]
    pods = template["metadata"]
    annotations = {**pods.get("annotations", {}), labels.EPOCH: str(life.epoch)}
    template = {**template, "metadata": {**pods, "annotations": annotations}}
    return {**stateful_set, "metadata": metadata, "spec": {**spec, "template": template}}


def _entry(text: str) -> PastRestart | None:
    moment, _, reason = text.strip().partition(" ")
    try:
        at = datetime.strptime(moment, MOMENT_FORMAT).replace(tzinfo=UTC)
    except ValueError:
        return None
    return PastRestart(at=at, reason=reason)


def _text_of(restarts: tuple[PastRestart, ...]) -> str:
    return ", ".join(f"{moment_text(item.at)} {item.reason}" for item in restarts)
