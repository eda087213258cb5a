"""Owns the InferenceRoleScalers of a service: what people and autoscalers scale a role by.

Does not own how far a role is scaled (``planner/scale``). The applied hash leaves the scale out:
whoever writes that next shall not be followed by a write of ours.
"""

from typing import Any

from mizzen_operator.render import labels
from mizzen_operator.render.names import tokenizer_name, worker_name
from mizzen_operator.render.objects import finished, metadata
from mizzen_operator.spec.model import API_VERSION
from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.spec.scale import RoleScale
from mizzen_operator.spec.scaler_crd import SCALER_KIND


def role_scalers(resolved: Resolved) -> list[dict[str, Any]]:
    """One for each role of the service's topology."""
    made = [_scaler(resolved, labels.ROLE_WORKER, worker_name(resolved), resolved.worker_scale)]
    if resolved.tokenizer is not None:
        name = tokenizer_name(resolved)
        made.append(_scaler(resolved, labels.ROLE_TOKENIZER, name, resolved.tokenizer_scale))
    return made


def _scaler(resolved: Resolved, role: str, name: str, scale: RoleScale) -> dict[str, Any]:
    frame = {
        "apiVersion": API_VERSION,
        "kind": SCALER_KIND,
        "metadata": metadata(resolved, name, role=role),
    }
    scaler = finished(frame)
    scaler["metadata"]["annotations"][labels.PROPAGATED] = str(scale.propagated)
    return {**scaler, "spec": {"replicas": scale.asked}}
