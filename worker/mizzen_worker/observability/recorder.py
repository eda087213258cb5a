"""Owns the values of one process's metrics; owns no names (``metric_names``) and no clock.

Everything hangs on an own registry, so that tests and several engines in one process do not meet.
"""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from mizzen_worker.observability.histogram import Histogram
from mizzen_worker.observability.metric_names import METRICS, Metric, MetricKind
from mizzen_worker.observability.samples import Sample


class Recorder:
    """Values by metric. Thread safe (the client library locks)."""

    def __init__(self, process: str) -> None:
        self._registry = CollectorRegistry()
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._histograms: dict[str, Histogram] = {}
        for metric in METRICS:
            if metric.process == process:
                self._register(metric)

    def count(self, metric: Metric, amount: float = 1, *labels: str) -> None:
        """Add to a counter."""
        counter = self._counters[metric.name]
        (counter.labels(*labels) if labels else counter).inc(amount)

    def set(self, metric: Metric, value: float, *labels: str) -> None:
        """Set a gauge."""
        gauge = self._gauges[metric.name]
        (gauge.labels(*labels) if labels else gauge).set(value)

    def observe(self, metric: Metric, value_s: float, num_times: int = 1) -> None:
        """Add to a histogram, ``num_times`` the same value."""
        self._histograms[metric.name].observe(value_s, num_times)

    def samples(self) -> tuple[Sample, ...]:
        """Give every value, to be added up with those of other processes."""
        return tuple(
            Sample(sample.name, tuple(sample.labels.items()), sample.value)
            for family in _WithoutCreationTimes(self._registry).collect()
            for sample in family.samples
        )

    def text(self) -> str:
        """Give everything in the Prometheus text format."""
        return generate_latest(_WithoutCreationTimes(self._registry)).decode()

    def _register(self, metric: Metric) -> None:
        name, meaning, labels = metric.name, metric.meaning, metric.labels
        match metric.kind:
            case MetricKind.COUNTER:
                self._counters[name] = Counter(name, meaning, labels, registry=self._registry)
            case MetricKind.GAUGE:
                self._gauges[name] = Gauge(name, meaning, labels, registry=self._registry)
            case MetricKind.HISTOGRAM:
                histogram = Histogram(name, meaning, metric.buckets)
                self._registry.register(histogram)
                self._histograms[name] = histogram


class _WithoutCreationTimes(Collector):
    """A registry's families without the library's ``_created`` gauges, which nobody asked for."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterator[Family]:
        """Give each family, as a registry does."""
        for family in self._registry.collect():
            family.samples = [
                sample for sample in family.samples if not sample.name.endswith("_created")
            ]
            yield family


class LastTotals:
    """Turns totals that a loop keeps into increments of counters."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._last: dict[str, float] = {}

    def set(self, totals: Iterable[tuple[Metric, float]]) -> None:
        """Bring each counter to its total."""
        for metric, total in totals:
            added = total - self._last.get(metric.name, 0)
            if added > 0:
                self._recorder.count(metric, added)
                self._last[metric.name] = total
