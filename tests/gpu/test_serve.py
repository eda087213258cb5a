"""The whole command on a real GPU: its answers are the CPU's, and a lost rank is continued."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from tests.worker.launched import Launched, free_port, streaming, write_tiny_model

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]
fastapi = pytest.importorskip("fastapi", reason="missing: fastapi, opentelemetry-api")

BODIES: list[dict[str, object]] = [
    {
        "text": f"{number} " + "The whole of it. " * (1 + 5 * number),
        "sampling_params": {"max_new_tokens": 60, "ignore_eos": True, **sampling},
    }
    for number, sampling in enumerate(
        (
            {"temperature": 0},
            {"temperature": 0, "repetition_penalty": 1.2},
            {"temperature": 0.9, "sampling_seed": 5},
            {"temperature": 1.0, "sampling_seed": 6, "top_p": 0.9, "top_k": 40},
        )
    )
]


def _serve(model: Path, folder: Path, device: str, url_port: int) -> Launched:
    return Launched(
        *("serve", str(model), "--http-port", str(url_port), "--threads", "1"),
        *("--device", device, "--dtype", "float32", "--kv-tokens", "4096"),
        log=folder / device,
        admin_port=free_port(),
        path=Path(str(fastapi.__file__)).parents[1],
    )


def _answers(url: str) -> list[list[int]]:
    def ask(body: dict[str, object]) -> list[int]:
        return httpx.post(f"{url}/generate", json=body, timeout=120).json()["output_ids"]

    with ThreadPoolExecutor(len(BODIES)) as pool:
        return list(pool.map(ask, BODIES))


def test_answers_are_those_of_the_cpu_and_survive_the_rank(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny")
    port = free_port()
    with _serve(model, tmp_path, "cpu", port) as served:
        served.until_ready()
        expected = _answers(f"http://127.0.0.1:{port}")
    assert [len(ids) for ids in expected] == [60] * len(BODIES)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with _serve(model, tmp_path, "cuda", port) as served:
        served.until_ready()
        assert _answers(url) == expected, "cold"
        assert _answers(url) == expected, "warm"
        rank = served.pid_of("scheduler")
        assert "libcuda" in Path(f"/proc/{rank}/maps").read_text()
        last: dict[str, object] = {}
        with streaming(url, BODIES[0]) as events:
            for place, event in enumerate(events):
                last = event
                if place == 5:
                    os.kill(rank, signal.SIGKILL)
        assert last["output_ids"] == expected[0]
        assert served.pid_of("scheduler") != rank
        served.until_ready()
        assert served.terminate() == 0
