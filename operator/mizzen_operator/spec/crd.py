"""Owns the CustomResourceDefinition: the schema with its CEL rules, columns, scale and status.

Does not own the schema of the spec (``schema``) nor the rules (``rules``).
"""

from collections.abc import Mapping
from typing import Any

from mizzen_operator.errors import NOT_AVAILABLE
from mizzen_operator.spec.fields import NOT_AVAILABLE_MARK
from mizzen_operator.spec.model import GROUP, KIND, PLURAL, SHORT_NAME, SINGULAR, VERSION
from mizzen_operator.spec.rules import RULES, Rule
from mizzen_operator.spec.schema import spec_schema

_READY = ".status.conditions[?(@.type=='Ready')]"
_AVAILABLE = ".status.conditions[?(@.type=='Available')]"
_COLUMNS = (
    ("Model", "string", ".status.modelName", 'Name that clients put into "model".', 0),
    ("Available", "string", f"{_AVAILABLE}.status", "One whole serving path is ready.", 0),
    ("Ready", "string", f"{_READY}.status", "Everything wanted is there and serves.", 0),
    ("Reason", "string", f"{_READY}.reason", "Why it is ready or not.", 0),
    ("Topology", "string", ".spec.topology", "Shape of the service.", 0),
    ("Workers", "string", ".status.roles.worker.summary", "Ready and wanted worker groups.", 0),
    ("URL", "string", ".status.url", "Address inside the cluster.", 1),
    ("Age", "date", ".metadata.creationTimestamp", "Time since creation.", 0),
)


def crd() -> dict[str, Any]:
    """The whole CustomResourceDefinition."""
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{PLURAL}.{GROUP}"},
        "spec": {
            "group": GROUP,
            "scope": "Namespaced",
            "names": {
                "kind": KIND,
                "listKind": f"{KIND}List",
                "plural": PLURAL,
                "singular": SINGULAR,
                "shortNames": [SHORT_NAME],
                "categories": ["mizzen"],
            },
            "versions": [_version()],
        },
    }


def _version() -> dict[str, Any]:
    return {
        "name": VERSION,
        "served": True,
        "storage": True,
        "additionalPrinterColumns": [_column(*column) for column in _COLUMNS],
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "schema": {"openAPIV3Schema": _schema()},
    }


def _column(name: str, kind: str, path: str, description: str, priority: int) -> dict[str, Any]:
    return {
        "name": name,
        "type": kind,
        "jsonPath": path,
        "description": description,
        "priority": priority,
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


def _text(limit: int) -> dict[str, Any]:
    return {"type": "string", "maxLength": limit}


def _status_schema() -> dict[str, Any]:
    count = {"type": "integer", "format": "int32"}
    role = {
        "type": "object",
        "properties": {
            **dict.fromkeys(("desired", "groups", "readyGroups", "updatedGroups", "ready"), count),
            "summary": _text(16),
        },
    }
    group_texts = {
        "name": 63, "revision": 16, "state": 32, "ready": 16, "reason": 128,
    }  # fmt: skip
    return {
        "type": "object",
        "description": "What the operator sees; written by the operator only.",
        "properties": {
            "observedGeneration": {"type": "integer", "format": "int64"},
            "url": _text(512),
            "replicas": count,
            "selector": _text(512),
            "updateRevision": _text(16),
            "modelName": _text(128),
            "roles": {"type": "object", "properties": {"worker": role, "tokenizer": role}},
            "groups": {
                "type": "array",
                "maxItems": 64,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["name"],
                "items": {
                    "type": "object",
                    "required": ["name"],
                    "properties": {name: _text(limit) for name, limit in group_texts.items()},
                },
            },
            "conditions": {
                "type": "array",
                "maxItems": 16,
                "x-kubernetes-list-type": "map",
                "x-kubernetes-list-map-keys": ["type"],
                "items": {
                    "type": "object",
                    "required": ["type", "status", "reason", "lastTransitionTime"],
                    "properties": {
                        "type": _text(64),
                        "status": {"type": "string", "enum": ["True", "False", "Unknown"]},
                        "reason": _text(128),
                        "message": _text(1024),
                        "observedGeneration": {"type": "integer", "format": "int64"},
                        "lastTransitionTime": {"type": "string", "format": "date-time"},
                    },
                },
            },
        },
    }
