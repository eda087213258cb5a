"""Owns how one HTTP request to the API server is spelled, and what its answer means; pure.

Does not own sending it (``real``).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mizzen_operator.cluster.client import FieldManager, Precondition, Subresource
from mizzen_operator.store import Manifest, ObjectRef, ObjectUid, ObjectVersion, ResourceKind

METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
METADATA_LIST_ONLY = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
JSON = "application/json"
MERGE_PATCH = "application/merge-patch+json"
APPLY_PATCH = "application/apply-patch+yaml"
READ_VERBS = frozenset({"get", "list"})
OUTLASTS_PODS = frozenset({"StatefulSet"})
"""Kinds that end after their pods: until then a group's name and its GPUs are taken."""
DRY_RUN_VERB = "dry-run"
"""In metrics and messages, so that a dry run is never counted as a write."""
DRY_RUN = ("dryRun", "All")


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One HTTP request, fully spelled out."""

    verb: str
    resource: str
    method: str
    path: str
    query: tuple[tuple[str, str], ...] = ()
    body: Mapping[str, Any] | bytes | None = None
    content_type: str = JSON
    accept: str = JSON


def continue_token(page: Mapping[str, Any]) -> str:
    """What asks for the next chunk of a list; empty after the last one."""
    return str(page["metadata"].get("continue") or "")


def request_about(
    verb: str,
    ref: ObjectRef,
    *,
    method: str,
    subresource: Subresource = Subresource.MAIN,
    **rest: Any,
) -> Request:
    """A request about one object, or about a part of it."""
    path = ref.kind.path(namespace=ref.namespace, name=ref.name)
    resource = str(ref.kind)
    if subresource is not Subresource.MAIN:
        path = f"{path}/{subresource.value}"
        resource = f"{resource}/{subresource.value}"
    return Request(verb=verb, resource=resource, method=method, path=path, **rest)


def lingers(reply: Mapping[str, Any]) -> bool:
    """Whether what was deleted is still there, by the answer.

    A pod is answered as it was last also when it is gone: then nothing granted it any time.
    """
    if reply["kind"] == "Status":
        return False
    metadata = reply["metadata"]
    is_by_force = reply["kind"] == "Pod" and metadata.get("deletionGracePeriodSeconds") == 0
    return not is_by_force or bool(metadata.get("finalizers"))


def preconditions_of(precondition: Precondition) -> dict[str, str]:
    """Metadata that makes the API server refuse a write to another object, or another version."""
    version = precondition.resource_version
    uid = {"uid": str(precondition.uid)}
    return uid if version is None else {**uid, "resourceVersion": str(version)}


def with_preconditions(manifest: Manifest, precondition: Precondition) -> Manifest:
    """The manifest with these preconditions in its metadata."""
    return {**manifest, "metadata": {**manifest["metadata"], **preconditions_of(precondition)}}


def applying(manager: FieldManager) -> tuple[tuple[str, str], ...]:
    """The query of a server-side apply that takes fields over from other managers."""
    return (("fieldManager", manager.value), ("force", "true"))


def version_of(kind: ResourceKind, metadata: Mapping[str, Any]) -> ObjectVersion:
    """Which object, in which version, metadata is of."""
    return ObjectVersion(
        ref=ObjectRef(kind=kind, namespace=metadata.get("namespace", ""), name=metadata["name"]),
        uid=ObjectUid(metadata["uid"]),
        resource_version=int(metadata["resourceVersion"]),
    )
