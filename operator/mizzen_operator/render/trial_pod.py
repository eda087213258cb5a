"""Owns the Pod that the API server is asked about in a dry run, made from a rendered owner.

Does not own asking. It is what the owner's controller would make, as far as admission can see, but
for its name, which is fixed: an answer that names it is the same each time.
"""

from collections.abc import Mapping
from typing import Any

from mizzen_operator.render import labels

SUFFIX = "dry-run"


def trial_pod(owner: Mapping[str, Any]) -> dict[str, Any]:
    """The Pod; the service owns it as it owns the owner, because policies refuse naked pods."""
    metadata, template = owner["metadata"], owner["spec"]["template"]
    index = {labels.POD_INDEX: "0"} if owner["kind"] == "StatefulSet" else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"{metadata['name']}-{SUFFIX}",
            "namespace": metadata["namespace"],
            "labels": {**template["metadata"]["labels"], **index},
            "annotations": template["metadata"].get("annotations", {}),
            "ownerReferences": metadata["ownerReferences"],
        },
        "spec": template["spec"],
    }
