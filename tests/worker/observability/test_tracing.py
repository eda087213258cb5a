"""A receiver of traces that is away costs two lines of the log, not one for each batch."""

import logging

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExportResult
from tests.worker.launched import free_port
from tests.worker.otlp_receiver import OtlpReceiver

from mizzen_worker.observability.otlp import SpanSender


def _span() -> ReadableSpan:
    span = TracerProvider(shutdown_on_exit=False).get_tracer("test").start_span("a")
    span.end()
    assert isinstance(span, ReadableSpan)
    return span


def test_an_outage_is_told_when_it_begins_and_when_it_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    port = free_port()
    sender = SpanSender(f"http://127.0.0.1:{port}/v1/traces", timeout_s=0.5)
    queue = logging.getLogger("opentelemetry.sdk._shared_internal")
    for _ in range(2):
        for batch in range(3):
            sender.export([_span()])
            queue.warning("Queue full, dropping %d", batch)
        with OtlpReceiver(port) as receiver:
            for _ in range(3):
                sender.export([_span()])
            assert len(receiver.spans) == 3
    sender.shutdown()
    told = [
        (line.levelname, line.getMessage())
        for line in caplog.records
        if not line.name.startswith("urllib3")
    ]
    assert [level for level, _ in told] == ["WARNING", "INFO"] * 2
    assert f"127.0.0.1:{port}/v1/traces takes no spans" in told[0][1]
    assert "Failed to export" in told[0][1]
    assert told[1][1].endswith("takes spans again")


def test_a_process_that_ends_in_an_outage_tries_no_more() -> None:
    port = free_port()
    sender = SpanSender(f"http://127.0.0.1:{port}/v1/traces", timeout_s=0.5)
    with OtlpReceiver(port) as receiver:
        sender.end_outage_wait()
        assert sender.export([_span()]) is SpanExportResult.SUCCESS
    assert sender.export([_span()]) is SpanExportResult.FAILURE
    sender.end_outage_wait()
    with OtlpReceiver(port) as again:
        assert sender.export([_span()]) is SpanExportResult.FAILURE
    sender.shutdown()
    assert (len(receiver.spans), len(again.spans)) == (1, 0)
