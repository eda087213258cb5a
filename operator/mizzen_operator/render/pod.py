"""Owns what every pod of ours has in common: security, probes, volumes, drain, resources.

Does not own the command line (``worker_args``) nor the controllers around the pod. Invariant: every
pod meets the restricted pod security standard, and no volume is a hostPath.
"""

import math
from dataclasses import dataclass
from typing import Any

from mizzen_operator.render.names import account_name, keys_name, weights_name
from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.spec.resources import Resources
from mizzen_operator.spec.weights import folder_of
from mizzen_operator.worker_contract import (
    CONTAINER,
    DRAIN_ARG_DEADLINE,
    DRAIN_ARG_MODE,
    PATH_LIVE,
    PATH_READY,
    PATH_STARTUP,
    PORT_ADMIN,
    VERB_DRAIN,
)

USER_ID = 65532
DIR_MODELS = "/models"
DIR_KEYS = "/etc/mizzen/curve"
DIR_CACHE = "/cache"
COMMAND = "mizzen"
PORT_NAME_HTTP = "http"
PORT_NAME_WORKER = "worker"
PORT_NAME_ADMIN = "admin"
PORT_NAME_RANKS = "ranks"
END_MARGIN_S = 30
"""Seconds between the end of the drain and SIGKILL."""
_STARTUP_PERIOD_S = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Container:
    """What differs between the containers of the roles."""

    image: str
    verb: str
    drain_mode: str
    args: tuple[str, ...]
    env: tuple[dict[str, Any], ...]
    ports: tuple[dict[str, Any], ...]
    resources: dict[str, Any]
    volumes: tuple[dict[str, Any], ...]
    mounts: tuple[dict[str, Any], ...]


def pod_spec(resolved: Resolved, container: Container) -> dict[str, Any]:
    """The spec of a pod that serves, around its one container."""
    return framed(
        resolved,
        _container(resolved, container),
        grace_s=drain_seconds(resolved) + END_MARGIN_S,
        volumes=container.volumes,
    )


def framed(
    resolved: Resolved,
    container: dict[str, Any],
    *,
    grace_s: int,
    volumes: tuple[dict[str, Any], ...],
) -> dict[str, Any]:
    """What every pod's spec has around its one container; it ends within ``grace_s`` seconds."""
    engine = resolved.spec.engine
    pull_secrets = [{"name": secret.name} for secret in engine.image_pull_secrets]
    return {
        "serviceAccountName": account_name(resolved),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": grace_s,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER_ID,
            "runAsGroup": USER_ID,
            "fsGroup": USER_ID,
            "fsGroupChangePolicy": "OnRootMismatch",
            "seccompProfile": {"type": "RuntimeDefault"},
        },
        **({"imagePullSecrets": pull_secrets} if pull_secrets else {}),
        "containers": [container],
        "volumes": list(volumes),
    }


def container_security() -> dict[str, Any]:
    """What the restricted standard asks of every container, and a read-only root file system."""
    return {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "readOnlyRootFilesystem": True,
    }


def drain_seconds(resolved: Resolved) -> int:
    """Longest time that a pod may take to empty itself."""
    return resolved.spec.worker.drain.timeout_seconds


def _container(resolved: Resolved, container: Container) -> dict[str, Any]:
    deadline_s = resolved.spec.engine.startup_deadline_seconds
    return {
        "name": CONTAINER,
        "image": container.image,
        "imagePullPolicy": resolved.spec.engine.image_pull_policy,
        "command": [COMMAND, container.verb],
        "args": [literal(text) for text in container.args],
        "env": list(container.env),
        "ports": list(container.ports),
        "resources": container.resources,
        "volumeMounts": list(container.mounts),
        "securityContext": container_security(),
        "startupProbe": {
            **_get(PATH_STARTUP),
            "periodSeconds": _STARTUP_PERIOD_S,
            "failureThreshold": math.ceil(deadline_s / _STARTUP_PERIOD_S),
        },
        "livenessProbe": {**_get(PATH_LIVE), "periodSeconds": 10, "failureThreshold": 3},
        "readinessProbe": {**_get(PATH_READY), "periodSeconds": 2, "failureThreshold": 2},
        "lifecycle": {"preStop": {"exec": {"command": _drain_command(resolved, container)}}},
        "terminationMessagePolicy": "FallbackToLogsOnError",
    }


