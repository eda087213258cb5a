"""Owns the question whose object this is: ours, a remnant of a dead namesake, or foreign; pure.

Does not own what a caller does with an object that is ours.
"""

from enum import Enum

from mizzen_operator.cluster.failures import LingeringError
from mizzen_operator.errors import NameConflictError
from mizzen_operator.render.labels import RETAINED_FOR
from mizzen_operator.store import (
    CLAIM,
    SERVICE_KIND,
    Manifest,
    ObjectRef,
    ResourceKind,
    StoredObject,
)


class Ownership(Enum):
    """Relation of a live object to a service."""

    OURS = "ours"
    REMNANT = "remnant"
    """Belongs to a deleted service of the same name; the garbage collector will remove it."""
    FOREIGN = "foreign"


def ownership(live: Manifest, service: StoredObject, kind: ResourceKind) -> Ownership:
    """Whose object it is, by its controller reference; names and labels prove nothing.

    An object without one is ours only if it is a claim that was made to outlive the service.
    """
    metadata = live["metadata"]
    controller = next(
        (owner for owner in metadata.get("ownerReferences") or () if owner.get("controller")), None
    )
    if controller is None:
        # A claim that shall outlive the service has no owner: it names the service itself.
        retained_for = (metadata.get("annotations") or {}).get(RETAINED_FOR)
        is_ours = kind == CLAIM and retained_for == service.uid
        return Ownership.OURS if is_ours else Ownership.FOREIGN
    if controller.get("kind") != SERVICE_KIND.kind:
        return Ownership.FOREIGN
    if not str(controller.get("apiVersion", "")).startswith(f"{SERVICE_KIND.group}/"):
        return Ownership.FOREIGN
    if controller["uid"] == service.uid:
        return Ownership.OURS
    return Ownership.REMNANT if controller.get("name") == service.name else Ownership.FOREIGN


def require_ours(service: StoredObject, ref: ObjectRef, live: Manifest) -> None:
    """Raise NameConflictError for a foreign object, LingeringError for one that is going away."""
    whose = ownership(live, service, ref.kind)
    if whose is Ownership.FOREIGN:
        raise NameConflictError(kind=ref.kind.kind, name=ref.name)
    if whose is Ownership.REMNANT or "deletionTimestamp" in live["metadata"]:
        raise LingeringError(ref)
