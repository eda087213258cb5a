"""Owns reading what controllers of Gateways answered to a route or a pool of ours; pure.

Does not own what is made of it (``status/routes``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

ACCEPTED, RESOLVED_REFS = "Accepted", "ResolvedRefs"
"""The two conditions that every controller sets alike; others are its own affair."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parent:
    """What an object was attached to."""

    kind: str
    namespace: str
    name: str
    section: str = ""
    """One listener of a Gateway; empty for all that fit."""

    def __str__(self) -> str:
        listener = f" listener {self.section}" if self.section else ""
        return f"{self.kind} {self.namespace}/{self.name}{listener}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ParentAnswer:
    """What one controller says of the object for one parent."""

    parent: Parent
    controller: str
    """Empty where it does not name itself."""
    refused: Mapping[str, str]
    """Its own reason and words, by which of the two conditions it has set to False."""
    is_accepted: bool
    is_current: bool
    """It speaks of the object as it is now."""


def answers_of(obj: Mapping[str, Any]) -> tuple[ParentAnswer, ...]:
    """The answers in the status of an HTTPRoute or an InferencePool."""
    metadata = obj["metadata"]
    parents = (obj.get("status") or {}).get("parents") or ()
    return tuple(_answer(item, metadata) for item in parents)


def _answer(item: Mapping[str, Any], metadata: Mapping[str, Any]) -> ParentAnswer:
    ref = item["parentRef"]
    conditions = item.get("conditions") or ()
    generation = metadata.get("generation", 0)
    return ParentAnswer(
        parent=Parent(
            kind=ref.get("kind") or "Gateway",
            namespace=ref.get("namespace") or metadata["namespace"],
            name=ref["name"],
            section=ref.get("sectionName") or "",
        ),
        controller=item.get("controllerName") or "",
        refused={
            found["type"]: f"{found['reason']}: {found['message']}"
            for found in conditions
            if found["status"] == "False" and found["type"] in (ACCEPTED, RESOLVED_REFS)
        },
        is_accepted=any(
            found["type"] == ACCEPTED and found["status"] == "True" for found in conditions
        ),
        # A controller that does not say what it has seen is believed.
        is_current=all(
            found.get("observedGeneration", generation) >= generation for found in conditions
        ),
    )
