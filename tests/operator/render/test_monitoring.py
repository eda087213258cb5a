"""The PodMonitor finds exactly what serves metrics; nothing is rendered that was not asked for."""

import json
from itertools import combinations
from typing import Any

import pytest
from tests.operator.documents import resolved

from mizzen_operator.render import labels
from mizzen_operator.render.monitoring import MONITORING_API, monitoring_objects
from mizzen_operator.render.promql import LABEL_ROLE, LABEL_SERVICE
from mizzen_operator.render.render import RenderContext, render
from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.worker_contract import PATH_METRICS, PORT_ADMIN, PORT_HTTP

KIND_BY_SWITCH = {"podMonitor": "PodMonitor", "rules": "PrometheusRule", "dashboard": "ConfigMap"}
OPTIONAL = set(KIND_BY_SWITCH.values())


def _objects(service: Resolved) -> list[dict[str, Any]]:
    return list(render(service, RenderContext(groups=tuple(range(service.groups)))))


def _one(kind: str, service: Resolved) -> dict[str, Any]:
    (found,) = [obj for obj in monitoring_objects(service) if obj["kind"] == kind]
    return found


def _pods(service: Resolved) -> list[dict[str, Any]]:
    workloads = ("StatefulSet", "Deployment")
    return [obj["spec"]["template"] for obj in _objects(service) if obj["kind"] in workloads]


def test_nothing_is_rendered_that_was_not_asked_for() -> None:
    assert not OPTIONAL & {obj["kind"] for obj in _objects(resolved())}
    asked = {obj["kind"] for obj in _objects(resolved(observability={}))}
    assert asked >= OPTIONAL


@pytest.mark.parametrize(
    "off", [choice for size in (1, 2, 3) for choice in combinations(KIND_BY_SWITCH, size)]
)
def test_each_object_can_be_switched_off(off: tuple[str, ...]) -> None:
    service = resolved(observability=dict.fromkeys(off, False))
    kinds = {obj["kind"] for obj in monitoring_objects(service)}
    assert kinds == OPTIONAL - {KIND_BY_SWITCH[name] for name in off}


def test_asking_for_it_changes_no_pod() -> None:
    for topology in ("Unified", "Split"):
        without, asked = resolved(topology=topology), resolved(topology=topology, observability={})
        assert (without.revision, without.cohort) == (asked.revision, asked.cohort)
        others = [obj for obj in _objects(asked) if obj["kind"] not in OPTIONAL]
        assert others == _objects(without)


@pytest.mark.parametrize("topology", ["Unified", "Split"])
def test_the_pod_monitor_scrapes_the_metrics_of_every_pod(topology: str) -> None:
    service = resolved(topology=topology, observability={"interval": "30s"})
    monitor = _one("PodMonitor", service)
    assert monitor["apiVersion"] == MONITORING_API
    (endpoint,) = monitor["spec"]["podMetricsEndpoints"]
    assert (endpoint["path"], endpoint["interval"]) == (PATH_METRICS, "30s")
    selector = monitor["spec"]["selector"]["matchLabels"]
    pods = _pods(service)
    assert pods
    for pod in pods:
        assert selector.items() <= pod["metadata"]["labels"].items()
        (container,) = pod["spec"]["containers"]
        ports = {port["name"]: port["containerPort"] for port in container["ports"]}
        assert ports[endpoint["port"]] == PORT_ADMIN


@pytest.mark.parametrize("topology", ["Unified", "Split"])
def test_what_is_relabelled_are_labels_of_the_pods(topology: str) -> None:
    service = resolved(topology=topology, observability={})
    (endpoint,) = _one("PodMonitor", service)["spec"]["podMetricsEndpoints"]
    source_by_target = {
        item["targetLabel"]: item["sourceLabels"] for item in endpoint["relabelings"]
    }
    assert set(source_by_target) == {LABEL_SERVICE, LABEL_ROLE}
    for pod in _pods(service):
        # As Prometheus spells a pod's labels.
        known = {
            "__meta_kubernetes_pod_label_" + key.translate(str.maketrans("./-", "___")): value
            for key, value in pod["metadata"]["labels"].items()
        }
        values = {target: known[source] for target, (source,) in source_by_target.items()}
        assert values[LABEL_SERVICE] == service.name
        assert values[LABEL_ROLE] == pod["metadata"]["labels"][labels.ROLE]


def test_labels_of_the_user_are_added_to_each_object() -> None:
    asked = {"labels": {"release": "prom", "grafana_dashboard": "yes"}}
    for obj in monitoring_objects(resolved(observability=asked)):
        found = obj["metadata"]["labels"]
        assert (found["release"], found["grafana_dashboard"]) == ("prom", "yes")
        assert found[labels.MANAGED_BY] == labels.MANAGER


def test_grafana_finds_the_dashboard_by_its_label() -> None:
    found = _one("ConfigMap", resolved(observability={}))
    assert found["metadata"]["labels"]["grafana_dashboard"] == "1"


def test_dashboards_of_two_services_do_not_replace_each_other() -> None:
    first, second = resolved(observability={}), resolved(observability={}, replicas=2)
    (file_name,) = _one("ConfigMap", first)["data"]
    assert file_name == f"mizzen-{first.namespace}-{first.name}.json"
    assert _dashboard(first)["uid"] == _dashboard(second)["uid"]


def _dashboard(service: Resolved) -> dict[str, Any]:
    (text,) = _one("ConfigMap", service)["data"].values()
    found: dict[str, Any] = json.loads(text)
    return found


def test_panels_do_not_overlap_and_have_all_they_need() -> None:
    made = _dashboard(resolved(observability={}))
    assert len(made["uid"]) <= 40
    (source,) = made["templating"]["list"]
    taken: set[tuple[int, int]] = set()
    for panel in made["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (place["x"] + right, place["y"] + down)
            for right in range(place["w"])
            for down in range(place["h"])
        }
        assert not taken & cells
        taken |= cells
        assert panel["targets"]
        for target in panel["targets"]:
            assert target["datasource"]["uid"] == f"${{{source['name']}}}"
            assert target["legendFormat"]
    for key in ("id", "title"):
        values = [panel[key] for panel in made["panels"]]
        assert len(set(values)) == len(values)


@pytest.mark.parametrize("topology", ["Unified", "Split"])
def test_the_network_policy_lets_the_named_prometheus_in_and_nobody_else(topology: str) -> None:
    asked = {"prometheusNamespace": "monitoring"}
    for obj in _objects(resolved(topology=topology, observability=asked)):
        if obj["kind"] != "NetworkPolicy":
            continue
        (into_admin,) = [
            rule
            for rule in obj["spec"]["ingress"]
            if PORT_ADMIN in [port["port"] for port in rule["ports"]]
        ]
        assert into_admin["ports"] == [{"port": PORT_ADMIN, "protocol": "TCP"}]
        (peer,) = into_admin["from"]
        named = {"kubernetes.io/metadata.name": "monitoring"}
        assert peer == {"namespaceSelector": {"matchLabels": named}}
    ports = {
        port["port"]
        for obj in _objects(resolved(topology=topology, observability={}))
        if obj["kind"] == "NetworkPolicy"
        for rule in obj["spec"]["ingress"]
        for port in rule["ports"]
    }
    assert PORT_ADMIN not in ports
    assert PORT_HTTP in ports
