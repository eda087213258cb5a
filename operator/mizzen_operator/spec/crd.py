"""Owns the CustomResourceDefinition: the schema with its CEL rules, columns, scale and status.

Does not own the schema of the spec (``schema``) nor the rules (``rules``).
"""

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from mizzen_operator.errors import NOT_AVAILABLE
from mizzen_operator.spec.fields import NOT_AVAILABLE_MARK
from mizzen_operator.spec.model import GROUP, KIND, PLURAL, SHORT_NAME, SINGULAR, VERSION
from mizzen_operator.spec.rule import Rule
from mizzen_operator.spec.rules import RULES
from mizzen_operator.spec.schema import spec_schema

COUNT = {"type": "integer", "format": "int32"}
"""Schema of a number of things in a status."""


class Column(NamedTuple):
    """One column of ``kubectl get``; ``priority`` 1 shows it with -o wide only."""

    name: str
    type: str
    path: str
    description: str
    priority: int = 0


_READY = ".status.conditions[?(@.type=='Ready')]"
_AVAILABLE = ".status.conditions[?(@.type=='Available')]"
_COLUMNS = (
    Column("Model", "string", ".status.modelName", 'Name that clients put into "model".'),
    Column("Available", "string", f"{_AVAILABLE}.status", "One whole serving path is ready."),
    Column("Ready", "string", f"{_READY}.status", "Everything wanted is there and serves."),
    Column("Reason", "string", f"{_READY}.reason", "Why it is ready or not."),
    Column("Topology", "string", ".spec.topology", "Shape of the service."),
    Column("Workers", "string", ".status.roles.worker.summary", "Ready and wanted worker groups."),
    Column("Tokenizers", "string", ".status.roles.tokenizer.summary", "Ready and wanted pods."),
    Column("Revision", "string", ".status.updateRevision", "What is wanted now."),
    Column("URL", "string", ".status.url", "Address inside the cluster.", 1),
    Column("Age", "date", ".metadata.creationTimestamp", "Time since creation."),
)


def crd() -> dict[str, Any]:
    """The CustomResourceDefinition of the InferenceService."""
    names = {
        "kind": KIND,
        "listKind": f"{KIND}List",
        "plural": PLURAL,
        "singular": SINGULAR,
        "shortNames": [SHORT_NAME],
        "categories": ["mizzen"],
    }
    return definition(names, columns=_COLUMNS, schema=_schema())


def definition(
    names: Mapping[str, Any], *, columns: Iterable[Column], schema: Mapping[str, Any]
) -> dict[str, Any]:
    """A CustomResourceDefinition with ``/status`` and ``/scale``, the same way in all of ours."""
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": [
            {
                "name": column.name,
                "type": column.type,
                "jsonPath": column.path,
                "description": column.description,
                "priority": column.priority,
            }
            for column in columns
        ],
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "schema": {"openAPIV3Schema": schema},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{names['plural']}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": dict(names),
            "versions": [version],
        },
    }


def _schema() -> dict[str, Any]:
    spec = _without_marks(spec_schema())
    spec["x-kubernetes-validations"] = [_cel(rule) for rule in RULES if _is_for(rule, root=False)]
    return {
        "type": "object",
        "description": "InferenceService serves one large language model.",
        "required": ["spec"],
        "properties": {
            "apiVersion": {"type": "string"},
            "kind": {"type": "string"},
            # Declared, so that a rule about the name can point at it.
            "metadata": {"type": "object", "properties": {"name": {"type": "string"}}},
            "spec": spec,
            "status": _status_schema(),
        },
        "x-kubernetes-validations": [_cel(rule) for rule in RULES if _is_for(rule, root=True)],
    }


def _is_for(rule: Rule, *, root: bool) -> bool:
    return rule.cel is not None and rule.at_root is root


def _cel(rule: Rule) -> dict[str, Any]:
    forbidden = rule.reason == NOT_AVAILABLE
    row = {
        "rule": rule.cel,
        "message": rule.text(),
        "reason": "FieldValueForbidden" if forbidden else "FieldValueInvalid",
    }
    # The path is relative to where the rule stands.
    return {
        **row,
        "fieldPath": f".{rule.field}" if rule.at_root else rule.field.removeprefix("spec"),
    }


def _without_marks(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {
            key: _without_marks(item) for key, item in value.items() if key != NOT_AVAILABLE_MARK
        }
    return [_without_marks(item) for item in value] if isinstance(value, list) else value


def text_schema(limit: int) -> dict[str, Any]:
    """Schema of a text of bounded length."""
    return {"type": "string", "maxLength": limit}


def conditions_schema() -> dict[str, Any]:
    """Schema of the conditions in a status."""
    return {
        "type": "array",
        "maxItems": 16,
        "x-kubernetes-list-type": "map",
        "x-kubernetes-list-map-keys": ["type"],
        "items": {
            "type": "object",
            "required": ["type", "status", "reason", "lastTransitionTime"],
            "properties": {
                "type": text_schema(64),
                "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
                "reason": text_schema(128),
                "message": text_schema(1024),
                "observedGeneration": {"type": "integer", "format": "int64"},
                "lastTransitionTime": {"type": "string", "format": "date-time"},
            },
        },
    }


def _status_schema() -> dict[str, Any]:
    counts = (
        "desired", "asked", "propagated", "groups", "readyGroups", "updatedGroups",
        "drainingGroups", "ready", "updated", "unschedulable", "restarts",
    )  # fmt: skip
    role = {
        "type": "object",
        "properties": {**dict.fromkeys(counts, COUNT), "summary": text_schema(16)},
    }
    group_texts = {
        "name": 63, "role": 32, "revision": 16, "state": 32, "ready": 16, "leader": 63,
        "reason": 128, "message": 400, "lastRestart": 64,
    }  # fmt: skip
    group = {
        **{name: text_schema(limit) for name, limit in group_texts.items()},
        "since": {"type": "string", "format": "date-time"},
        "restarts": COUNT,
        "epoch": COUNT,
        "drainsUntil": {"type": "string", "format": "date-time"},
    }
    rollout = {"from": 16, "to": 16, "updated": 16, "blockedBy": 256}
    return {
        "type": "object",
        "description": "What the operator sees; written by the operator only.",
        "properties": {
            "observedGeneration": {"type": "integer", "format": "int64"},
            "url": text_schema(512),
            "replicas": COUNT,
            "selector": text_schema(512),
            "currentRevision": text_schema(16),
            "updateRevision": text_schema(16),
            "rollout": {
                "type": "object",
                "properties": {name: text_schema(limit) for name, limit in rollout.items()},
            },
            "modelName": text_schema(128),
            "resolvedModel": {
                "type": "object",
                "description": "The weights, and what fetched ones were resolved to for good.",
                "properties": {
                    "source": text_schema(1024),
                    "revision": text_schema(128),
                    "bytes": {"type": "integer", "format": "int64"},
                    "claim": text_schema(63),
                    "retained": {"type": "boolean"},
                },
            },
            "roles": {"type": "object", "properties": {"worker": role, "tokenizer": role}},
            "groups": {
                "type": "array",
                "maxItems": 64,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
                "items": {
                    "type": "object",
                    "required": ["name"],
                    "properties": group,
                },
            },
            "conditions": conditions_schema(),
        },
    }
