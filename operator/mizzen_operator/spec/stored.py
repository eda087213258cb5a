"""Owns the form in which a revision is stored: what its pods are rendered from, and back.

Does not own the object around it (``render/history``) nor which revisions are kept
(``planner/history``). Invariants: equal pods-to-be give equal data, byte for byte, so that a spec
that is applied again finds its own revision; a field of the spec added later leaves data of
before alone, because only what differs from a default is stored.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import ValidationError

from mizzen_operator.spec.model import Spec
from mizzen_operator.spec.resolve import Pinned, Resolved
from mizzen_operator.spec.revision import written_of_pods

_SPEC = "spec"
_PINNED = "pinned"
_PIN_KEYS = ("templateVersion", "frontendImage", "workerImage")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """What the pods of one revision are rendered from."""

    spec: Mapping[str, Any]
    """As written, without what shapes no pod: counts, roll-out, routing."""
    pinned: Pinned

    def is_of(self, spec: Spec) -> bool:
        """Whether pods of this spec, with this pin, are pods of this revision."""
        return self.spec == written_of_pods(spec)

    def typed_spec(self) -> Spec | None:
        """The spec for rendering; None if a later release wrote what this one cannot read."""
        try:
            return Spec.model_validate_json(json.dumps(self.spec))
        except ValidationError:
            return None


def stored_data(resolved: Resolved) -> dict[str, Any]:
    """The data of the ControllerRevision; it never changes once it is written."""
    pin = resolved.pinned
    values = (pin.template_version, pin.frontend_image, pin.worker_image)
    return {
        _PINNED: dict(zip(_PIN_KEYS, values, strict=True)),
        _SPEC: written_of_pods(resolved.spec),
    }


def origin_of(data: Mapping[str, Any]) -> Origin | None:
    """What the data says; None if it is not of the form of ``stored_data``."""
    spec, pin = data.get(_SPEC), data.get(_PINNED)
    if not isinstance(spec, Mapping) or not isinstance(pin, Mapping):
        return None
    values = [pin.get(key) for key in _PIN_KEYS]
    if not all(isinstance(value, str) and value for value in values):
        return None
    template_version, frontend_image, worker_image = map(str, values)
    return Origin(
        spec=spec,
        pinned=Pinned(
            template_version=template_version,
            frontend_image=frontend_image,
            worker_image=worker_image,
        ),
    )
