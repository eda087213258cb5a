"""Each child that a field switches comes and goes with it, and nothing else moves."""

from typing import Any

import pytest
from tests.operator.fake_cluster import STATEFULSET, FakeCluster
from tests.operator.fake_operator import condition, converge, service_manifest, started

from mizzen_operator.store import CONTROLLER_REVISION, POD, SECRET, SERVICE_KIND

LEFT_OUT = (POD, SECRET, STATEFULSET, CONTROLLER_REVISION)
BUDGET, POLICY = "PodDisruptionBudget", "NetworkPolicy"
OFF_ON: dict[str, tuple[dict[str, Any], dict[str, Any], set[str]]] = {
    "network policy": (
        {"networkPolicy": "Off"}, {}, {f"{POLICY}/chat-worker", f"{POLICY}/chat-tokenizer"},
    ),
    "budget of workers": ({"replicas": 1}, {"replicas": 2}, {f"{BUDGET}/chat-worker"}),
    "budget of tokenizers": (
        {"tokenizer": {"replicas": 1}}, {"tokenizer": {"replicas": 2}},
        {f"{BUDGET}/chat-tokenizer"},
    ),
    "tokenizers": (
        {"topology": "Unified"}, {"topology": "Split"},
        {"Deployment/chat-tokenizer", f"{BUDGET}/chat-tokenizer", f"{POLICY}/chat-tokenizer"},
    ),
    "pod monitor": (
        {"observability": {"podMonitor": False}}, {"observability": {}},
        {"PodMonitor/chat-monitoring"},
    ),
    "alerts": (
        {"observability": {"rules": False}}, {"observability": {}},
        {"PrometheusRule/chat-monitoring"},
    ),
    "dashboard": (
        {"observability": {"dashboard": False}}, {"observability": {}},
        {"ConfigMap/chat-monitoring"},
    ),
    "inference pool": (
        {}, {"routing": {"inferencePool": {"endpointPickerRef": {"name": "picker"}}}},
        {"InferencePool/chat"},
    ),
}  # fmt: skip


def names(cluster: FakeCluster) -> set[str]:
    """Children but pods, Secrets and those whose names follow the revision."""
    found = {f"{ref.kind.kind}/{ref.name}" for ref in cluster.refs() if ref.kind not in LEFT_OUT}
    return {name for name in found if not name.startswith("Event/")}


@pytest.mark.parametrize("child", OFF_ON)
def test_row_25_a_child_goes_when_it_is_switched_off_and_comes_back(child: str) -> None:
    off, on, switched = OFF_ON[child]
    operator = started(**on)
    cluster = operator.cluster
    with_it = names(cluster)
    assert switched <= with_it, with_it
    for spec, expected in ((off, False), (on, True), (off, False)):
        cluster.put(SERVICE_KIND, service_manifest(**spec))
        converge(operator)
        assert bool(switched & names(cluster)) is expected
        assert condition(cluster, "Ready")["status"] == "True"
        if expected:
            assert names(cluster) == with_it
        elif child != "tokenizers":
            assert names(cluster) == with_it - switched
    assert operator.errors == []
