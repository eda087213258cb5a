"""Owns the metrics of several processes as one: what each told last, what dead ones counted.

Owns no process. Invariants: counters and histograms never fall when a process dies or is started
again; gauges are of living processes only.
"""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.registry import Collector

from mizzen_worker.observability.metric_names import METRICS, Merge, Metric, MetricKind
from mizzen_worker.observability.samples import Sample

_Key = tuple[str, tuple[tuple[str, str], ...]]
_SUFFIXES = ("_bucket", "_count", "_sum")


class Aggregate:
    """Values by process. Not thread safe."""

    def __init__(self) -> None:
        self._metric_by_sample = _metric_by_sample()
        self._living: dict[str, tuple[Sample, ...]] = {}
        self._dead: dict[_Key, float] = {}

    def note(self, process: str, samples: Iterable[Sample]) -> None:
        """Take what a living process told; it replaces what this life told before."""
        self._living[process] = tuple(samples)

    def end(self, process: str) -> None:
        """Keep the counts of a process that is dead; its next life counts from nothing."""
        for sample in self._living.pop(process, ()):
            metric = self._metric_by_sample.get(sample.name)
            if metric is not None and metric.kind is not MetricKind.GAUGE:
                key = (sample.name, sample.labels)
                self._dead[key] = self._dead.get(key, 0.0) + sample.value

    def text(self, process: str | None = None) -> str:
        """Give everything in the Prometheus text format, or the metrics of one kind of process."""
        registry = CollectorRegistry(auto_describe=False)
        registry.register(_Families(self._families(process)))
        return generate_latest(registry).decode()

    def _families(self, process: str | None) -> list[Family]:
        values = self._merged()
        families: list[Family] = []
        for metric in METRICS:
            if process not in {None, metric.process}:
                continue
            name = metric.name.removesuffix("_total")
            family = Family(name, metric.meaning, metric.kind.value)
            for (sample_name, labels), value in values.items():
                if self._metric_by_sample.get(sample_name) is metric:
                    family.add_sample(sample_name, dict(labels), value)
            if family.samples:
                families.append(family)
        return families

    def _merged(self) -> dict[_Key, float]:
        values = dict(self._dead)
        for samples in self._living.values():
            for sample in samples:
                metric = self._metric_by_sample.get(sample.name)
                if metric is None:
                    continue
                key = (sample.name, sample.labels)
                known = values.get(key)
                values[key] = (
                    sample.value if known is None else _merge(metric.merge, known, sample.value)
                )
        return values


class _Families(Collector):
    """Families that are there already, as a registry wants them."""

    def __init__(self, families: list[Family]) -> None:
        self._families = families

    def collect(self) -> Iterator[Family]:
        """Give each."""
        return iter(self._families)


def _merge(merge: Merge, one: float, other: float) -> float:
    match merge:
        case Merge.SUM:
            return one + other
        case Merge.MAX:
            return max(one, other)
        case Merge.MIN:
            return min(one, other)


def _metric_by_sample() -> dict[str, Metric]:
    found: dict[str, Metric] = {}
    for metric in METRICS:
        if metric.kind is MetricKind.HISTOGRAM:
            found.update({f"{metric.name}{suffix}": metric for suffix in _SUFFIXES})
        else:
            found[metric.name] = metric
    return found
