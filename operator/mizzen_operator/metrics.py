"""Owns the operator's Prometheus metrics: names, help texts, their registry and their reference.

Does not own when something is counted. ``python -m mizzen_operator.metrics >
docs/reference/operator-metrics.md`` writes the reference again.
"""

import sys
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)
_HEAD = """# Metrics of the operator

Prometheus text at `/metrics` of the operator's pod.
This page is generated:
`python -m mizzen_operator.metrics > docs/reference/operator-metrics.md`.

| name | kind | labels | meaning |
|---|---|---|---|
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Described:
    """One line of the reference."""

    name: str
    kind: str
    labels: tuple[str, ...]
    meaning: str


class Metrics:
    """One set of metrics per process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._described: list[_Described] = []
        self.api_calls = self._counter(
            "mizzen_operator_api_calls_total",
            "Calls to the API server, by verb, resource and HTTP status (0: no answer).",
            "verb",
            "resource",
            "status",
        )
        self.api_call_seconds = self._histogram(
            "mizzen_operator_api_call_seconds",
            "Duration of calls to the API server.",
            "verb",
        )
        self.reconciles = self._counter(
            "mizzen_operator_reconciles_total",
            "Reconciles, by how they ended.",
            "result",
        )
        self.reconcile_seconds = self._histogram(
            "mizzen_operator_reconcile_seconds",
            "Duration of reconciles.",
        )
        self.watch_events = self._counter(
            "mizzen_operator_watch_events_total",
            "Objects that the watch delivered, by resource.",
            "resource",
        )
        self.queue_ready = self._gauge(
            "mizzen_operator_queue_ready",
            "Services that wait for a reconcile.",
        )
        self.queue_wait_seconds = self._histogram(
            "mizzen_operator_queue_wait_seconds",
            "From the news of a service to the reconcile that takes it in.",
        )
        self.list_seconds = self._gauge(
            "mizzen_operator_list_seconds",
            "Duration of the last LIST, until the store agreed with it, by resource.",
            "resource",
        )
        self.services = self._gauge(
            "mizzen_operator_services",
            "InferenceServices known.",
        )
        self.store_repairs = self._gauge(
            "mizzen_operator_store_repairs_total",
            "Changes that the watch had missed and a LIST found, by resource.",
            "resource",
        )
        self.watch_silence = self._gauge(
            "mizzen_operator_watch_silence_seconds",
            "Since the watch last brought anything, the end of a stream included, by resource.",
            "resource",
        )
        self.group_restarts = self._counter(
            "mizzen_operator_group_restarts_total",
            "Restarts of whole worker groups of several pods, by cause.",
            "cause",
        )
        self.definition_fields_missing = self._gauge(
            "mizzen_operator_definition_fields_missing",
            "Fields of this release that the cluster's definitions lack; the log names them.",
        )
        self.is_leader = self._gauge(
            "mizzen_operator_is_leader",
            "1 while this process holds the Lease.",
        )

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self._registry)

    def reference(self) -> str:
        """The Markdown page about them."""
        rows = (
            f"| `{one.name}` | {one.kind} | {', '.join(one.labels) or '-'} | {one.meaning} |\n"
            for one in self._described
        )
        return _HEAD + "".join(rows)

    def _counter(self, name: str, meaning: str, *labels: str) -> Counter:
        self._describe("counter", name, meaning, labels)
        return Counter(name, meaning, labels, registry=self._registry)

    def _gauge(self, name: str, meaning: str, *labels: str) -> Gauge:
        self._describe("gauge", name, meaning, labels)
        return Gauge(name, meaning, labels, registry=self._registry)

    def _histogram(self, name: str, meaning: str, *labels: str) -> Histogram:
        """Of seconds."""
        self._describe("histogram", name, meaning, labels)
        return Histogram(name, meaning, labels, buckets=_SECONDS, registry=self._registry)

    def _describe(self, kind: str, name: str, meaning: str, labels: tuple[str, ...]) -> None:
        self._described.append(_Described(name=name, kind=kind, labels=labels, meaning=meaning))


if __name__ == "__main__":
    sys.stdout.write(Metrics().reference())
