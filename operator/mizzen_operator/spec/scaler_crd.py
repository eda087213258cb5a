"""Owns the InferenceRoleScaler: its spec, and its CustomResourceDefinition.

Does not own what the operator makes of it (``scale``) nor the frame of definitions (``crd``).
"""

from typing import Annotated, Any

from pydantic import Field

from mizzen_operator.spec.crd import (
    COUNT,
    Column,
    conditions_schema,
    definition,
    text_schema,
)
from mizzen_operator.spec.fields import StrictModel
from mizzen_operator.spec.model import MAX_REPLICAS
from mizzen_operator.spec.schema import structural_schema

SCALER_KIND = "InferenceRoleScaler"
SCALER_PLURAL = "inferencerolescalers"
_SINGULAR = "inferencerolescaler"
_SHORT_NAME = "mirs"
_GRANTED = ".status.conditions[?(@.type=='Granted')]"
_ROLE = ".metadata.labels.serving\\.mizzen\\.dev/role"
_SERVICE = ".metadata.labels.serving\\.mizzen\\.dev/service"
_COLUMNS = (
    Column("Service", "string", _SERVICE, "InferenceService that the role belongs to."),
    Column("Role", "string", _ROLE, "What is scaled."),
    Column("Asked", "integer", ".spec.replicas", "Number that is asked for."),
    Column("Current", "integer", ".status.replicas", "Number that exists."),
    Column("Ready", "integer", ".status.readyReplicas", "Number that is ready."),
    Column("Granted", "string", f"{_GRANTED}.status", "Whether the number asked for is wanted."),
    Column("Reason", "string", f"{_GRANTED}.reason", "Why it is granted or not.", 1),
    Column("Age", "date", ".metadata.creationTimestamp", "Time since creation."),
)


class RoleScalerSpec(StrictModel):
    """How far one role of an InferenceService is scaled. The operator makes a scaler for each role
    and writes it only when the service's own field changes: people and autoscalers write it."""

    replicas: Annotated[int, Field(ge=0, le=MAX_REPLICAS)] = 1
    """Worker groups, or tokenizer pods; what kubectl scale and a HorizontalPodAutoscaler write."""


def scaler_crd() -> dict[str, Any]:
    """The whole CustomResourceDefinition."""
    spec = structural_schema(RoleScalerSpec)
    schema = {
        "type": "object",
        "description": "InferenceRoleScaler is how far one role of an InferenceService is scaled.",
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            "metadata": {"type": "object"},
            "spec": {**spec, "default": {}},
            "status": _status_schema(),
        },
    }
    names = {
        "kind": SCALER_KIND,
        "listKind": f"{SCALER_KIND}List",
        "plural": SCALER_PLURAL,
        "singular": _SINGULAR,
        "shortNames": [_SHORT_NAME],
        "categories": ["mizzen"],
    }
    return definition(names, columns=_COLUMNS, schema=schema)


def _status_schema() -> dict[str, Any]:
    return {
        "type": "object",
        "description": "What the operator sees; written by the operator only.",
        "properties": {
            "observedGeneration": {"type": "integer", "format": "int64"},
            "replicas": COUNT,
            "readyReplicas": COUNT,
            "selector": text_schema(512),
            "conditions": conditions_schema(),
        },
    }
