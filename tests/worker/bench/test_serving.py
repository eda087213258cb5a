"""The open-loop benchmark: arrivals and percentiles, and a whole run against a real server."""

import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.worker.model_executor.tiny_models import save_tiny

from mizzen_worker.bench.arguments import bench_parser
from mizzen_worker.bench.command import run, server_flags
from mizzen_worker.bench.serving import (
    Served,
    arrival_times,
    percentile,
    served_model,
    summarise,
)


def test_arrivals_keep_the_rate_and_the_seed() -> None:
    times = arrival_times(4000, 50.0, seed=1)
    assert times == sorted(times)
    assert times[-1] == pytest.approx(80, rel=0.1)
    assert times == arrival_times(4000, 50.0, seed=1)
    assert arrival_times(3, math.inf, seed=1) == [0.0, 0.0, 0.0]


def test_percentiles_are_values_that_occurred() -> None:
    values = [4.0, 1.0, 3.0, 2.0]
    assert [percentile(values, share) for share in (0, 0.5, 0.75, 0.76, 1)] == [1, 2, 3, 4, 4]
    assert math.isnan(percentile([], 0.5))


def test_failed_requests_are_counted_and_have_no_latency() -> None:
    served = [Served(first_token_s=0.1, total_s=0.5, gaps=(0.2, 0.2), num_tokens=3)]
    row = summarise(served, num_requests=2, wall_s=0.5, rate=4.0)
    assert (row["failed"], row["output tok/s"], row["TTFT p50 ms"]) == (1, 6.0, 100.0)


class _Models(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b'{"data": [{"id": "theirs"}]}'
        self.send_response(200 if self.path == "/v1/models" else 404)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Silence."""


def test_a_server_of_others_names_its_model() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Models) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        assert served_model(url) == "theirs"
        assert served_model(f"{url}/elsewhere") == ""
        server.shutdown()


@pytest.mark.slow
def test_a_server_of_its_own_is_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_tiny(tmp_path / "tiny", "qwen3", vocab_size=10_016, max_position_embeddings=4096)
    target = tmp_path / "numbers.json"
    flags = ["--kv-tokens", "16384", "--requests", "3", "--rate", "20", "--skip-tokenizer"]
    status = run(["serving", "--model", str(tmp_path / "tiny"), *flags, "--json", str(target)])
    assert status == 0, capsys.readouterr().err
    row = json.loads(target.read_text())["workloads"]["serving"][0]
    assert (row["requests"], row["failed"]) == (3, 0)
    assert row["output tok/s"] > 0


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder whose path leaves room for the names of sockets, which pytest's own may not."""
    with tempfile.TemporaryDirectory(prefix="mizzen-test-") as folder:
        yield Path(folder)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_benchmark_that_is_ended_ends_its_server(
    number: signal.Signals, tmp_path: Path, short_folder: Path
) -> None:
    save_tiny(tmp_path / "tiny", "qwen3", vocab_size=10_016, max_position_embeddings=4096)
    flags = ["--model", str(tmp_path / "tiny"), "--kv-tokens", "4096", "--skip-tokenizer"]
    command = [sys.executable, "-m", "mizzen_worker", "bench", "serving", *flags, "--rate", "0.1"]
    folders = short_folder
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in sys.path if path),
        "TMPDIR": str(folders),
    }
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as bench:
        assert bench.stderr is not None
        while "server ready" not in (line := bench.stderr.readline()):
            assert line, "the benchmark ended before its server was ready"
        (server,) = _children(bench.pid)
        bench.send_signal(number)
        bench.wait(60)
    deadline = time.monotonic() + 60
    while _is_running(server):
        assert time.monotonic() < deadline, "the server outlived its benchmark"
        time.sleep(0.1)
    if number != signal.SIGKILL:
        assert bench.returncode == {signal.SIGTERM: 143, signal.SIGINT: 130}[number]
        assert not list(folders.glob("mizzen-bench-*"))


def _children(pid: int) -> list[int]:
    return [int(text) for text in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _is_running(pid: int) -> bool:
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return False


def test_a_server_that_is_not_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--model", "qwen06b", "--requests", "2", "--url", "http://127.0.0.1:9"]
    assert run(["serving", *flags]) == 1
    told = capsys.readouterr().err
    assert "no request was answered; look whether a server of Mizzen listens at http://" in told


def test_a_server_of_its_own_gets_what_was_given(tmp_path: Path) -> None:
    arguments = ["serving", "--model", "qwen06b", "--kv-tokens", "64", "--deterministic"]
    given = bench_parser().parse_args([*arguments, "--config", "engine.yaml"])
    flags = server_flags(given, tmp_path, is_shape=True)
    assert flags[:4] == ["--model", str(tmp_path), "--config", "engine.yaml"]
    assert flags[4:6] == ["--kv-tokens", "64"]
    assert flags[6:] == ["--deterministic", "--skip-tokenizer", "--load-format", "dummy"]


def test_serving_runs_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serving", "offline", "--model", "qwen06b"]) == 2
    assert "serving runs alone" in capsys.readouterr().err
