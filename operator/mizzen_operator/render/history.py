"""Owns the ControllerRevision in which a revision of the service is stored.

Does not own its data's form (``spec/stored``) nor how many are kept (``planner/history``). The API
server refuses any change of the data; only the number rises when a revision is gone back to, and
what was fetched for it is noted beside the data.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mizzen_operator.render import labels
from mizzen_operator.render.names import stored_revision_name
from mizzen_operator.render.objects import metadata
from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.spec.shape_facts import ShapeFacts, as_told, shape_facts_of
from mizzen_operator.spec.stored import stored_data


@dataclass(frozen=True, slots=True, kw_only=True)
class FetchedWeights:
    """Weights that are whole on a claim of ours."""

    claim: str
    """Name of the claim."""
    claim_uid: str
    """A claim of the same name with another UID is empty."""
    revision: str
    """Commit, digest or hash that the source's revision was resolved to; empty if nobody saw it."""
    size_bytes: int
    facts: ShapeFacts | None = None
    """Sizes of the model; None where they are not known."""


def stored_revision(
    resolved: Resolved, number: int, fetched: FetchedWeights | None
) -> dict[str, Any]:
    """The wanted revision; the highest ``number`` of a service marks the one wanted last."""
    own = {labels.REVISION: resolved.revision, labels.COHORT: resolved.cohort}
    frame = metadata(resolved, stored_revision_name(resolved), extra_labels=own)
    if fetched is not None:
        frame["annotations"] = {labels.FETCHED: _text_of(fetched)}
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": frame,
        "data": stored_data(resolved),
        "revision": number,
    }


def fetched_weights_of(annotations: Mapping[str, str]) -> FetchedWeights | None:
    """What a stored revision notes; None if it notes nothing, or not in our form."""
    try:
        found = json.loads(annotations.get(labels.FETCHED, "null"))
        return (
            None
            if found is None
            else FetchedWeights(
                claim=str(found["claim"]),
                claim_uid=str(found["claimUid"]),
                revision=str(found["revision"]),
                size_bytes=int(found["bytes"]),
                facts=shape_facts_of(found.get("facts")),
            )
        )
    except (ArithmeticError, ValueError, TypeError, KeyError):
        return None


def _text_of(fetched: FetchedWeights) -> str:
    facts = {} if fetched.facts is None else {"facts": as_told(fetched.facts)}
    return json.dumps(
        {
            "claim": fetched.claim,
            "claimUid": fetched.claim_uid,
            "revision": fetched.revision,
            "bytes": fetched.size_bytes,
            **facts,
        }
    )
