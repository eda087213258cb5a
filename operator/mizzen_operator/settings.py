"""Owns the operator's configuration: the only place that reads the environment.

Does not own what the values mean to their users; everything here is parsed, checked and frozen.
"""

import os
import re
import socket
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path

PREFIX = "MIZZEN_OPERATOR_"
_SECRET_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_GPU_CLASS = re.compile(r"([a-z0-9](?:[-a-z0-9.]{0,61}[a-z0-9])?)=([1-9][0-9]{0,9})(Mi|Gi)")
_SHIFT_BY_UNIT = {"Mi": 20, "Gi": 30}
LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class SettingsError(Exception):
    """A variable of the environment cannot be used; the message names it and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Each field is the variable MIZZEN_OPERATOR_<FIELD>."""

    frontend_image: str
    """Image of tokenizer pods for services that name none."""
    worker_image: str
    """Image of worker pods for services that name none."""
    namespace: str
    """Where the operator runs, and its Lease lies unless it serves one namespace only."""
    service_pull_secrets: str = ""
    """Names of Secrets with registry credentials for services that name none, separated by commas;
    they lie in the namespaces of the services."""
    gpu_classes: str = ""
    """Memory of GPUs beside the common ones, as NAME=80Gi separated by commas, for
    spec.worker.gpu.class."""
    watch_namespace: str = ""
    """Namespace whose services are served; empty means all."""
    identity: str = ""
    """Holder of the Lease: the pod's UID, so that a restarted container resumes at once."""
    kubeconfig: str = ""
    """File with the cluster's address and credentials; empty means the pod's own account."""
    lease_name: str = "mizzen-operator"
    http_host: str = "0.0.0.0"
    """Probes and scrapes come from other hosts."""
    http_port: int = 8080
    """Port of /healthz, /readyz and /metrics."""
    num_workers: int = 8
    """Services reconciled at once."""
    resync_seconds: float = 300.0
    """Time between two LISTs of a kind that repair what the watch missed."""
    watch_silence_seconds: float = 110.0
    """Longest silence of a watch, the end of a stream included; then liveness fails."""
    stop_seconds: float = 20.0
    """Longest wait at SIGTERM for reconciles under way."""
    log_level: str = "INFO"

    @property
    def identity_or_new(self) -> str:
        """The configured identity, or one that no other process can have."""
        return self.identity or f"{socket.gethostname()}-{uuid.uuid4()}"

    @property
    def lease_namespace(self) -> str:
        """Where the Lease lies: with the services that it is about, if these are in one place."""
        return self.watch_namespace or self.namespace

    @property
    def service_pull_secret_names(self) -> tuple[str, ...]:
        """The names one by one."""
        return _parts(self.service_pull_secrets)

    @property
    def own_gpu_classes(self) -> tuple[tuple[str, int], ...]:
        """Names, and bytes of one GPU."""
        return gpu_classes_of(self.gpu_classes)


def gpu_classes_of(text: str) -> tuple[tuple[str, int], ...]:
    """Names and bytes of classes of GPUs; SettingsError for what is not NAME=80Gi and so on."""
    found = []
    for part in _parts(text):
        match = _GPU_CLASS.fullmatch(part)
        if match is None:
            message = (
                f"{part!r} is no class of GPUs: write NAME=MEMORY, the memory as 80Gi or 81559Mi,"
                " the name in lower case, and separate classes by commas"
            )
            raise SettingsError(message)
        found.append((match[1], int(match[2]) << _SHIFT_BY_UNIT[match[3]]))
    return tuple(found)


def _parts(text: str) -> tuple[str, ...]:
    """What commas separate."""
    parts = (part.strip() for part in text.split(","))
    return tuple(part for part in parts if part)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Bounds:
    lowest: float
    highest: float


_BOUNDS: Mapping[str, _Bounds] = {
    "http_port": _Bounds(lowest=0, highest=65_535),
    "num_workers": _Bounds(lowest=1, highest=256),
    "resync_seconds": _Bounds(lowest=1, highest=86_400),
    "watch_silence_seconds": _Bounds(lowest=10, highest=3_600),
    "stop_seconds": _Bounds(lowest=0, highest=3_600),
}


@dataclass(slots=True)
class _Reader:
    environ: Mapping[str, str]
    found: dict[str, str | int | float] = field(default_factory=dict)

    def read(self, name: str, kind: type) -> None:
        variable = f"{PREFIX}{name.upper()}"
        text = self.environ.get(variable, "").strip()
        if not text:
            return
        if kind is str:
            self.found[name] = text
            return
        bounds = _BOUNDS[name]
        wanted = "a whole number" if kind is int else "a number"
        try:
            number = int(text) if kind is int else float(text)
        except ValueError:
            number = float("nan")
        if not bounds.lowest <= number <= bounds.highest:
            message = (
                f"{variable}: {text!r} is not {wanted} from {bounds.lowest:g} to"
                f" {bounds.highest:g}: set such a number or leave it out"
            )
            raise SettingsError(message)
        self.found[name] = number


def read_settings(environ: Mapping[str, str] | None = None) -> Settings:
    """Settings from the environment; SettingsError names the first variable that is wrong."""
    reader = _Reader(environ=os.environ if environ is None else environ)
    for item in fields(Settings):
        reader.read(item.name, item.type if isinstance(item.type, type) else str)
    found = reader.found
    found.setdefault("namespace", _own_namespace())
    for name in ("frontend_image", "worker_image", "namespace"):
        if not found.get(name):
            message = f"{PREFIX}{name.upper()} is not set: the Helm chart sets it, set it by hand"
            raise SettingsError(message)
    level = str(found.get("log_level", "INFO")).upper()
    if level not in LOG_LEVELS:
        message = f"{PREFIX}LOG_LEVEL: {level!r} is none of {', '.join(LOG_LEVELS)}"
        raise SettingsError(message)
    found["log_level"] = level
    settings = Settings(**found)  # type: ignore[arg-type]  # the reader typed every field by its name
    for name in settings.service_pull_secret_names:
        if _SECRET_NAME.fullmatch(name) is None:
            message = (
                f"{PREFIX}SERVICE_PULL_SECRETS: {name!r} is no name of a Secret: separate"
                " lower-case names by commas"
            )
            raise SettingsError(message)
    try:
        gpu_classes_of(settings.gpu_classes)
    except SettingsError as error:
        message = f"{PREFIX}GPU_CLASSES: {error}"
        raise SettingsError(message) from error
    return settings


def _own_namespace() -> str:
    try:
        return _NAMESPACE_FILE.read_text().strip()
    except OSError:
        return ""
