"""Owns every label and annotation key we write, and the selectors made of them.

Does not own names (``names``). Invariant: selectors use only our own labels that never change on
an object, never ``app.kubernetes.io/*``, which people and tools rewrite.
"""

from typing import Any

from mizzen_operator.spec.model import API_VERSION, GROUP, KIND
from mizzen_operator.spec.resolve import Resolved

PREFIX = f"{GROUP}/"
SERVICE_UID = f"{PREFIX}service-uid"
"""UID of the InferenceService: maps every child and pod to its work-queue key."""
SERVICE = f"{PREFIX}service"
ROLE = f"{PREFIX}role"
REVISION = f"{PREFIX}revision"
COHORT = f"{PREFIX}cohort"
GROUP_INDEX = f"{PREFIX}group"
KEYS = f"{PREFIX}keys"
"""Label of what belongs to a cohort: which CURVE keys it has; absent for those that a service
begins with."""
MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "mizzen-operator"
POD_INDEX = "apps.kubernetes.io/pod-index"

WEIGHTS = f"{PREFIX}weights"
"""Label of a claim for fetched weights, of the Jobs that fetch into it and their pods: the name of
the claim."""

APPLIED_HASH = f"{PREFIX}applied-hash"
"""Annotation: hash of the object as we rendered it; equal means nothing to write."""
PROPAGATED = f"{PREFIX}propagated-replicas"
"""Annotation of a role scaler: the service's own field when it was passed on last."""
EPOCH = f"{PREFIX}epoch"
"""Annotation of a group's pods, read by them through the downward API."""

FORMED = f"{PREFIX}formed"
"""Annotation of a group's StatefulSet: which pods it was when all of them were first ready."""
RESTARTS = f"{PREFIX}restarts"
"""Annotation of a group's StatefulSet: when and why the group was restarted of late."""
FETCHED = f"{PREFIX}fetched-weights"
"""Annotation of a stored revision: which weights were fetched for it, and onto which claim."""
RETAINED_FOR = f"{PREFIX}retained-for"
"""Annotation of a claim that has no owner, so that it outlives its service: that service's UID."""

ROLE_TOKENIZER = "tokenizer"
ROLE_WORKER = "worker"
ROLE_WEIGHTS = "weights"
"""Of the pods that fetch weights."""


def common(resolved: Resolved, role: str = "") -> dict[str, str]:
    """Labels of every object of the service."""
    labels = {
        "app.kubernetes.io/name": "mizzen",
        "app.kubernetes.io/instance": resolved.name,
        MANAGED_BY: MANAGER,
        SERVICE: resolved.name,
        SERVICE_UID: resolved.uid,
    }
    if role:
        labels |= {"app.kubernetes.io/component": role, ROLE: role}
    return labels


def of_keys(generation: str) -> dict[str, str]:
    """The label that tells of CURVE keys."""
    return {KEYS: generation} if generation else {}


def role_selector(resolved: Resolved, role: str) -> dict[str, str]:
    """All pods of one role."""
    return {SERVICE_UID: resolved.uid, ROLE: role}


def revision_selector(resolved: Resolved, revision: str) -> dict[str, str]:
    """All worker pods of one revision."""
    return {**role_selector(resolved, ROLE_WORKER), REVISION: revision}


def group_selector(resolved: Resolved, index: int) -> dict[str, str]:
    """All pods of one worker group at the wanted revision."""
    return {**revision_selector(resolved, resolved.revision), GROUP_INDEX: str(index)}


def leader_selector(resolved: Resolved, cohort: str) -> dict[str, str]:
    """The first pod of every worker group of one cohort; of all cohorts if it is empty."""
    of_cohort = {COHORT: cohort} if cohort else {}
    return {**role_selector(resolved, ROLE_WORKER), **of_cohort, POD_INDEX: "0"}


def scale_selector(service_uid: str, role: str) -> dict[str, str]:
    """What a role counts: pods of tokenizers, and of workers the first pod of every group."""
    selector = {SERVICE_UID: service_uid, ROLE: role}
    return {**selector, POD_INDEX: "0"} if role == ROLE_WORKER else selector


def owner_reference(resolved: Resolved) -> dict[str, Any]:
    """The controller reference that deletes a child with its service."""
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "name": resolved.name,
        "uid": resolved.uid,
        "controller": True,
        "blockOwnerDeletion": True,
    }
