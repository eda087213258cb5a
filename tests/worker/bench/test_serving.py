"""The open-loop benchmark: arrivals and percentiles, and a whole run against a real server."""

import json
import math
from pathlib import Path

import pytest
from tests.worker.model_executor.tiny_models import save_tiny

from mizzen_worker.bench.command import run
from mizzen_worker.bench.serving import Served, arrival_times, percentile, summarise


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


def test_serving_runs_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["serving", "offline", "--model", "qwen06b"]) == 1
    assert "serving runs alone" in capsys.readouterr().err
