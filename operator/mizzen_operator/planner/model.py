"""Owns the planner's answer: what to apply, what to delete under which preconditions, when to look.

Does not own how it is computed (``plan``) nor carried out (``cluster``).
"""

from dataclasses import dataclass
from typing import Any

from mizzen_operator.planner.holds import NO_OBJECTION, TemplateAnswers
from mizzen_operator.planner.memory_fit import MemoryFit
from mizzen_operator.planner.restarts import Cause
from mizzen_operator.planner.weights import WeightsState


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
    grace_s: int | None = None
    """Of a pod, seconds until it is killed; None leaves its own time to it, 0 removes the object
    without waiting for its node."""
    keys: str = ""
    """Of a leader Service, name of the CURVE Secret that no pod uses any more; it goes first,
    because nothing else tells of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRestart:
    """A group that starts anew by this plan; the objects to apply and to delete say so too."""

    group: str
    epoch: int
    """The one that begins."""
    cause: Cause


@dataclass(frozen=True, slots=True, kw_only=True)
class KeysWanted:
    """A CURVE Secret that must exist; making keys is an effect, so only its frame is planned."""

    metadata: dict[str, Any]
    """name, namespace, labels and ownerReferences of the Secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one reconcile does. Order: apply (in this order), delete; keys before what has pods.

    Every object of ``apply`` carries ``serving.mizzen.dev/applied-hash``: one whose live annotation
    is equal needs no write.
    """

    apply: tuple[dict[str, Any], ...] = ()
    delete: tuple[Delete, ...] = ()
    restarts: tuple[GroupRestart, ...] = ()
    keys: KeysWanted | None = None
    requeue_after_s: float | None = None
    """Look again after this time, also if no event comes."""
    blocked_by: str = ""
    """Why the plan does not go further now; empty if nothing is left to do or steps are made."""
    is_rolling: bool = False
    """Groups of another revision than the wanted one are still there or new ones are missing."""
    is_refused: bool = False
    """Nothing but lost pods goes, because the API server refuses a role that the others need."""
    templates: TemplateAnswers = NO_OBJECTION
    """What the API server said of the pod templates that the plan was made under."""
    weights: WeightsState | None = None
    """How far weights are that are fetched; None for weights on a user's claim."""
    fit: MemoryFit | None = None
    """Whether the model fits; None where the spec states no memory."""
