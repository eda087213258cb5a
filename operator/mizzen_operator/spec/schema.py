"""Owns the structural OpenAPI schema of the spec, made from the typed model.

Does not own rules across fields (``rules``) nor the CRD around the schema (``crd``).
"""

from collections.abc import Mapping
from typing import Any

from mizzen_operator.spec.fields import NOT_AVAILABLE_MARK, StrictModel
from mizzen_operator.spec.model import Spec

# A structural schema cannot bound the keys of a map: the API server takes any, the model refuses.
_DROPPED = frozenset(
    {"title", "additionalProperties", "patternProperties", "propertyNames", "$defs"}
)
_LIST_KEYS = {"env": "name", "imagePullSecrets": "name"}


def spec_schema() -> dict[str, Any]:
    """Schema of ``spec``: inlined, structural, with descriptions and defaults at every level."""
    schema = structural_schema(Spec)
    for name, key in _LIST_KEYS.items():
        part = schema["properties"]["engine"]["properties"][name]
        part |= {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}
    schema["properties"]["engine"]["properties"]["args"]["x-kubernetes-list-type"] = "atomic"
    return schema


def structural_schema(model: type[StrictModel]) -> dict[str, Any]:
    """Schema of a model: inlined, with defaults at every level."""
    raw = model.model_json_schema(by_alias=True, mode="validation")
    return _structural(raw, raw.get("$defs", {}))


def reserved_paths(schema: Mapping[str, Any], below: str = "") -> list[str]:
    """Paths of all reserved fields in the spec's (inlined) schema."""
    found: list[str] = []
    for name, part in schema.get("properties", {}).items():
        path = f"{below}.{name}" if below else name
        if part.get(NOT_AVAILABLE_MARK):
            found.append(path)
        else:
            found += reserved_paths(part, path)
    return found


def _structural(part: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    part = _inlined(part, definitions)
    made = {key: value for key, value in part.items() if key not in _DROPPED}
    if "properties" in part:
        made["properties"] = {
            name: _property(item, definitions, is_required=name in part.get("required", ()))
            for name, item in part["properties"].items()
        }
    elif (values := _map_values(part)) is not None:
        made["additionalProperties"] = _structural(values, definitions)
    if isinstance(part.get("items"), Mapping):
        made["items"] = _structural(part["items"], definitions)
    if made.get("type") == "integer":
        made["format"] = "int64" if made.get("maximum", 0) > 2**31 - 1 else "int32"
    return made


def _map_values(part: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Schema of a map's values; None for what is not a map."""
    choices = [part.get("additionalProperties"), *part.get("patternProperties", {}).values()]
    return next((choice for choice in choices if isinstance(choice, Mapping)), None)


def _property(
    part: Mapping[str, Any], definitions: Mapping[str, Any], *, is_required: bool
) -> dict[str, Any]:
    made = _structural(part, definitions)
    if made.get("default", ...) in (None, []):
        del made["default"]
    is_filled = "properties" in made and not is_required and not _is_optional(part)
    if is_filled and "default" not in made:
        # The API server fills defaults of nested fields only below an object that exists.
        made["default"] = {}
    return made


def _is_optional(part: Mapping[str, Any]) -> bool:
    return any(choice.get("type") == "null" for choice in part.get("anyOf", ()))


def _inlined(part: Mapping[str, Any], definitions: Mapping[str, Any]) -> dict[str, Any]:
    """The part with references and "or null" resolved; the nearest description wins."""
    made = dict(part)
    if _is_optional(made):
        (choice,) = (item for item in made.pop("anyOf") if item.get("type") != "null")
        made = {**choice, **made}
    while "$ref" in made:
        target = definitions[made.pop("$ref").rsplit("/", 1)[-1]]
        made = {**target, **made}
    return made
