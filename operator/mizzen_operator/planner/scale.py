"""Owns reading how far each role is scaled out of the snapshot; pure.

Does not own the rule between the sources (``spec/scale``).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mizzen_operator.observed import Observed, RoleScalerFacts
from mizzen_operator.render import labels
from mizzen_operator.render.names import tokenizer_name, worker_name
from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.spec.scale import RoleScale, decided_scale


def with_scale(resolved: Resolved, observed: Observed) -> Resolved:
    """The service scaled as its role scalers say, or as its own fields do where these changed."""
    return replace(
        resolved,
        worker_scale=_decided(
            resolved.worker_scale, observed, labels.ROLE_WORKER, worker_name(resolved)
        ),
        tokenizer_scale=_decided(
            resolved.tokenizer_scale, observed, labels.ROLE_TOKENIZER, tokenizer_name(resolved)
        ),
    )


def with_live_scale(rendered: Mapping[str, Any], live: Mapping[str, Any]) -> Mapping[str, Any]:
    """A rendered scaler with the scale of the living one, unless the service's own field changed.

    So it holds whatever was written to the living one since the rendering.
    """
    passed_on = _propagated(live["metadata"].get("annotations") or {})
    if passed_on not in (None, _propagated(rendered["metadata"]["annotations"])):
        return rendered
    return {**rendered, "spec": {"replicas": live["spec"]["replicas"]}}


def _propagated(annotations: Mapping[str, str]) -> int | None:
    """The note on a scaler; None if it is lost or no number."""
    note = annotations.get(labels.PROPAGATED, "")
    return int(note) if note.isascii() and note.isdigit() else None


def _scale_of(facts: RoleScalerFacts, *, written: int) -> RoleScale:
    """What a scaler says; one whose note is lost counts as up to date with the service."""
    passed_on = _propagated(facts.child.annotations)
    return RoleScale(asked=facts.replicas, propagated=written if passed_on is None else passed_on)


def _decided(seed: RoleScale, observed: Observed, role: str, name: str) -> RoleScale:
    found = (item for item in observed.role_scalers if item.child.name == name)
    facts = next((item for item in found if observed.owns(item.child)), None)
    written = seed.propagated
    row: Mapping[str, Any] = (observed.service.status.get("roles") or {}).get(role) or {}
    return decided_scale(
        written,
        scaler=None if facts is None else _scale_of(facts, written=written),
        remembered=_remembered(row),
    )


def _remembered(row: Mapping[str, Any]) -> RoleScale | None:
    """What the last status says; before there were scalers it had one number for both."""
    if "desired" not in row:
        return None
    desired = row["desired"]
    return RoleScale(asked=row.get("asked", desired), propagated=row.get("propagated", desired))
