"""Owns which cluster a command talks to (kubeconfig, context, namespace) and the words on failure.

Does not own the calls (``cluster``).
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml
from kubernetes import config as kubernetes_config
from kubernetes.client import Configuration
from kubernetes.config.kube_config import (
    ENV_KUBECONFIG_PATH_SEPARATOR,
    KUBE_CONFIG_DEFAULT_LOCATION,
)

from mizzen_operator import __version__
from mizzen_operator.cluster.failures import NotFoundError, UnauthorizedError
from mizzen_operator.cluster.reader import ClusterReader, HttpReader
from mizzen_operator.errors import (
    ClusterError,
    ForbiddenError,
    OperatorError,
    UnavailableError,
)

DEFAULT_NAMESPACE = "default"
_POD_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class ConnectError(OperatorError):
    """There is no usable kubeconfig; the message says which and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Which cluster, as a person named it; empty means the default."""

    kubeconfig: str = ""
    context: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """A reader of one cluster and the namespace that its context names."""

    reader: ClusterReader
    namespace: str
    server: str
    close: Callable[[], None]


Connect = Callable[[Target], Connection]


def connect(target: Target) -> Connection:
    """A reader by kubeconfig, or in a pod by its account; ConnectError if there is neither."""
    configuration = Configuration()
    if not target.kubeconfig and not target.context and _is_only_in_pod():
        namespace = _load_pod_account(configuration)
    else:
        namespace = _load_kubeconfig(target, configuration)
    reader = HttpReader(configuration, user_agent=f"mizzen/{__version__}")
    return Connection(
        reader=reader, namespace=namespace, server=str(configuration.host), close=reader.close
    )


def sentence_of(error: ClusterError, server: str) -> str:
    """Why the cluster could not be read, in one sentence with what to do."""
    text = " ".join(str(error).split())
    if isinstance(error, UnauthorizedError):
        return f"{server} does not accept these credentials: log in again, or give --context"
    if isinstance(error, ForbiddenError):
        return f"{text}; ask for the rights to get and list it, or give another -n or --context"
    if isinstance(error, NotFoundError):
        return f"{text}; is the name right, and the operator installed (helm install mizzen)?"
    if isinstance(error, UnavailableError) and error.__cause__ is not None:
        return (
            f"cannot reach the cluster at {server}: {_root_cause(error)}; check --kubeconfig,"
            " --context and the network"
        )
    return f"the cluster at {server} did not answer as it should: {text}; try again"


def _root_cause(error: BaseException) -> str:
    """The innermost reason: the client wraps it several times."""
    inner: BaseException = error
    while True:
        reason = vars(inner).get("reason")
        cause = reason if isinstance(reason, BaseException) else inner.__cause__
        if cause is None:
            break
        inner = cause
    text = " ".join(str(inner).split())
    return text.rpartition("]: ")[2] or type(inner).__name__


def _is_only_in_pod() -> bool:
    files = KUBE_CONFIG_DEFAULT_LOCATION.split(ENV_KUBECONFIG_PATH_SEPARATOR)
    return _POD_NAMESPACE.exists() and not any(Path(file).expanduser().exists() for file in files)


def _load_pod_account(configuration: Configuration) -> str:
    try:
        kubernetes_config.load_incluster_config(  # type: ignore[no-untyped-call]
            client_configuration=configuration
        )
        return _POD_NAMESPACE.read_text(encoding="utf-8").strip() or DEFAULT_NAMESPACE
    except (kubernetes_config.ConfigException, OSError) as error:
        message = f"the pod's own account cannot be used: {error}; give --kubeconfig FILE"
        raise ConnectError(message) from error


def _load_kubeconfig(target: Target, configuration: Configuration) -> str:
    """Fill the configuration; the namespace of the context."""
    file, name = target.kubeconfig or None, target.context or None
    where = target.kubeconfig or KUBE_CONFIG_DEFAULT_LOCATION
    try:
        contexts, current = kubernetes_config.list_kube_config_contexts(config_file=file)  # type: ignore[no-untyped-call]
        kubernetes_config.load_kube_config(  # type: ignore[no-untyped-call]
            config_file=file,
            context=name,
            client_configuration=configuration,
            persist_config=False,
        )
    except (kubernetes_config.ConfigException, yaml.YAMLError, OSError, ValueError) as error:
        reason = " ".join(str(error).split())
        message = f"cannot use kubeconfig {where}: {reason}; give --kubeconfig FILE or --context"
        raise ConnectError(message) from error
    chosen = next((item for item in contexts if item["name"] == name), current)
    return str(chosen["context"].get("namespace") or DEFAULT_NAMESPACE)
