"""Owns the way back from a rendered pod to the spec: which field a complaint of the API server is
about; pure.

Does not own asking the API server nor what follows from its answer. A complaint that names no field
of a pod, as that of a webhook, leads to the role as a whole.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

from mizzen_operator.errors import INVALID_POD_TEMPLATE, Problem
from mizzen_operator.render import labels
from mizzen_operator.render.template_origin import Place, is_about_form, origins_of, paths_in_text
from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.spec.wording import shown

_TEMPLATE_PREFIX = "spec.template."
_RESOURCE = re.compile(
    r"^spec\.containers\[\d+\]\.resources(?:\.(requests|limits)(?:[.\[]([^\]]+)\]?)?)?$"
)
_ENV = re.compile(r"^spec\.containers\[\d+\]\.env\[(\d+)\]")
_PULL_SECRET = re.compile(r"^spec\.imagePullSecrets")
_CONTAINER_FIELDS = (
    (re.compile(r"\.imagePullPolicy"), "spec.engine.imagePullPolicy"),
    (re.compile(r"\.args"), "spec.engine.args"),
    (re.compile(r"\.startupProbe"), "spec.engine.startupDeadlineSeconds"),
    (re.compile(r"\.lifecycle"), "spec.worker.drain.timeoutSeconds"),
)
_POD_FIELDS = (
    (re.compile(r"^spec\.terminationGracePeriodSeconds"), "spec.worker.drain.timeoutSeconds"),
    (re.compile(r"^spec\.volumes\[\d+\]\.persistentVolumeClaim"), "spec.model.source.pvc"),
)
_LIMIT_RANGE = re.compile(r"\b([a-z][-a-z0-9./]*) (?:usage|max limit to request ratio) per ")
"""LimitRange: "maximum cpu usage per Container is 1, but limit is 2"."""
_QUOTA_NEEDS = re.compile(r"must specify ((?:requests|limits)\.[-a-z0-9./]+)")
"""ResourceQuota: "failed quota: q: must specify limits.memory for: mizzen"."""


def template_problem(
    resolved: Resolved,
    role: str,
    template: Mapping[str, Any],
    *,
    said: str,
    paths: Iterable[str],
) -> Problem:
    """The complaint as a problem of the InferenceService; ``paths`` are those in the pod."""
    found = _places(resolved, role, template, said, paths)
    first = found[0] if found else Place(field=_field_of_role(role))
    return Problem(
        field=", ".join(dict.fromkeys(place.field for place in found)) or first.field,
        value=first.value,
        message=f"the API server refuses the {role} pods: {said.strip().rstrip('.')}",
        remedy="change it, or the policy of the namespace; the API server is asked again at "
        "intervals and after each edit",
        reason=INVALID_POD_TEMPLATE,
    )


def _field_of_role(role: str) -> str:
    """The part of the spec that the role's pods are made from."""
    return "spec.model.cache" if role == labels.ROLE_WEIGHTS else f"spec.{role}"


def _places(
    resolved: Resolved, role: str, template: Mapping[str, Any], said: str, paths: Iterable[str]
) -> list[Place]:
    """What the complaint is about, the most likely first; empty where nothing points to it."""
    origins = origins_of(resolved, role, template)
    found = []
    for path in (*paths, *paths_in_text(said)):
        written = None if origins is None else origins.place_of(path)
        if written is not None:
            found.append(written)
            continue
        field = _field_of_path(resolved, role, template, path.removeprefix(_TEMPLATE_PREFIX))
        if field is not None:
            found.append(_place(resolved, field))
    named = [] if origins is None else origins.named_containers(said)
    # Of a container that is not ours, its own resources are meant.
    found += named or [_place(resolved, field) for field in _fields_of_text(role, said)]
    if origins is not None and _LIMIT_RANGE.search(said):
        # It does not say which container it means.
        found += origins.containers()
    if not found and origins is not None and is_about_form(said):
        return [Place(field=origins.root)]
    return found


def _place(resolved: Resolved, field: str) -> Place:
    return Place(field=field, value=_value_at(resolved, field))


def _field_of_path(
    resolved: Resolved, role: str, template: Mapping[str, Any], path: str
) -> str | None:
    """The field that a path below the pod comes from; None where the operator alone wrote it."""
    resource = _RESOURCE.match(path)
    if resource is not None:
        return _resource_field(resolved, role, resource[1], resource[2])
    variable = _ENV.match(path)
    if variable is not None and role != labels.ROLE_WEIGHTS:
        return _variable_field(resolved, template, int(variable[1]))
    if _PULL_SECRET.match(path):
        return "spec.engine.imagePullSecrets"
    if re.match(r"^spec\.containers\[\d+\]\.image$", path):
        image = "frontend" if role == labels.ROLE_TOKENIZER else "worker"
        return f"spec.engine.images.{image}"
    if role == labels.ROLE_WEIGHTS:
        return None
    table = _CONTAINER_FIELDS if path.startswith("spec.containers[") else _POD_FIELDS
    return next((field for pattern, field in table if pattern.search(path)), None)


def _resource_field(resolved: Resolved, role: str, kind: str | None, name: str | None) -> str:
    gpu = resolved.spec.worker.gpu
    if role == labels.ROLE_WORKER and gpu.count_per_node and name == gpu.resource_name:
        return "spec.worker.gpu"
    return ".".join(part for part in (f"{_field_of_role(role)}.resources", kind, name) if part)


def _variable_field(resolved: Resolved, template: Mapping[str, Any], index: int) -> str | None:
    variables = template["spec"]["containers"][0]["env"]
    name = variables[index]["name"] if index < len(variables) else ""
    is_written = any(item.name == name for item in resolved.spec.engine.env)
    return f"spec.engine.env[{name}]" if is_written else None


def _fields_of_text(role: str, said: str) -> list[str]:
    resources = f"{_field_of_role(role)}.resources"
    ranges = [f"{resources} ({name})" for name in _LIMIT_RANGE.findall(said)]
    return [*ranges, *(f"{resources}.{path}" for path in _QUOTA_NEEDS.findall(said))]


def _value_at(resolved: Resolved, path: str) -> str:
    value: Any = resolved.spec.model_dump(by_alias=True, mode="json", exclude_none=True)
    steps = path.split(" ")[0].split(".", 5 if path.startswith("spec.model.") else 4)[1:]
    for step in steps:
        if not isinstance(value, Mapping) or step not in value:
            return ""
        value = value[step]
    return shown(value)
