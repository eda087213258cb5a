"""Owns the frame of every object: metadata with labels and owner, and the hash of what we applied.

Does not own the objects' content.
"""

from collections.abc import Mapping
from typing import Any

from mizzen_operator.render import labels
from mizzen_operator.render.kinds import CHILD_KINDS
from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.spec.revision import canonical_hash

_ORDER = {child.kind: position for position, child in enumerate(CHILD_KINDS)}


def metadata(
    resolved: Resolved,
    name: str,
    *,
    role: str = "",
    extra_labels: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Metadata of a child."""
    return {
        "name": name,
        "namespace": resolved.namespace,
        "labels": {**labels.common(resolved, role), **(extra_labels or {})},
        "ownerReferences": [labels.owner_reference(resolved)],
    }


def finished(obj: Mapping[str, Any]) -> dict[str, Any]:
    """The object with the hash of its own content as an annotation."""
    annotations = obj["metadata"].get("annotations", {})
    marked = {**annotations, labels.APPLIED_HASH: canonical_hash(obj)[:16]}
    return {**obj, "metadata": {**obj["metadata"], "annotations": marked}}


def in_apply_order(objects: list[dict[str, Any]]) -> tuple[dict[str, Any], ...]:
    """Objects sorted so that what others refer to comes first."""
    return tuple(
        sorted(objects, key=lambda obj: (_ORDER[obj["kind"]], str(obj["metadata"]["name"])))
    )
