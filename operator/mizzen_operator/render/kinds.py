"""Owns the list of kinds we create, in the order in which they are applied.

Does not own their content. Pruning, watching and the chart's role all follow this list.
"""

from dataclasses import dataclass

from mizzen_operator.spec.model import API_VERSION
from mizzen_operator.spec.scaler_crd import SCALER_KIND, SCALER_PLURAL


@dataclass(frozen=True, slots=True, kw_only=True)
class ChildKind:
    """One kind of object that a service may own."""

    api_version: str
    kind: str
    plural: str
    chart_value: str = ""
    """Value of the chart that gives the right to it; empty if the operator always has it."""

    @property
    def is_optional(self) -> bool:
        """Whether the cluster may lack the API, or the operator the right to it.

        Then the service goes without. Such a kind is listed now and then, never watched: a watch
        would fail without the API, and would have to be started anew when somebody installs it.
        """
        return bool(self.chart_value)


MONITORING = "monitoring"
GATEWAY_API = "gatewayApi"


CHILD_KINDS = (
    # First: what pods are made from is stored before the first of them is.
    ChildKind(api_version="apps/v1", kind="ControllerRevision", plural="controllerrevisions"),
    ChildKind(api_version=API_VERSION, kind=SCALER_KIND, plural=SCALER_PLURAL),
    ChildKind(api_version="v1", kind="ServiceAccount", plural="serviceaccounts"),
    ChildKind(api_version="networking.k8s.io/v1", kind="NetworkPolicy", plural="networkpolicies"),
    ChildKind(api_version="v1", kind="Service", plural="services"),
    ChildKind(api_version="policy/v1", kind="PodDisruptionBudget", plural="poddisruptionbudgets"),
    ChildKind(api_version="v1", kind="PersistentVolumeClaim", plural="persistentvolumeclaims"),
    ChildKind(api_version="batch/v1", kind="Job", plural="jobs"),
    ChildKind(api_version="apps/v1", kind="StatefulSet", plural="statefulsets"),
    ChildKind(api_version="apps/v1", kind="Deployment", plural="deployments"),
    ChildKind(api_version="v1", kind="ConfigMap", plural="configmaps", chart_value=MONITORING),
    ChildKind(
        api_version="monitoring.coreos.com/v1",
        kind="PodMonitor",
        plural="podmonitors",
        chart_value=MONITORING,
    ),
    ChildKind(
        api_version="monitoring.coreos.com/v1",
        kind="PrometheusRule",
        plural="prometheusrules",
        chart_value=MONITORING,
    ),
    ChildKind(
        api_version="gateway.networking.k8s.io/v1",
        kind="HTTPRoute",
        plural="httproutes",
        chart_value=GATEWAY_API,
    ),
    ChildKind(
        api_version="inference.networking.k8s.io/v1",
        kind="InferencePool",
        plural="inferencepools",
        chart_value=GATEWAY_API,
    ),
)
"""Secrets are not here: they are never read, so what goes of them is told by other objects
(``planner/keys``)."""
