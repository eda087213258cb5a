"""The CRD is what the model says: bounded, small, documented, and equal to the file in crds/."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from mizzen_operator.cli import generated_files
from mizzen_operator.spec.crd import crd
from mizzen_operator.spec.model import Spec
from mizzen_operator.spec.reference import reference_page
from mizzen_operator.spec.rules import RULES

ROOT = Path(__file__).resolve().parents[3]
VERSION = crd()["spec"]["versions"][0]
SCHEMA = VERSION["schema"]["openAPIV3Schema"]


def _parts(schema: Mapping[str, Any], path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    yield path, schema
    for name, part in schema.get("properties", {}).items():
        yield from _parts(part, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), Mapping):
            yield from _parts(schema[key], f"{path}[]")


def test_the_files_are_generated() -> None:
    for path, text in generated_files().items():
        written = (ROOT / path).read_text(encoding="utf-8")
        assert written == text, "run: python -m mizzen_operator render-crds"


def test_the_reference_has_every_field_and_rule() -> None:
    page = reference_page()
    for path, part in _parts(SCHEMA["properties"]["spec"], "spec"):
        if "properties" in part and not path.endswith("[]"):
            assert path == "spec" or f"`{path}`" in page, path
    assert all(rule.field in page for rule in RULES)


def test_row_5_it_is_far_below_the_size_limit() -> None:
    assert len(json.dumps(crd())) < 200_000


def test_every_part_of_the_spec_is_documented_and_bounded() -> None:
    for path, part in _parts(SCHEMA["properties"]["spec"], "spec"):
        kind = part.get("type")
        assert "description" in part or path.endswith("[]"), path
        assert "additionalProperties" in part or "not-available" not in part, path
        if kind == "array":
            assert "maxItems" in part, path
        if "additionalProperties" in part:
            assert "maxProperties" in part, path
        if kind == "string":
            assert "enum" in part or "maxLength" in part, path
        if kind == "integer":
            assert "minimum" in part, path
            assert "maximum" in part, path


def test_schema_is_structural() -> None:
    for path, part in _parts(SCHEMA, ""):
        assert not {"$ref", "$defs", "title", "propertyNames", "const", "oneOf"} & set(part), path
        assert "type" in part or part.get("x-kubernetes-int-or-string"), path


def test_defaults_of_the_schema_are_those_of_the_model() -> None:
    written = Spec.model_validate_json('{"model": {"source": {"pvc": {"claimName": "w"}}}}')
    by_path = dict(_parts(SCHEMA["properties"]["spec"], "spec"))

    def check(value: Any, path: str) -> None:
        part = by_path[path]
        if isinstance(value, Mapping) and "properties" in part:
            for name, item in value.items():
                check(item, f"{path}.{name}")
        elif "default" in part:
            assert part["default"] == value, path

    check(written.model_dump(by_alias=True, mode="json"), "spec")
    assert by_path["spec.worker.gpu"]["default"] == {}
    assert by_path["spec.replicas"]["default"] == 1


def test_every_cel_rule_is_in_the_crd_and_points_at_a_field() -> None:
    placed = [
        *SCHEMA["x-kubernetes-validations"],
        *SCHEMA["properties"]["spec"]["x-kubernetes-validations"],
    ]
    assert {row["rule"] for row in placed} == {rule.cel for rule in RULES if rule.cel}
    known = {path.removeprefix("spec") for path, _ in _parts(SCHEMA["properties"]["spec"], "spec")}
    for row in SCHEMA["properties"]["spec"]["x-kubernetes-validations"]:
        assert row["fieldPath"] in known, row


def test_scale_status_and_columns() -> None:
    assert VERSION["subresources"]["scale"]["specReplicasPath"] == ".spec.replicas"
    assert "status" in VERSION["subresources"]
    names = [column["name"] for column in VERSION["additionalPrinterColumns"]]
    assert names == [
        "Model",
        "Available",
        "Ready",
        "Reason",
        "Topology",
        "Workers",
        "Tokenizers",
        "Revision",
        "URL",
        "Age",
    ]
