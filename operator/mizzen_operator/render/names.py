"""Owns the name of every object we make: deterministic, unique and within Kubernetes' limits.

Does not own labels. Invariant: a service name of at most 38 characters gives StatefulSet names of
at most 51, below the 52 at which the controller-revision label of their pods would be too long.
"""

from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.spec.revision import canonical_hash, short_hash
from mizzen_operator.spec.stored import stored_data
from mizzen_operator.spec.weights import claim_identity

MAX_NAME = 63


def child_name(base: str, suffix: str, limit: int = MAX_NAME) -> str:
    """``base-suffix``; a base that is too long is cut and marked with a hash of the whole."""
    name = f"{base}-{suffix}"
    if len(name) <= limit:
        return name
    mark = canonical_hash(base)[:8]
    kept = base[: limit - len(suffix) - len(mark) - 2].rstrip("-")
    return f"{kept}-{mark}-{suffix}"


def group_name(resolved: Resolved, index: int) -> str:
    """StatefulSet of one worker group at the wanted revision."""
    return child_name(resolved.name, f"w-{resolved.revision}-{index}", limit=52)


def stored_revision_name(resolved: Resolved) -> str:
    """ControllerRevision: equal for equal data, so that a spec of before finds its own again."""
    return child_name(resolved.name, short_hash(stored_data(resolved)))


def rank_service_name(resolved: Resolved, revision: str) -> str:
    """Headless Service through which the ranks of a revision's groups find each other."""
    return child_name(resolved.name, f"w-{revision}")


def leader_service_name(resolved: Resolved, cohort: str) -> str:
    """Headless Service with the ready leaders of one cohort, which tokenizer pods connect to."""
    return child_name(resolved.name, f"leaders-{cohort}")


def tokenizer_name(resolved: Resolved) -> str:
    """Deployment, NetworkPolicy and PodDisruptionBudget of the tokenizer role."""
    return child_name(resolved.name, "tokenizer")


def worker_name(resolved: Resolved) -> str:
    """NetworkPolicy and PodDisruptionBudget of the worker role."""
    return child_name(resolved.name, "worker")


def weights_name(resolved: Resolved) -> str:
    """PersistentVolumeClaim for fetched weights: equal for equal weights of the same service.

    A service of the same name that is made later gets a claim of its own.
    """
    identity = {**claim_identity(resolved.spec.model), "service": resolved.uid}
    return child_name(resolved.name, f"weights-{short_hash(identity)}")


def fetch_name(resolved: Resolved, content: object) -> str:
    """Job that fetches weights: a Job cannot be changed, so another content is another Job."""
    identity = {"claim": weights_name(resolved), "content": content}
    return child_name(resolved.name, f"fetch-{short_hash(identity)}")


def fetch_policy_name(resolved: Resolved) -> str:
    """NetworkPolicy of the pods that fetch weights."""
    return child_name(resolved.name, "fetch")


def monitoring_name(resolved: Resolved) -> str:
    """PodMonitor, PrometheusRule and the dashboard's ConfigMap."""
    return child_name(resolved.name, "monitoring")


def keys_name(resolved: Resolved, generation: str) -> str:
    """Secret with CURVE keys of one generation."""
    return child_name(resolved.name, f"curve-{generation}" if generation else "curve")


def account_name(resolved: Resolved) -> str:
    """ServiceAccount of all pods."""
    return child_name(resolved.name, "pods")
