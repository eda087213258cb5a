"""Owns turning an API object or a YAML document into the typed model, with problems by field.

Does not own rules across fields (``validate``).
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from mizzen_operator.errors import Problem, SpecError
from mizzen_operator.spec import fields
from mizzen_operator.spec.model import (
    API_VERSION,
    AVAILABLE_TOPOLOGIES,
    KIND,
    InferenceService,
    Restart,
    Spec,
)
from mizzen_operator.spec.routing import NAMESPACE_PATTERN
from mizzen_operator.spec.spelling import part_at, remedy_for_unknown
from mizzen_operator.spec.wording import shown

_METADATA: tuple[tuple[str, Callable[[Any], bool]], ...] = (
    (
        "namespace",
        lambda found: isinstance(found, str) and re.fullmatch(NAMESPACE_PATTERN, found) is not None,
    ),
    ("uid", lambda found: isinstance(found, str)),
    ("generation", lambda found: type(found) is int),
)
_SOME_QUANTITIES = "write one such as 500m, 2 or 16Gi"
MAX_DEPTH = 100
"""Of maps and lists within another, in a spec. The API server lets thousands through where it knows
no schema, in pod templates; Kubernetes itself has about 20."""


def parse(obj: Mapping[str, Any]) -> InferenceService:
    """The typed service; raises SpecError with every problem of its form.

    Explicit nulls count as absent, as they do on the API server.
    """
    meta = obj.get("metadata")
    if not isinstance(meta, Mapping) or not isinstance(meta.get("name"), str):
        if isinstance(meta, Mapping) and meta.get("name") is not None:
            raise SpecError([_no_metadata("name", meta["name"])])
        raise SpecError([_missing("metadata.name", "give the object a name")])
    wrong = [
        key for key, is_good in _METADATA if meta.get(key) is not None and not is_good(meta[key])
    ]
    if wrong:
        raise SpecError(_no_metadata(key, meta[key]) for key in wrong)
    if (obj.get("apiVersion"), obj.get("kind")) != (API_VERSION, KIND):
        found = f"{obj.get('apiVersion')}/{obj.get('kind')}"
        raise SpecError(
            [
                Problem(
                    field="apiVersion",
                    value=found,
                    message="is not an InferenceService of this operator",
                    remedy=f"use apiVersion {API_VERSION} and kind {KIND}",
                )
            ]
        )
    written = obj.get("spec")
    if _is_too_deep(written):
        raise SpecError([_TOO_DEEP])
    spec = _without_nulls(written)
    if spec is None:
        raise SpecError([_missing("spec", "write at least spec.model.source")])
    try:
        typed = Spec.model_validate_json(json.dumps(spec, default=str))
    except ValidationError as error:
        raise SpecError(_problem(item, spec) for item in error.errors()) from error
    return InferenceService(
        name=meta["name"],
        namespace=meta.get("namespace") or "default",
        uid=meta.get("uid") or "",
        generation=meta.get("generation") or 1,
        spec=typed,
    )


def restart_of_refused(obj: Mapping[str, Any]) -> Restart | None:
    """How groups start anew, as far as a spec tells that is refused; None while it is paused."""
    spec = obj.get("spec")
    if not isinstance(spec, Mapping):
        return Restart()
    if spec.get("paused") is True:
        return None
    worker = spec.get("worker")
    written = worker.get("restart") if isinstance(worker, Mapping) else None
    if written is None or _is_too_deep(written):
        return Restart()
    try:
        return Restart.model_validate_json(json.dumps(_without_nulls(written), default=str))
    except ValidationError:
        return Restart()


def _is_too_deep(value: Any) -> bool:
    """Whether more than MAX_DEPTH maps and lists are within each other; safe at any depth."""
    level = [value]
    for _ in range(MAX_DEPTH + 1):
        level = [inner for item in level for inner in _within(item)]
        if not level:
            return False
    return True


def _within(value: Any) -> Iterable[Any]:
    """What is in a map or a list; nothing in anything else."""
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, list) else ()


_TOO_DEEP = Problem(
    field="spec",
    value="",
    message=f"has more than {MAX_DEPTH} maps and lists within each other",
    remedy="look for a mistake of indentation, or for a whole object put into a pod template",
)


def _no_metadata(key: str, value: Any) -> Problem:
    return Problem(
        field=f"metadata.{key}",
        value=shown(value),
        message="is not what the API server writes there",
        remedy="put it in quotes if it is a name, else remove it",
    )


def _missing(field: str, remedy: str) -> Problem:
    return Problem(field=field, value="", message="is missing", remedy=remedy)


def _without_nulls(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_nulls(item) for item in value]
    return value


def _problem(error: ErrorDetails, spec: Any) -> Problem:
    path, value = _locate(error["loc"], spec)
    words = error["msg"].replace("Tuple ", "List ").replace(" after validation", "")
    message, remedy = _lower_first(words), _meaning(error["loc"])
    match error["type"]:
        case "missing":
            message, remedy = "is missing", "add it"
        case "extra_forbidden":
            message, remedy = "is not a field of this version", remedy_for_unknown(error["loc"])
        case "enum":
            # The only enumeration: pydantic would offer the reserved member too.
            message = "is not a topology of this version"
            remedy = f"use {' or '.join(AVAILABLE_TOPOLOGIES)}"
        case fields.NO_QUANTITY:
            remedy = _SOME_QUANTITIES
        case "string_pattern_mismatch" if error["ctx"]["pattern"] == fields.QUANTITY_PATTERN:
            message, remedy = "is not a quantity", _SOME_QUANTITIES
    if error["type"].endswith(("_type", "_parsing")) and isinstance(error["input"], str):
        value = f"the text {json.dumps(value, ensure_ascii=False)}"
    return Problem(field=path, value=value, message=message, remedy=remedy)


def _meaning(steps: tuple[int | str, ...]) -> str:
    """The remedy where only what a field is tells what to write."""
    for count in range(len(steps), 0, -1):
        part = part_at(steps[:count])
        if part is not part_at(steps[: count - 1]) and "description" in part:
            names = ", ".join(part.get("properties", ()))
            meaning = " ".join(part["description"].split())
            inside = f" It has the fields {names}." if names else ""
            return f"correct the value; the field is: {meaning}{inside}"
    return "correct the value"


def _locate(loc: tuple[int | str, ...], spec: Any) -> tuple[str, str]:
    """Path and value; steps that name a branch of a union are not in the document."""
    path, value = "spec", spec
    last = len(loc) - 1
    for position, step in enumerate(loc):
        inside = (isinstance(value, Mapping) and step in value) or (
            isinstance(value, list) and isinstance(step, int) and step < len(value)
        )
        if not inside and not (position == last and isinstance(value, Mapping)):
            continue
        path = f"{path}[{step}]" if isinstance(step, int) else f"{path}.{step}"
        value = value[step] if inside else None
    return path, shown(value)


def _lower_first(text: str) -> str:
    return text[:1].lower() + text[1:]
