"""Owns the name of every object we make: deterministic, unique and within Kubernetes' limits.

Does not own labels. Invariant: a service name of at most 38 characters gives StatefulSet names of
at most 51, below the 52 at which the controller-revision label of their pods would be too long.
"""

from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.spec.revision import canonical_hash

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


def keys_name(resolved: Resolved) -> str:
    """Secret with the CURVE keys."""
    return child_name(resolved.name, "curve")


def account_name(resolved: Resolved) -> str:
    """ServiceAccount of all pods."""
    return child_name(resolved.name, "pods")
