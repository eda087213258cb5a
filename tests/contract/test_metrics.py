"""Every metric and label that alerts and the dashboard ask for is one that the worker exports.

The reader of expressions here is small and strict: what it cannot place fails the test. Whether
Prometheus itself takes them is asked of promtool in tests/operator/render/test_alerts.py.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from tests.operator.documents import resolved

import mizzen_operator.worker_contract as operator_side
from mizzen_operator.render.monitoring import monitoring_objects
from mizzen_operator.render.promql import (
    LABEL_NAMESPACE,
    LABEL_POD,
    LABEL_ROLE,
    LABEL_SERVICE,
    identity,
)
from mizzen_worker.contracts.request import FinishKind
from mizzen_worker.observability.metric_names import METRICS, Metric, MetricKind

BY_NAME = {metric.name: metric for metric in METRICS}
TARGET_LABELS = {LABEL_NAMESPACE, LABEL_POD, LABEL_ROLE, LABEL_SERVICE}
SERVICES = [resolved(topology=topology, observability={}) for topology in ("Unified", "Split")]

SELECTOR = re.compile(r"([a-z_]+)\{([^{}]*)\}(\[[^\]]+\])?")
MATCHER = re.compile(r'([a-z_]+)(=|!=|=~|!~)"([^"]*)"')
GROUPING = re.compile(r"\b(?:by|without|on|ignoring) \(([a-z_, ]+)\)")
REST = re.compile(
    r"(sum|max|count|rate|increase|resets|absent|histogram_quantile|and|or|on|==|>|[()+/,0-9. ])*"
)
COUNTER_FUNCTION = re.compile(r"(?:rate|increase|resets)\($")


@dataclass(frozen=True)
class Selector:
    """One selector as it stands in an expression."""

    name: str
    matchers: tuple[tuple[str, str, str], ...]
    window: str
    before: str

    @property
    def metric(self) -> Metric:
        stem = self.name.removesuffix("_bucket")
        found = BY_NAME[stem]
        assert (found.kind is MetricKind.HISTOGRAM) == (stem != self.name), self.name
        return found


def selectors(expr: str) -> list[Selector]:
    """All selectors; fails if anything else than known functions is left."""
    found = [
        Selector(
            name=match[1],
            matchers=tuple(MATCHER.findall(match[2])),
            window=match[3] or "",
            before=expr[: match.start()],
        )
        for match in SELECTOR.finditer(expr)
    ]
    for match in SELECTOR.finditer(expr):
        assert (
            ",".join("".join((k, op, f'"{v}"')) for k, op, v in MATCHER.findall(match[2]))
            == (match[2])
        )
    rest = GROUPING.sub("", SELECTOR.sub("", expr))
    assert REST.fullmatch(rest), f"not understood: {rest}"
    assert expr.count("(") == expr.count(")")
    return found


def _alerts() -> Iterator[str]:
    for obj in _of_kind("PrometheusRule"):
        for group in obj["spec"]["groups"]:
            yield from (rule["expr"] for rule in group["rules"])


def _panels() -> Iterator[str]:
    for obj in _of_kind("ConfigMap"):
        (text,) = obj["data"].values()
        for panel in json.loads(text)["panels"]:
            yield from (target["expr"] for target in panel["targets"])


def _of_kind(kind: str) -> Iterator[dict[str, Any]]:
    for service in SERVICES:
        yield from (obj for obj in monitoring_objects(service) if obj["kind"] == kind)


EXPRESSIONS = sorted({*_alerts(), *_panels()})


def test_there_are_alerts_and_panels() -> None:
    assert len(set(_alerts())) >= 8
    assert len(set(_panels())) >= 15


@pytest.mark.parametrize("expr", EXPRESSIONS)
def test_every_metric_is_exported_with_the_labels_asked_for(expr: str) -> None:
    found = selectors(expr)
    assert found
    for selector in found:
        known = {*selector.metric.labels, *TARGET_LABELS}
        asked = {label for label, _, _ in selector.matchers}
        assert asked <= known, f"{selector.name} has no label {asked - known}"
        assert {
            label: value for label, op, value in selector.matchers if op == "="
        }.items() >= identity(SERVICES[0]).items(), "series of other services are taken too"
    labels = {label for match in GROUPING.findall(expr) for label in match.split(", ")}
    kept = set.intersection(*({*item.metric.labels, *TARGET_LABELS} for item in found))
    if any(item.name.endswith("_bucket") for item in found):
        kept.add("le")
    assert labels <= kept, f"nothing is left of {labels - kept}"


@pytest.mark.parametrize("expr", EXPRESSIONS)
def test_counters_are_looked_at_over_time_and_gauges_are_not(expr: str) -> None:
    for selector in selectors(expr):
        if selector.name == operator_side.METRIC_PROCESS_RESTARTS and not selector.window:
            continue  # The dashboard shows how many there have been.
        is_over_time = COUNTER_FUNCTION.search(selector.before) is not None
        assert is_over_time == bool(selector.window), expr
        assert is_over_time == (selector.metric.kind is not MetricKind.GAUGE), expr


def test_a_reason_that_is_asked_for_exists() -> None:
    reasons = {
        value
        for expr in EXPRESSIONS
        for selector in selectors(expr)
        for label, _, value in selector.matchers
        if label == "reason"
    }
    assert reasons
    assert reasons <= {kind.value for kind in FinishKind}


def test_every_name_of_the_contract_is_exported_and_used() -> None:
    declared = {value for name, value in vars(operator_side).items() if name.startswith("METRIC_")}
    assert declared <= set(BY_NAME)
    used = {selector.metric.name for expr in EXPRESSIONS for selector in selectors(expr)}
    assert used == declared


@pytest.mark.parametrize(
    "expr",
    [
        'sum(mizzen_unknown{namespace="a"})',
        "sum(mizzen_process_up) by (pod)",
        'median(mizzen_process_up{namespace="a"})',
        'mizzen_time_to_first_token_seconds{namespace="a"}',
    ],
)
def test_the_reader_refuses_what_it_does_not_know(expr: str) -> None:
    with pytest.raises((AssertionError, KeyError)):
        assert [selector.metric for selector in selectors(expr)]
