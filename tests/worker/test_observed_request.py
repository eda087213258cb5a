"""One request seen from outside: its id on every line, its spans at a receiver, its numbers.

And the end of the server while another one runs.
"""

import json
import signal
import threading
from pathlib import Path

import httpx
import pytest
from tests.worker.launched import Launched, free_port, streaming, write_tiny_model
from tests.worker.otlp_receiver import OtlpReceiver, attributes_of

from mizzen_worker.observability import tracing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TRACE_ID, PARENT_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
BODY: dict[str, object] = {
    "text": "Once upon a time",
    "sampling_params": {"max_new_tokens": 20, "temperature": 0, "ignore_eos": True},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


def _served(model: Path, log: Path, port: int, *flags: str) -> Launched:
    return Launched(
        *("serve", str(model), "--http-port", str(port), "--threads", "1", *flags),
        log=log,
        admin_port=free_port(),
    )


def test_a_request_is_followed_through_every_process(model: Path, tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    flags = ("--log-level", "debug", "--log-format", "json")
    with (
        OtlpReceiver() as receiver,
        _served(model, tmp_path / "log", port, *flags, "--trace-endpoint", receiver.url) as served,
    ):
        served.until_ready()
        headers = {
            "x-request-id": "order-66",
            "traceparent": f"00-{TRACE_ID}-{PARENT_ID}-01",
        }
        answer = httpx.post(f"{url}/generate", json=BODY, headers=headers, timeout=60)
        assert answer.headers.get_list("x-request-id") == ["order-66"]
        unsampled = {"traceparent": f"00-{TRACE_ID[::-1]}-{PARENT_ID}-00"}
        other = httpx.post(f"{url}/generate", json=BODY, headers=unsampled, timeout=60)
        assert other.headers["x-request-id"] == other.json()["meta_info"]["id"]
        odd = httpx.get(f"{url}/v1/models", headers={"x-request-id": "x" * 200})
        assert odd.headers["x-request-id"] != "x" * 200

        def processes() -> set[str]:
            lines = [line for line in served.log.read_text().splitlines() if "order-66" in line]
            return {json.loads(line)["process"] for line in lines}

        served.until(lambda: processes() == {"front", "rank", "detokenizer"}, 20)
        served.until(lambda: len(receiver.spans) >= 4, 20)
        numbers = httpx.get(f"{served.admin}/metrics").text
        for name in (
            'mizzen_engine_finished_requests_total{reason="length"} 2.0',
            "mizzen_queue_time_seconds_count 2.0",
            'mizzen_engine_step_planning_seconds_bucket{le="+Inf"}',
            "mizzen_predicted_time_to_first_token_seconds",
        ):
            assert name in numbers
        assert served.terminate() == 0

    spans = {span.name: span for span in receiver.spans}
    assert len(receiver.spans) == 5
    http = spans["POST /generate"]
    assert http.trace_id.hex() == TRACE_ID
    assert http.parent_span_id.hex() == PARENT_ID
    for name in ("queue", "prefill", "decode"):
        assert spans[name].trace_id == http.trace_id
        assert spans[name].parent_span_id == http.span_id
        assert http.start_time_unix_nano <= spans[name].start_time_unix_nano + 10**8
    assert attributes_of(http)["http.response.status_code"] == 200
    assert attributes_of(http)["gen_ai.request.model"] == "tiny"
    assert attributes_of(spans["decode"])["gen_ai.usage.output_tokens"] == 20
    assert attributes_of(spans["decode"])["gen_ai.response.finish_reasons"] == ["length"]
    assert attributes_of(spans["prefill"])["gen_ai.usage.input_tokens"] == 16
    assert attributes_of(spans["queue"])["mizzen.request_id"] == "order-66"


def test_a_missing_tracing_package_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracing.importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(tracing.ConfigError, match=r"install mizzen\[tracing\]"):
        tracing.check_tracing()


def test_the_first_signal_drains_and_the_second_ends_at_once(model: Path, tmp_path: Path) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with _served(model, tmp_path / "log", port, "--drain-mode", "finish") as served:
        served.until_ready()
        long = {**BODY, "sampling_params": {"max_new_tokens": 4000, "ignore_eos": True}}
        with streaming(url, long) as events, httpx.Client(base_url=url) as other:
            next(events)
            other.get("/v1/models")
            served.process.send_signal(signal.SIGTERM)
            served.until(lambda: served.probe("/health/ready") == 503, 20)
            served_still = other.post("/generate", json=BODY)
            assert served_still.status_code == 200
            assert served_still.headers["connection"] == "close"
            assert next(events)
            threading.Timer(0.2, served.process.send_signal, [signal.SIGINT]).start()
            assert served.process.wait(20) == 130
