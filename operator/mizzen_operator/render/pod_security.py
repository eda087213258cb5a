"""Owns what of a user's pod template the restricted pod security standard lets through; pure.

Checked whether or not the namespace enforces the standard: who may write an InferenceService but no
pods shall get no more by it than a restricted pod. Does not own what serving rests on
(``pod_template_rules``).
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

_REMOVE = "remove it: every container of the service meets the restricted pod security standard"
_VOLUME_TYPES = (
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim",
    "projected", "secret",
)  # fmt: skip

_PROBES = ("livenessProbe", "readinessProbe", "startupProbe")
_CALLS = ("httpGet", "tcpSocket")

Check = Callable[[Any], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What is wrong at one place of a template."""

    path: str
    """Below the template; empty for the whole of it."""
    message: str
    remedy: str
    value: Any = None


def _any(_: Any) -> bool:
    return True


def _is_not_root(value: Any) -> bool:
    return bool(value != 0)


def _adds_little(value: Any) -> bool:
    added = value.get("add", []) if isinstance(value, Mapping) else []
    return isinstance(added, list) and all(item == "NET_BIND_SERVICE" for item in added)


def _has_profile(value: Any) -> bool:
    profiles = ("RuntimeDefault", "Localhost")
    return isinstance(value, Mapping) and value.get("type") in profiles


_POD: Mapping[str, Check] = {
    "runAsUser": _is_not_root,
    "runAsGroup": _any,
    "runAsNonRoot": lambda value: value is True,
    "fsGroup": _any,
    "fsGroupChangePolicy": _any,
    "supplementalGroups": _any,
    "supplementalGroupsPolicy": _any,
    "seccompProfile": _has_profile,
}
_CONTAINER: Mapping[str, Check] = {
    "runAsUser": _is_not_root,
    "runAsGroup": _any,
    "runAsNonRoot": lambda value: value is True,
    "readOnlyRootFilesystem": _any,
    "allowPrivilegeEscalation": lambda value: value is False,
    "privileged": lambda value: value is False,
    "capabilities": _adds_little,
    "seccompProfile": _has_profile,
}


def pod_findings(spec: Mapping[str, Any], *, ours: frozenset[str]) -> Iterator[Finding]:
    """What a pod itself may not ask for; volumes with names of ``ours`` are judged elsewhere."""
    yield from _context(".spec.securityContext", spec.get("securityContext", {}), _POD)
    for index, volume in enumerate(spec.get("volumes", [])):
        if volume["name"] in ours:
            continue
        for kind in volume.keys() - {"name", *_VOLUME_TYPES}:
            yield Finding(
                path=f".spec.volumes[{index}].{kind}",
                value=volume[kind],
                message="is no kind of volume that a restricted pod may have",
                remedy=f"use one of {', '.join(_VOLUME_TYPES)}",
            )


def container_findings(path: str, container: Mapping[str, Any]) -> Iterator[Finding]:
    """What a container of the user's may not ask for."""
    yield from _context(f"{path}.securityContext", container.get("securityContext", {}), _CONTAINER)
    ports = container.get("ports", [])
    for index, port in enumerate(ports if isinstance(ports, list) else []):
        if isinstance(port, Mapping) and port.get("hostPort"):
            yield Finding(
                path=f"{path}.ports[{index}].hostPort",
                value=port["hostPort"],
                message="would open a port of the node",
                remedy="remove it, and use a Service",
            )
    yield from _hosts(path, container)


def _hosts(path: str, container: Mapping[str, Any]) -> Iterator[Finding]:
    """Other hosts that the kubelet is to call."""
    calls: dict[str, Any] = {name: container.get(name) for name in _PROBES}
    lifecycle = container.get("lifecycle")
    if isinstance(lifecycle, Mapping):
        calls |= {f"lifecycle.{name}": call for name, call in lifecycle.items()}
    for name, call in calls.items():
        for kind in _CALLS:
            action = call.get(kind) if isinstance(call, Mapping) else None
            if isinstance(action, Mapping) and action.get("host"):
                yield Finding(
                    path=f"{path}.{name}.{kind}.host",
                    value=action["host"],
                    message="would let the node call another host than the pod",
                    remedy="remove it: the pod's own address is called then",
                )


def _context(
    path: str, context: Mapping[str, Any], allowed: Mapping[str, Check]
) -> Iterator[Finding]:
    for name, value in context.items():
        if not allowed.get(name, _never)(value):
            yield Finding(
                path=f"{path}.{name}",
                value=value,
                message="is more than the restricted pod security standard allows"
                if name in allowed
                else "may not be set by a pod template",
                remedy=_REMOVE,
            )


def _never(_: Any) -> bool:
    return False
