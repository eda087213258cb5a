"""How far a fetch is, as others see it."""

import json
import socket
import threading
from pathlib import Path

import urllib3
from prometheus_client.parser import text_string_to_metric_families
from tests.worker.fetch.small_model import Fetcher

from mizzen_worker.fetch.progress import Progress, exposed, reported
from mizzen_worker.observability.metric_names import METRICS, MetricKind


def _some_progress() -> Progress:
    progress = Progress()
    progress.enter("fetching")
    progress.expect(100)
    progress.note_present("a", 10)
    progress.note_present("b", 20)
    progress.note_present("a", 5)
    progress.add_received(30)
    progress.add_retry("RateLimited")
    progress.add_retry("RateLimited")
    return progress


def test_metrics_are_those_of_the_table() -> None:
    with exposed(_some_progress(), 0) as port:
        text = urllib3.request("GET", f"http://127.0.0.1:{port}/metrics").data.decode()
    samples = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples == {
        "mizzen_weights_present_bytes": 25,
        "mizzen_weights_total_bytes": 100,
        "mizzen_weights_received_bytes_total": 30,
        "mizzen_weights_retries_total": 2,
    }
    ours = {metric.name: metric for metric in METRICS if metric.process == "fetch"}
    assert set(ours) == set(samples)
    for name, metric in ours.items():
        assert (metric.kind is MetricKind.COUNTER) == name.endswith("_total")


def test_a_file_tells_the_same(tmp_path: Path) -> None:
    file = tmp_path / "progress.json"
    with reported(_some_progress(), file=file):
        pass
    assert json.loads(file.read_text()) == {
        "stage": "fetching",
        "bytesDone": 25,
        "bytesTotal": 100,
        "bytesReceived": 30,
        "retries": 2,
    }


def test_it_is_told_now_and_then(tmp_path: Path) -> None:
    file = tmp_path / "progress.json"
    with reported(_some_progress(), file=file, interval_s=0.001):
        while not file.exists():
            threading.Event().wait(0.01)
        assert "bytesPerSecond" in json.loads(file.read_text())


def test_a_file_that_cannot_be_written_stops_nothing(fetcher: Fetcher, tmp_path: Path) -> None:
    outcome = fetcher.fetch(
        "hf://a/b", "--progress-file", "/nowhere/x", "--hf-endpoint", "http://127.0.0.1:9"
    )
    assert outcome.reason == "Unreachable"


def test_a_port_that_is_taken_is_told(fetcher: Fetcher) -> None:
    with socket.socket() as taken:
        taken.bind(("0.0.0.0", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        outcome = fetcher.fetch("hf://a/b", "--metrics-port", port)
    assert (outcome.status, outcome.reason) == (1, "InvalidSource")
    assert f"--metrics-port {port}" in outcome.message
