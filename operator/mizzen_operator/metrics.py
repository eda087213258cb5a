"""Owns the operator's Prometheus metrics: names, help texts, and their registry.

Does not own when something is counted.
"""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30)


class Metrics:
    """One set of metrics per process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.api_calls = Counter(
            "mizzen_operator_api_calls_total",
            "Calls to the API server, by verb, resource and HTTP status (0: no answer).",
            ("verb", "resource", "status"),
            registry=self._registry,
        )
        self.api_call_seconds = Histogram(
            "mizzen_operator_api_call_seconds",
            "Duration of calls to the API server.",
            ("verb",),
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.reconciles = Counter(
            "mizzen_operator_reconciles_total",
            "Reconciles, by how they ended.",
            ("result",),
            registry=self._registry,
        )
        self.reconcile_seconds = Histogram(
            "mizzen_operator_reconcile_seconds",
            "Duration of reconciles.",
            buckets=_SECONDS,
            registry=self._registry,
        )
        self.watch_events = Counter(
            "mizzen_operator_watch_events_total",
            "Objects that the watch delivered, by resource.",
            ("resource",),
            registry=self._registry,
        )
        self.queue_ready = Gauge(
            "mizzen_operator_queue_ready",
            "Services that wait for a reconcile.",
            registry=self._registry,
        )
        self.services = Gauge(
            "mizzen_operator_services",
            "InferenceServices known.",
            registry=self._registry,
        )
        self.store_repairs = Gauge(
            "mizzen_operator_store_repairs_total",
            "Changes that the watch had missed and a LIST found, by resource.",
            ("resource",),
            registry=self._registry,
        )
        self.is_leader = Gauge(
            "mizzen_operator_is_leader",
            "1 while this process holds the Lease.",
            registry=self._registry,
        )

    def text(self) -> bytes:
        """The exposition format."""
        return generate_latest(self._registry)
