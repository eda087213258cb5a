"""Owns the PodDisruptionBudgets: evictions take one pod of a role at a time.

Does not own roll-outs (``planner``). One pod, not one group: an eviction of one rank ends its
group, so one pod at a time is one group at a time.
"""

from collections.abc import Mapping
from typing import Any

from mizzen_operator.render import labels
from mizzen_operator.render.names import tokenizer_name, worker_name
from mizzen_operator.render.objects import metadata
from mizzen_operator.spec.resolve import Resolved


def disruption_budgets(resolved: Resolved) -> list[dict[str, Any]]:
    """A budget for each role with more than one copy; a single copy cannot be protected."""
    budgets = []
    if resolved.groups > 1:
        # Not maxUnavailable: then Kubernetes expects as many pods as the owners of those that exist
        # want, and each group is an owner of its own. A pod just gone would not be missed.
        limit = {"minAvailable": resolved.groups * resolved.nodes - 1}
        budgets.append(_budget(resolved, labels.ROLE_WORKER, worker_name(resolved), limit))
    if resolved.tokenizers > 1:
        limit = {"maxUnavailable": 1}
        budgets.append(_budget(resolved, labels.ROLE_TOKENIZER, tokenizer_name(resolved), limit))
    return budgets


def _budget(resolved: Resolved, role: str, name: str, limit: Mapping[str, int]) -> dict[str, Any]:
    return {
        "apiVersion": "policy/v1",
        "kind": "PodDisruptionBudget",
        "metadata": metadata(resolved, name, role=role),
        "spec": {
            **limit,
            "unhealthyPodEvictionPolicy": "AlwaysAllow",
            "selector": {"matchLabels": labels.role_selector(resolved, role)},
        },
    }
