"""Owns how far a fetch is: counted by its threads, told as log lines, metrics and a file."""

import contextlib
import json
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import CollectorRegistry, start_http_server
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from mizzen_worker.contracts.errors import FetchError
from mizzen_worker.contracts.fetch import FetchReason
from mizzen_worker.observability.metric_names import (
    WEIGHTS_PRESENT_BYTES,
    WEIGHTS_RECEIVED_BYTES,
    WEIGHTS_RETRIES,
    WEIGHTS_TOTAL_BYTES,
)

REPORT_INTERVAL_S = 10.0
_logger = logging.getLogger(__name__)


class Progress(Collector):
    """Counts in bytes. Thread safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stage = "listing"
        self._total = 0
        self._present_by_path: dict[str, int] = {}
        self._received = 0
        self._retries_by_reason: dict[str, int] = {}

    def enter(self, stage: str) -> None:
        """Note what is being done: listing, fetching, unpacking, verifying, done."""
        with self._lock:
            self._stage = stage

    def expect(self, total_bytes: int) -> None:
        """Note what there is to fetch."""
        with self._lock:
            self._total = total_bytes

    def note_present(self, path: str, size_bytes: int) -> None:
        """Note how much of a file is on disk."""
        with self._lock:
            self._present_by_path[path] = size_bytes

    def add_received(self, size_bytes: int) -> None:
        """Count bytes that came over the network."""
        with self._lock:
            self._received += size_bytes

    def add_retry(self, reason: str) -> None:
        """Count an attempt that failed and is made again."""
        with self._lock:
            self._retries_by_reason[reason] = self._retries_by_reason.get(reason, 0) + 1

    @property
    def present_bytes(self) -> int:
        """Bytes on disk."""
        with self._lock:
            return sum(self._present_by_path.values())

    @property
    def received_bytes(self) -> int:
        """Bytes that came over the network."""
        with self._lock:
            return self._received

    def snapshot(self) -> dict[str, object]:
        """Everything, for a log line or a file."""
        with self._lock:
            return {
                "stage": self._stage,
                "bytesDone": sum(self._present_by_path.values()),
                "bytesTotal": self._total,
                "bytesReceived": self._received,
                "retries": sum(self._retries_by_reason.values()),
            }

    def collect(self) -> Iterator[Metric]:
        """See ``Collector``."""
        with self._lock:
            present, total = sum(self._present_by_path.values()), self._total
            received, retries = self._received, dict(self._retries_by_reason)
        for metric, value in ((WEIGHTS_PRESENT_BYTES, present), (WEIGHTS_TOTAL_BYTES, total)):
            yield GaugeMetricFamily(metric.name, metric.meaning, value=value)
        name = WEIGHTS_RECEIVED_BYTES.name
        yield CounterMetricFamily(name, WEIGHTS_RECEIVED_BYTES.meaning, value=received)
        family = CounterMetricFamily(
            WEIGHTS_RETRIES.name, WEIGHTS_RETRIES.meaning, labels=WEIGHTS_RETRIES.labels
        )
        for reason, count in retries.items():
            family.add_metric((reason,), count)
        yield family


@contextlib.contextmanager
def reported(
    progress: Progress, *, file: Path | None, interval_s: float = REPORT_INTERVAL_S
) -> Iterator[None]:
    """Tell how far it is, now and then and at the end; ``file`` gets the same as JSON."""
    ended = threading.Event()

    def run() -> None:
        began, before = time.monotonic(), 0
        while not ended.wait(interval_s):
            now, received = time.monotonic(), progress.received_bytes
            rate = int((received - before) / (now - began))
            began, before = now, received
            _tell(progress.snapshot() | {"bytesPerSecond": rate}, file)

    thread = threading.Thread(target=run, name="progress", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        _tell(progress.snapshot(), file)


@contextlib.contextmanager
def exposed(progress: Progress, port: int | None) -> Iterator[int | None]:
    """Serve the metrics on all addresses of this pod; gives the port, None for nowhere."""
    if port is None:
        yield None
        return
    registry = CollectorRegistry(auto_describe=False)
    registry.register(progress)
    try:
        server, thread = start_http_server(port, registry=registry)
    except OSError as error:
        message = f"--metrics-port {port}: {error.strerror}; give a port that is free"
        raise FetchError(message, reason=FetchReason.INVALID_SOURCE) from error
    try:
        yield server.server_port
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _tell(found: dict[str, object], file: Path | None) -> None:
    _logger.info("progress", extra=found)
    if file is None:
        return
    try:
        part = file.with_name(f"{file.name}.new")
        part.write_text(json.dumps(found) + "\n", encoding="utf-8")
        part.replace(file)
    except OSError as error:
        # Weights matter more than who watches them come.
        _logger.warning("progress file cannot be written", extra={"error": str(error)})
