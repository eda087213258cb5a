"""Owns the counts of one histogram; owns no name of a metric. Thread safe.

Beside the client library's own because an observation is made once a token: this one costs a
bisection and an addition, also for many observations of one value.
"""

import bisect
import threading
from collections.abc import Iterator, Sequence

from prometheus_client.metrics_core import HistogramMetricFamily, Metric
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Histogram(Collector):
    """Counts by upper bound; exposed as the client library exposes its own."""

    def __init__(self, name: str, meaning: str, buckets: Sequence[float]) -> None:
        self._name = name
        self._meaning = meaning
        self._bounds = [*buckets, float("inf")]
        self._counts = [0] * len(self._bounds)
        self._sum = 0.0
        self._lock = threading.Lock()

    def observe(self, value: float, num_times: int = 1) -> None:
        """Count a value, ``num_times`` the same one."""
        place = bisect.bisect_left(self._bounds, value)
        with self._lock:
            self._counts[place] += num_times
            self._sum += value * num_times

    def collect(self) -> Iterator[Metric]:
        """See ``Collector``."""
        with self._lock:
            counts, total = list(self._counts), self._sum
        seen = 0
        buckets: list[tuple[str, float]] = []
        for bound, num in zip(self._bounds, counts, strict=True):
            seen += num
            shown = floatToGoString(bound)  # type: ignore[no-untyped-call]  # has no types
            buckets.append((shown, seen))
        yield HistogramMetricFamily(self._name, self._meaning, buckets=buckets, sum_value=total)
