"""Owns what a service asks of the cluster's monitoring: which objects, and the PodMonitor.

Does not own alerts (``alerts``) nor the dashboard (``dashboard``), nor whether the cluster has the
APIs (``store``). Nothing here changes a pod: it can be switched on and off while serving.
"""

from collections.abc import Mapping
from typing import Any

from mizzen_operator.render import labels, pod
from mizzen_operator.render.alerts import alert_rules
from mizzen_operator.render.dashboard import dashboard_json
from mizzen_operator.render.names import monitoring_name
from mizzen_operator.render.objects import metadata
from mizzen_operator.render.promql import relabelings
from mizzen_operator.spec.model import Observability
from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.worker_contract import PATH_METRICS

MONITORING_API = "monitoring.coreos.com/v1"
DASHBOARD_LABEL = {"grafana_dashboard": "1"}
"""What Grafana's dashboard sidecar looks for, unless told otherwise."""


def asked_kinds(resolved: Resolved) -> Mapping[str, str]:
    """Kinds of objects that the spec asks for, and the field that does."""
    asked = resolved.spec.observability
    if asked is None:
        return {}
    flags = {
        "ConfigMap": ("dashboard", asked.dashboard),
        "PodMonitor": ("podMonitor", asked.pod_monitor),
        "PrometheusRule": ("rules", asked.rules),
    }
    return {kind: f"spec.observability.{field}" for kind, (field, is_on) in flags.items() if is_on}


def monitoring_objects(resolved: Resolved) -> list[dict[str, Any]]:
    """The objects asked for; none unless ``spec.observability`` is there."""
    asked = resolved.spec.observability
    if asked is None:
        return []
    makers = {"ConfigMap": _dashboard, "PodMonitor": _pod_monitor, "PrometheusRule": _rule}
    return [makers[kind](resolved, asked) for kind in asked_kinds(resolved)]


def _pod_monitor(resolved: Resolved, asked: Observability) -> dict[str, Any]:
    endpoint = {
        "port": pod.PORT_NAME_ADMIN,
        "path": PATH_METRICS,
        "interval": asked.interval,
        "relabelings": relabelings(),
    }
    return {
        "apiVersion": MONITORING_API,
        "kind": "PodMonitor",
        "metadata": metadata(resolved, monitoring_name(resolved), extra_labels=asked.labels),
        "spec": {
            "selector": {"matchLabels": {labels.SERVICE_UID: resolved.uid}},
            "podMetricsEndpoints": [endpoint],
        },
    }


def _rule(resolved: Resolved, asked: Observability) -> dict[str, Any]:
    return {
        "apiVersion": MONITORING_API,
        "kind": "PrometheusRule",
        "metadata": metadata(resolved, monitoring_name(resolved), extra_labels=asked.labels),
        "spec": {"groups": [{"name": "mizzen", "rules": alert_rules(resolved)}]},
    }


def _dashboard(resolved: Resolved, asked: Observability) -> dict[str, Any]:
    own = {**DASHBOARD_LABEL, **asked.labels}
    # Grafana's sidecar keeps the files of all namespaces in one folder.
    file_name = f"mizzen-{resolved.namespace}-{resolved.name}.json"
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": metadata(resolved, monitoring_name(resolved), extra_labels=own),
        "data": {file_name: dashboard_json(resolved)},
    }
