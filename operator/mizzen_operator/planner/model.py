"""Owns the planner's answer: what to apply, what to delete under which preconditions, when to look.

Does not own how it is computed (``plan``) nor carried out (``cluster``).
"""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Delete:
    """One object to delete, only if it is still exactly what the plan was made from."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str
    resource_version: str
    reason: str
    """For the log and the event: why this object goes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysWanted:
    """A CURVE Secret that must exist; making keys is an effect, so only its frame is planned."""

    metadata: dict[str, Any]
    """name, namespace, labels and ownerReferences of the Secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one reconcile does. Order: keys, apply (in this order), delete.

    Every object of ``apply`` carries ``serving.mizzen.dev/applied-hash``: one whose live annotation
    is equal needs no write.
    """

    apply: tuple[dict[str, Any], ...] = ()
    delete: tuple[Delete, ...] = ()
    keys: KeysWanted | None = None
    requeue_after_s: float | None = None
    """Look again after this time, also if no event comes."""
    blocked_by: str = ""
    """Why the plan does not go further now; empty if nothing is left to do or steps are made."""
    is_rolling: bool = False
    """Groups of another revision than the wanted one are still there or new ones are missing."""