def _drain_command(resolved: Resolved, container: Container) -> list[str]:
    deadline = str(drain_seconds(resolved))
    mode = container.drain_mode
    return [COMMAND, VERB_DRAIN, DRAIN_ARG_MODE, mode, DRAIN_ARG_DEADLINE, deadline]


def _get(path: str) -> dict[str, Any]:
    return {"httpGet": {"path": path, "port": PORT_NAME_ADMIN}, "timeoutSeconds": 5}


def port(name: str, number: int) -> dict[str, Any]:
    """A named container port."""
    return {"name": name, "containerPort": number, "protocol": "TCP"}


def admin_port() -> dict[str, Any]:
    """The launcher's port, on every container."""
    return port(PORT_NAME_ADMIN, PORT_ADMIN)


def field_env(name: str, field_path: str) -> dict[str, Any]:
    """A variable read from the pod's own metadata."""
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": field_path}}}


def secret_env(name: str, secret: str, key: str, *, is_optional: bool = False) -> dict[str, Any]:
    """A variable that the kubelet reads from a Secret; the operator does not."""
    optional = {"optional": True} if is_optional else {}
    reference = {"name": secret, "key": key, **optional}
    return {"name": name, "valueFrom": {"secretKeyRef": reference}}


def value_env(name: str, value: str) -> dict[str, Any]:
    """A variable with a literal value."""
    return {"name": name, "value": literal(value)}


def literal(text: str) -> str:
    """Text that the kubelet keeps, although it expands ``$(NAME)`` and reads ``$$`` as ``$``."""
    return text.replace("$", "$$")


def weights_volume(
    resolved: Resolved, *, read_only: bool = True
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The claim with the weights and its mount: read-only but for the Job that fetches them."""
    source = resolved.spec.model.source.pvc
    name = weights_name(resolved) if source is None else source.claim_name
    flag = {"readOnly": True} if read_only else {}
    return (
        {"name": "models", "persistentVolumeClaim": {"claimName": name, **flag}},
        {"name": "models", "mountPath": DIR_MODELS, **flag},
    )


def model_path(resolved: Resolved) -> str:
    """Path of the model inside the container."""
    source = resolved.spec.model.source
    if source.pvc is not None:
        return f"{DIR_MODELS}/{source.pvc.path}".rstrip("/")
    assert source.fetched is not None, "the rules ask for one source"
    return f"{DIR_MODELS}/{folder_of(source.fetched)}/{source.fetched.path}".rstrip("/")


def scratch_volume(
    name: str, path: str, size: str, *, in_memory: bool = False
) -> tuple[dict[str, Any], dict[str, Any]]:
    """A writable empty directory: the root file system is read-only."""
    medium = {"medium": "Memory"} if in_memory else {}
    return (
        {"name": name, "emptyDir": {**medium, "sizeLimit": size}},
        {"name": name, "mountPath": path},
    )


def keys_volume(
    resolved: Resolved, files: tuple[str, ...]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The files of the CURVE Secret that one role needs, and no other."""
    secret = {
        "secretName": keys_name(resolved, resolved.key_generation),
        "defaultMode": 0o440,
        "items": [{"key": name, "path": name} for name in files],
    }
    return (
        {"name": "curve", "secret": secret},
        {"name": "curve", "mountPath": DIR_KEYS, "readOnly": True},
    )


def container_resources(
    resources: Resources, defaults: dict[str, str], gpu: dict[str, str]
) -> dict[str, Any]:
    """Resources as written; a default request where neither request nor limit is given."""
    missing = {
        name: amount
        for name, amount in defaults.items()
        if name not in resources.requests and name not in resources.limits
    }
    requests = {**missing, **resources.requests, **gpu}
    limits = {**resources.limits, **gpu}
    return {"requests": requests, **({"limits": limits} if limits else {})}
