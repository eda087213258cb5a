"""Which fields of this release a cluster lacks, and a status without them."""

import json
from typing import Any

import pytest

from mizzen_operator.spec.crd import crd
from mizzen_operator.spec.scaler_crd import scaler_crd
from mizzen_operator.spec.served import absent_kinds, missing_fields, texts_of, without_fields


def document(*definitions: dict[str, Any]) -> dict[str, Any]:
    """As an API server publishes it."""
    schemas = {}
    for definition in definitions:
        kind = definition["spec"]["names"]["kind"]
        schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        of = {"group": "serving.mizzen.dev", "version": "v1alpha1", "kind": kind}
        schemas[f"dev.mizzen.serving.v1alpha1.{kind}"] = {
            **schema,
            "x-kubernetes-group-version-kind": [of],
        }
        items = {
            "properties": {"items": {}},
            "x-kubernetes-group-version-kind": [{**of, "kind": f"{kind}List"}],
        }
        schemas[f"dev.mizzen.serving.v1alpha1.{kind}List"] = items
    return {"components": {"schemas": schemas}}


def as_read(definition: dict[str, Any]) -> dict[str, Any]:
    """A copy without parts that are one object in several places."""
    found: dict[str, Any] = json.loads(json.dumps(definition))
    return found


def properties(definition: dict[str, Any], *steps: str) -> dict[str, Any]:
    found = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    for step in steps:
        found = found["items"] if step == "[]" else found["properties"][step]
    return found["properties"]


def test_a_cluster_with_this_release_lacks_nothing() -> None:
    served = document(crd(), scaler_crd())
    assert missing_fields(served) == {}
    assert absent_kinds(served) == []


def test_missing_fields_are_named_once_at_the_top() -> None:
    old = as_read(crd())
    del properties(old, "spec", "worker")["rollout"]
    del properties(old, "status", "groups", "[]")["reason"]
    del properties(old, "status", "roles", "worker")["asked"]
    served = document(old, scaler_crd())
    assert texts_of(missing_fields(served)) == [
        "InferenceService spec.worker.rollout",
        "InferenceService status.groups[].reason",
        "InferenceService status.roles.worker.asked",
    ]


def test_a_kind_that_is_not_published_is_told_apart() -> None:
    assert absent_kinds(document(crd())) == ["InferenceRoleScaler"]
    assert missing_fields(document(crd())) == {}
    assert absent_kinds({}) == ["InferenceService", "InferenceRoleScaler"]


def test_what_takes_any_field_lacks_none() -> None:
    old = as_read(crd())
    old["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["status"] = {
        "type": "object",
        "x-kubernetes-preserve-unknown-fields": True,
    }
    assert missing_fields(document(old)) == {}


@pytest.mark.parametrize(
    ("paths", "left"),
    [
        ([], {"a": {"b": 1}, "c": [{"d": 2, "e": 3}]}),
        ([("x",), ("a", "x")], {"a": {"b": 1}, "c": [{"d": 2, "e": 3}]}),
        ([("a",)], {"c": [{"d": 2, "e": 3}]}),
        ([("a", "b"), ("c", "[]", "d")], {"a": {}, "c": [{"e": 3}]}),
    ],
)
def test_a_value_loses_exactly_those_fields(paths: list[tuple[str, ...]], left: Any) -> None:
    value = {"a": {"b": 1}, "c": [{"d": 2, "e": 3}]}
    assert without_fields(value, paths) == left
