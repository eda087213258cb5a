"""Owns the list of kinds we create, in the order in which they are applied.

Does not own their content. Pruning, watching and the chart's role all follow this list.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildKind:
    """One kind of object that a service may own."""

    api_version: str
    kind: str
    plural: str


CHILD_KINDS = (
    ChildKind(api_version="v1", kind="ServiceAccount", plural="serviceaccounts"),
    ChildKind(api_version="networking.k8s.io/v1", kind="NetworkPolicy", plural="networkpolicies"),
    ChildKind(api_version="v1", kind="Service", plural="services"),
    ChildKind(api_version="policy/v1", kind="PodDisruptionBudget", plural="poddisruptionbudgets"),
    ChildKind(api_version="apps/v1", kind="StatefulSet", plural="statefulsets"),
    ChildKind(api_version="apps/v1", kind="Deployment", plural="deployments"),
)
"""Secrets are not here: they are created and never read, so they are not pruned either."""
