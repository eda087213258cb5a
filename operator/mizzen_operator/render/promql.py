"""Owns how the series of one service are told from all others in Prometheus: labels, selectors.

Does not own metric names (``worker_contract``) nor what is asked about them (``alerts``,
``dashboard``). Invariant: every label used here is set by our PodMonitor or by every scrape of a
pod through one.
"""

from typing import Any

from mizzen_operator.render import labels
from mizzen_operator.spec.resolve import Resolved

LABEL_SERVICE = "mizzen_service"
LABEL_ROLE = "mizzen_role"
LABEL_NAMESPACE = "namespace"
LABEL_POD = "pod"
"""The last two are set by the Prometheus Operator itself."""


def relabelings() -> list[dict[str, Any]]:
    """What the PodMonitor makes of a pod's labels."""
    sources = {LABEL_SERVICE: labels.SERVICE, LABEL_ROLE: labels.ROLE}
    return [
        {"sourceLabels": [_meta_label(source)], "targetLabel": target}
        for target, source in sources.items()
    ]


def identity(resolved: Resolved) -> dict[str, str]:
    """The labels that all series of the service share, and no other series has."""
    return {LABEL_NAMESPACE: resolved.namespace, LABEL_SERVICE: resolved.name}


def series(resolved: Resolved, metric: str, *matchers: str) -> str:
    """Selector of one metric's series of the service; ``matchers`` narrow it."""
    # Neither a namespace nor a service's name can hold a quote.
    own = [f'{label}="{value}"' for label, value in identity(resolved).items()]
    return f"{metric}{{{','.join([*own, *matchers])}}}"


def _meta_label(pod_label: str) -> str:
    """Prometheus' own name of a pod's label."""
    clean = "".join(letter if letter.isalnum() else "_" for letter in pod_label)
    return f"__meta_kubernetes_pod_label_{clean}"
