"""Owns what a user's pod template may hold: what serving rests on stays ours, and pods restricted.

Only what is named here may be set, so that a field that a later Kubernetes brings opens nothing.
Does not own whether a value is right: the API server is asked that (``cluster/trial``), but for
quantities, about which it says no place. Pure; what is of another form than it should be is passed
over where the API server refuses it in its own words.
"""

import json
import posixpath
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from mizzen_operator.errors import INVALID_POD_TEMPLATE, Problem
from mizzen_operator.render.pod_security import Finding, container_findings, pod_findings
from mizzen_operator.render.strategic_merge import LIST_KEYS, key_of
from mizzen_operator.spec.model import GROUP
from mizzen_operator.spec.quantity import quantity_of
from mizzen_operator.spec.rules import OWNED_LABEL_PREFIXES
from mizzen_operator.spec.wording import shown
from mizzen_operator.worker_contract import CONTAINER, OWNED_ENV_PREFIX

MAX_BYTES = 32 * 1024
"""Of a template as UTF-8 JSON: every group's StatefulSet and every stored revision has a copy."""
_REMOVE = "remove it"
_TEMPLATE_FIELDS = ("metadata", "spec")
_METADATA_FIELDS = ("labels", "annotations")
_POD_FIELDS = (
    "affinity", "containers", "dnsConfig", "hostAliases", "imagePullSecrets", "initContainers",
    "nodeSelector", "preemptionPolicy", "priorityClassName", "readinessGates", "runtimeClassName",
    "schedulerName", "securityContext", "tolerations", "topologySpreadConstraints", "volumes",
)  # fmt: skip
_POD_REMEDIES = {
    "activeDeadlineSeconds": "remove it: pods serve until they are drained",
    "automountServiceAccountToken": "remove it: pods of the service have no access to the API",
    "dnsPolicy": "use dnsConfig: pods find each other by names of the cluster",
    "nodeName": "use nodeSelector or affinity",
    "restartPolicy": "remove it: containers are started again",
    "serviceAccountName": "remove it: pods of the service have an account of their own",
    "terminationGracePeriodSeconds": "use spec.worker.drain.timeoutSeconds",
    **dict.fromkeys(
        ("hostNetwork", "hostPID", "hostIPC", "shareProcessNamespace"),
        "remove it: pods of the service keep apart from their node and their containers from each "
        "other",
    ),
}
_OWN_FIELDS = ("name", "env", "volumeMounts")
_OWN_REMEDIES = {
    "args": "use spec.engine.args",
    "command": "remove it: the operator starts the engine",
    "envFrom": "name each variable in env, with valueFrom",
    "image": "use spec.engine.images",
    "imagePullPolicy": "use spec.engine.imagePullPolicy",
    "lifecycle": "use spec.worker.drain.timeoutSeconds",
    "resources": "use resources of the role",
    "securityContext": "use securityContext of the pod",
    "startupProbe": "use spec.engine.startupDeadlineSeconds",
}
_OWN_SCRATCH = "emptyDir"
"""The only kind of volume of ours that may be given other values."""
_OWNED_LABELS = (
    *OWNED_LABEL_PREFIXES, "apps.kubernetes.io/", "batch.kubernetes.io/",
    "statefulset.kubernetes.io/", "pod-template-hash", "controller-revision-hash",
)  # fmt: skip
_OWNED_ANNOTATIONS = (f"{GROUP}/", "container.apparmor.security.beta.kubernetes.io/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Rendered:
    """What the rules know of the pod template that we render ourselves."""

    volumes: Mapping[str, Mapping[str, Any]]
    mount_paths: frozenset[str]
    ports: frozenset[int]
    port_names: frozenset[str]


def template_rule_problems(
    role: str, base: Mapping[str, Any], template: Mapping[str, Any]
) -> list[Problem]:
    """Why the template of a role may not be merged over ``base``; empty if it may."""
    root = f"spec.{role}.podTemplate"
    return [
        Problem(
            field=f"{root}{finding.path}",
            value=shown(finding.value),
            message=finding.message,
            remedy=finding.remedy,
            reason=INVALID_POD_TEMPLATE,
        )
        for finding in _findings(_rendered(base), template)
    ]


def _rendered(base: Mapping[str, Any]) -> Rendered:
    (container,) = base["spec"]["containers"]
    return Rendered(
        volumes={item["name"]: item for item in base["spec"]["volumes"]},
        mount_paths=frozenset(item["mountPath"] for item in container["volumeMounts"]),
        ports=frozenset(item["containerPort"] for item in container["ports"]),
        port_names=frozenset(item["name"] for item in container["ports"]),
    )


def _findings(rendered: Rendered, template: Mapping[str, Any]) -> Iterator[Finding]:
    size = len(json.dumps(template, ensure_ascii=False).encode())
    if size > MAX_BYTES:
        yield Finding(
            path="",
            value=f"{size} bytes",
            message=f"is larger than {MAX_BYTES} bytes",
            remedy="put what is large into a ConfigMap and mount that",
        )
        return
    malformed = list(_malformed("", template))
    if malformed:
        # The others go by the form.
        yield from malformed
        return
    yield from _only("", template, _TEMPLATE_FIELDS, {})
    metadata, spec = template.get("metadata", {}), template.get("spec", {})
    yield from _only(".metadata", metadata, _METADATA_FIELDS, {})
    for name, owned in (("labels", _OWNED_LABELS), ("annotations", _OWNED_ANNOTATIONS)):
        yield from _owned_keys(f".metadata.{name}", metadata.get(name, {}), owned)
    yield from _only(".spec", spec, _POD_FIELDS, _POD_REMEDIES)
    yield from pod_findings(spec, ours=frozenset(rendered.volumes))
    yield from _volumes(rendered, spec)
    for name in ("containers", "initContainers"):
        for index, container in enumerate(spec.get(name, [])):
            path = f".spec.{name}[{index}]"
            if container["name"] == CONTAINER:
                yield from _own_container(rendered, path, container, is_init=name != "containers")
            else:
                yield from container_findings(path, container)
                yield from _other_container(rendered, path, container)


# -- the form that merging relies on ----------------------------------------------------------


_LISTS_OF_MAPS = frozenset({"containers", "initContainers", "volumes", "env", "volumeMounts"})
_MAPS = frozenset({"metadata", "spec", "securityContext", "resources", "emptyDir"})
_FREE_MAPS = frozenset(
    {"labels", "annotations", "requests", "limits", "nodeSelector", "matchLabels"}
    | {"volumeAttributes"}
)
"""Maps whose keys are the user's: none of them is a field."""


def _malformed(path: str, value: Any) -> Iterator[Finding]:
    for key, item in value.items() if isinstance(value, Mapping) else ():
        at = f"{path}.{key}"
        if key.startswith("$"):
            yield Finding(
                path=at,
                message="directives of a patch are not known here: a template only adds",
                remedy=_REMOVE,
            )
        elif key in _LISTS_OF_MAPS and not isinstance(item, list):
            # Values of variables may be secrets: none is told.
            told = None if key == "env" else item
            yield Finding(path=at, value=told, message="is not a list", remedy="write a list")
        elif key in (*_MAPS, *_FREE_MAPS) and not isinstance(item, Mapping):
            yield Finding(path=at, value=item, message="is not a map", remedy="write a map")
        elif isinstance(item, list):
            yield from _malformed_items(at, key, item)
        elif key not in _FREE_MAPS:
            yield from _malformed(at, item)


def _malformed_items(path: str, name: str, items: list[Any]) -> Iterator[Finding]:
    keys = [key_of(name, item) for item in items]
    for index, (item, key) in enumerate(zip(items, keys, strict=True)):
        at = f"{path}[{index}]"
        if name in _LISTS_OF_MAPS and (key is None or not isinstance(key[0], str)):
            field = LIST_KEYS[name][0]
            yield Finding(
                path=at,
                message=f"has no {field}, by which it is set apart",
                remedy=f"write one with {field}",
            )
        elif key is not None and key in keys[:index]:
            yield Finding(
                path=at,
                value=", ".join(map(str, key)),
                message="is given twice",
                remedy="keep one of them",
            )
        else:
            yield from _malformed(at, item)


# -- what stays ours --------------------------------------------------------------------------


def _only(
    path: str, part: Mapping[str, Any], allowed: Iterable[str], remedies: Mapping[str, str]
) -> Iterator[Finding]:
    for name in part:
        if name in allowed:
            continue
        known = f"{_REMOVE}, or compare its spelling: {', '.join(allowed)} may be set here"
        yield Finding(
            path=f"{path}.{name}",
            value=part[name],
            message="may not be set by a pod template",
            remedy=remedies.get(name, known),
        )


def _owned_keys(path: str, part: Mapping[str, Any], owned: tuple[str, ...]) -> Iterator[Finding]:
    for key in part:
        if key.startswith(owned):
            yield Finding(
                path=f"{path}[{key}]",
                value=part[key],
                message="is not for a pod template: others find or guard the pods by it",
                remedy="use a prefix of your own",
            )


def _volumes(rendered: Rendered, spec: Mapping[str, Any]) -> Iterator[Finding]:
    for index, volume in enumerate(spec.get("volumes", [])):
        path, ours = f".spec.volumes[{index}]", rendered.volumes.get(volume["name"])
        if ours is not None:
            allowed = ("name", _OWN_SCRATCH) if _OWN_SCRATCH in ours else ("name",)
            remedy = f"volume {volume['name']} is the operator's: give yours another name"
            yield from _only(path, volume, allowed, dict.fromkeys(volume, remedy))
        scratch = volume.get("emptyDir", {})
        yield from _quantities(f"{path}.emptyDir", scratch, only=("sizeLimit",))


def _own_container(
    rendered: Rendered, path: str, container: Mapping[str, Any], *, is_init: bool
) -> Iterator[Finding]:
    if is_init:
        yield Finding(
            path=f"{path}.name",
            value=CONTAINER,
            message="is the name of the engine's own container",
            remedy="choose another name",
        )
        return
    yield from _only(path, container, _OWN_FIELDS, _OWN_REMEDIES)
    for index, variable in enumerate(container.get("env", [])):
        if variable["name"].startswith(OWNED_ENV_PREFIX):
            yield Finding(
                path=f"{path}.env[{index}].name",
                value=variable["name"],
                message=f"names that start with {OWNED_ENV_PREFIX} belong to the operator",
                remedy="remove that variable",
            )
    for index, mount in enumerate(container.get("volumeMounts", [])):
        if _is_at(mount["mountPath"], rendered.mount_paths):
            yield Finding(
                path=f"{path}.volumeMounts[{index}].mountPath",
                value=mount["mountPath"],
                message="would hide what the operator mounts there",
                remedy="choose another path",
            )


def _is_at(path: str, taken: frozenset[str]) -> bool:
    """Whether a mount lies at a path that is taken, or above it.

    The kubelet takes a relative path from the root, and two slashes at the beginning for one.
    """
    own = posixpath.normpath(f"/{path.lstrip('/')}")
    return any(f"{other}/".startswith(f"{own.rstrip('/')}/") for other in taken)


def _other_container(
    rendered: Rendered, path: str, container: Mapping[str, Any]
) -> Iterator[Finding]:
    resources = container.get("resources", {})
    for part in ("requests", "limits"):
        yield from _quantities(f"{path}.resources.{part}", resources.get(part, {}))
    ports = container.get("ports", [])
    for index, port in enumerate(ports if isinstance(ports, list) else []):
        if not isinstance(port, Mapping):
            continue
        taken = ("containerPort", rendered.ports), ("name", rendered.port_names)
        for field, values in taken:
            if port.get(field) in values:
                yield Finding(
                    path=f"{path}.ports[{index}].{field}",
                    value=port[field],
                    message="is taken by the engine's own container",
                    remedy="choose another one",
                )


def _quantities(
    path: str, amounts: Mapping[str, Any], only: tuple[str, ...] = ()
) -> Iterator[Finding]:
    for name, amount in amounts.items():
        if (not only or name in only) and quantity_of(str(amount)) is None:
            yield Finding(
                path=f"{path}[{name}]" if not only else f"{path}.{name}",
                value=amount,
                message="is not a quantity",
                remedy="write one such as 500m, 2 or 16Gi",
            )
