"""Owns the question whose object this is: ours, a remnant of a dead namesake, or foreign; pure.

Does not own what a caller does with an object that is ours.
"""

from enum import Enum

from mizzen_operator.cluster.failures import LingeringError
from mizzen_operator.errors import NameConflictError
from mizzen_operator.store import SERVICE_KIND, Manifest, ObjectRef, StoredObject


class Ownership(Enum):
    """Relation of a live object to a service."""

    OURS = "ours"
    REMNANT = "remnant"
    """Belongs to a deleted service of the same name; the garbage collector will remove it."""
    FOREIGN = "foreign"


def ownership(live: Manifest, service: StoredObject) -> Ownership:
    """Whose object it is, by its controller reference; names and labels prove nothing."""
    metadata = live["metadata"]
    controller = next(
        (owner for owner in metadata.get("ownerReferences") or () if owner.get("controller")), None
    )
    if controller is None or controller.get("kind") != SERVICE_KIND.kind:
        return Ownership.FOREIGN
    if not str(controller.get("apiVersion", "")).startswith(f"{SERVICE_KIND.group}/"):
        return Ownership.FOREIGN
    if controller["uid"] == service.uid:
        return Ownership.OURS
    return Ownership.REMNANT if controller.get("name") == service.name else Ownership.FOREIGN


def require_ours(service: StoredObject, ref: ObjectRef, live: Manifest) -> None:
    """Raise NameConflictError for a foreign object, LingeringError for one that is going away."""
    whose = ownership(live, service)
    if whose is Ownership.FOREIGN:
        raise NameConflictError(kind=ref.kind.kind, name=ref.name)
    if whose is Ownership.REMNANT or "deletionTimestamp" in live["metadata"]:
        raise LingeringError(ref)
