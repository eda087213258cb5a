"""Owns comparing the definitions that a cluster serves with those of this release; pure.

Does not own reading them (``cluster/definitions``). A cluster whose definitions are older drops
fields of ours where people write them, and refuses them in a status.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from mizzen_operator.spec.crd import crd
from mizzen_operator.spec.model import API_VERSION
from mizzen_operator.spec.scaler_crd import scaler_crd

SERVED_PATH = f"/openapi/v3/apis/{API_VERSION}"
"""Where an API server tells what it serves; everybody who is known to it may read that."""
ITEM = "[]"
"""Step of a path into the items of a list or the values of a map."""

FieldPath = tuple[str, ...]
MissingFields = Mapping[str, frozenset[FieldPath]]
"""Fields that the cluster lacks, by kind; only the topmost of those below each other."""


def missing_fields(document: Mapping[str, Any]) -> MissingFields:
    """What the OpenAPI document of the cluster lacks of the kinds of this release that it has."""
    served = _served(document)
    found = {}
    for definition in (crd(), scaler_crd()):
        kind = definition["spec"]["names"]["kind"]
        if kind not in served:
            continue
        schema = definition["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
        parts = {part: schema["properties"][part] for part in ("spec", "status")}
        missing = frozenset(_missing({"properties": parts}, served[kind], ()))
        if missing:
            found[kind] = missing
    return found


def absent_kinds(document: Mapping[str, Any]) -> list[str]:
    """Kinds of this release that are not in the OpenAPI document of the cluster."""
    kinds = [definition["spec"]["names"]["kind"] for definition in (crd(), scaler_crd())]
    return [kind for kind in kinds if kind not in _served(document)]


def _served(document: Mapping[str, Any]) -> Mapping[str, Mapping[str, Any]]:
    """Schemas by kind."""
    schemas = (document.get("components") or {}).get("schemas") or {}
    return {
        of["kind"]: schema
        for schema in schemas.values()
        for of in schema.get("x-kubernetes-group-version-kind") or ()
    }


def texts_of(missing: MissingFields) -> list[str]:
    """The missing fields as people write them, sorted."""
    return sorted(
        f"{kind} {'.'.join(path).replace(f'.{ITEM}', ITEM)}"
        for kind, paths in missing.items()
        for path in paths
    )


def without_fields(value: Any, paths: Iterable[FieldPath]) -> Any:
    """A value without the fields at these paths."""
    by_step: dict[str, list[FieldPath]] = {}
    for step, *rest in paths:
        by_step.setdefault(step, []).append(tuple(rest))
    if isinstance(value, list):
        return [without_fields(item, by_step.get(ITEM, ())) for item in value]
    if not isinstance(value, Mapping):
        return value
    below = {key: by_step.get(key) or by_step.get(ITEM, []) for key in value}
    return {
        key: without_fields(item, below[key]) for key, item in value.items() if () not in below[key]
    }


def _missing(
    wanted: Mapping[str, Any], served: Mapping[str, Any], at: FieldPath
) -> Iterator[FieldPath]:
    if served.get("x-kubernetes-preserve-unknown-fields"):
        return
    known = served.get("properties") or {}
    for name, part in (wanted.get("properties") or {}).items():
        if name not in known:
            yield (*at, name)
        else:
            yield from _missing(part, known[name], (*at, name))
    for key in ("items", "additionalProperties"):
        part = wanted.get(key)
        if isinstance(part, Mapping):
            yield from _missing(part, served.get(key) or {}, (*at, ITEM))
