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
MANAGED_BY = "app.kubernetes.io/managed-by"
MANAGER = "mizzen-operator"
POD_INDEX = "apps.kubernetes.io/pod-index"

APPLIED_HASH = f"{PREFIX}applied-hash"
"""Annotation: hash of the object as we rendered it; equal means nothing to write."""
PINNED = f"{PREFIX}pinned-defaults"
"""Annotation of the ServiceAccount: the operator defaults that the service started with."""
EPOCH = f"{PREFIX}epoch"
"""Annotation of a group's pods, read by them through the downward API."""

ROLE_TOKENIZER = "tokenizer"
ROLE_WORKER = "worker"


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


def role_selector(resolved: Resolved, role: str) -> dict[str, str]:
    """All pods of one role."""
    return {SERVICE_UID: resolved.uid, ROLE: role}


def revision_selector(resolved: Resolved, revision: str) -> dict[str, str]:
    """All worker pods of one revision."""
    return {**role_selector(resolved, ROLE_WORKER), REVISION: revision}


def leader_selector(resolved: Resolved, cohort: str) -> dict[str, str]:
    """The first pod of every worker group of one cohort."""
    return {**role_selector(resolved, ROLE_WORKER), COHORT: cohort, POD_INDEX: "0"}


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
