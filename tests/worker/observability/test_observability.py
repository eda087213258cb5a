"""Metric names keep their rules, pages keep to the tables, log lines are one line each."""

import json
import logging
import re
from pathlib import Path

import pytest

from mizzen_worker.config.reference import flag_reference
from mizzen_worker.observability.aggregate import Aggregate
from mizzen_worker.observability.log import LineFormatter
from mizzen_worker.observability.metric_names import METRICS, MetricKind
from mizzen_worker.observability.recorder import LastTotals, Recorder
from mizzen_worker.observability.reference import metric_reference

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("page", "text"),
    [("metrics.md", metric_reference()), ("flags.md", flag_reference())],
    ids=["metrics", "flags"],
)
def test_generated_pages_are_up_to_date(page: str, text: str) -> None:
    assert (ROOT / "docs" / "reference" / page).read_text() == text, "generate the page again"


def test_names_follow_the_rules() -> None:
    names = [metric.name for metric in METRICS]
    assert len(set(names)) == len(names)
    for metric in METRICS:
        assert re.fullmatch(r"mizzen_[a-z_]+", metric.name)
        assert metric.name.endswith("_total") == (metric.kind is MetricKind.COUNTER)
        assert metric.meaning.endswith(".")
        if metric.kind is MetricKind.HISTOGRAM:
            assert metric.name.endswith("_seconds")


def test_recorder_shows_values_without_creation_times() -> None:
    recorder = Recorder("rank")
    by_name = {metric.name: metric for metric in METRICS}
    totals = LastTotals(recorder)
    totals.set([(by_name["mizzen_engine_steps_total"], 3)])
    totals.set([(by_name["mizzen_engine_steps_total"], 5)])
    recorder.set(by_name["mizzen_running_requests"], 2)
    text = recorder.text()
    assert "mizzen_engine_steps_total 5.0" in text
    assert "mizzen_running_requests 2.0" in text
    assert "_created" not in text
    assert "mizzen_http_requests" not in text


def test_counts_of_dead_processes_stay_and_their_gauges_go() -> None:
    by_name = {metric.name: metric for metric in METRICS}
    steps, running = by_name["mizzen_engine_steps_total"], by_name["mizzen_running_requests"]
    age, waits = by_name["mizzen_queue_age_seconds"], by_name["mizzen_queue_time_seconds"]
    aggregate = Aggregate()
    for name, count in (("rank-0", 3), ("rank-1", 5)):
        recorder = Recorder("rank")
        recorder.count(steps, count)
        recorder.set(running, count)
        recorder.set(age, count)
        recorder.observe(waits, 0.002, count)
        aggregate.note(name, recorder.samples())
    lines = aggregate.text().splitlines()
    assert "mizzen_engine_steps_total 8.0" in lines
    assert "mizzen_running_requests 8.0" in lines
    assert "mizzen_queue_age_seconds 5.0" in lines
    aggregate.end("rank-1")
    fresh = Recorder("rank")
    fresh.count(steps)
    aggregate.note("rank-1", fresh.samples())
    lines = aggregate.text("rank").splitlines()
    assert "mizzen_engine_steps_total 9.0" in lines
    assert "mizzen_running_requests 3.0" in lines
    assert "mizzen_queue_time_seconds_count 8.0" in lines
    assert 'mizzen_queue_time_seconds_bucket{le="0.0025"} 8.0' in lines
    assert "mizzen_engine_steps_total" not in aggregate.text("front")


def _record(message: str, **fields: object) -> logging.LogRecord:
    record = logging.LogRecord("mizzen", logging.INFO, "f", 1, message, (), None)
    record.__dict__.update(fields)
    return record


def test_json_lines_have_fields_and_never_bodies() -> None:
    formatter = LineFormatter(is_json=True, fields={"role": "worker"})
    line = formatter.format(_record("a\nb", request_id="r", body={"prompt": "secret"}, n=3))
    assert "\n" not in line
    found = json.loads(line)
    assert found["message"] == "a\nb"
    assert (found["role"], found["request_id"], found["n"]) == ("worker", "r", 3)
    assert found["body"] == "<dict>"
    assert "secret" not in line


def test_text_lines_are_one_line() -> None:
    line = LineFormatter(is_json=False, fields={}).format(_record("a\nb", request_id="r"))
    assert line.count("\n") == 0
    assert line.endswith("a\\nb  request_id=r")
