"""The whole command with a rank on each of two GPUs: answers, and a lost rank in the middle."""

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
import torch
from tests.worker.launched import Launched, free_port, is_running, streaming, write_tiny_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="missing: two GPUs"),
]
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
PROCESSES = ("scheduler.process", "scheduler.follower_process")


def _serve(model: Path, folder: Path, port: int, size: int) -> Launched:
    return Launched(
        *("serve", str(model), "--http-port", str(port), "--threads", "2"),
        *("--device", "cuda", "--dtype", "float32", "--kv-tokens", "4096"),
        *("--tensor-parallel-size", str(size), "--rank-heartbeat-limit", "4"),
        log=folder / f"{size}.log",
        admin_port=free_port(),
        path=Path(str(fastapi.__file__)).parents[1],
    )


def _answers(url: str) -> list[list[int]]:
    def ask(body: dict[str, object]) -> list[int]:
        return httpx.post(f"{url}/generate", json=body, timeout=120).json()["output_ids"]

    with ThreadPoolExecutor(len(BODIES)) as pool:
        return list(pool.map(ask, BODIES))


def test_two_ranks_answer_like_one_and_survive_the_loss_of_either(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny")
    port = free_port()
    with _serve(model, tmp_path, port, 1) as served:
        served.until_ready()
        expected = _answers(f"http://127.0.0.1:{port}")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with _serve(model, tmp_path, port, 2) as served:
        served.until_ready()
        assert _answers(url) == expected, "cold"
        assert _answers(url) == expected, "warm"
        for part in PROCESSES:
            before = [served.pid_of(name) for name in PROCESSES]
            last: dict[str, object] = {}
            with streaming(url, BODIES[0]) as events:
                for place, event in enumerate(events):
                    last = event
                    if place == 5:
                        os.kill(served.pid_of(part), signal.SIGKILL)
            assert last["output_ids"] == expected[0]
            served.until_ready()
            # The other one was blocked on its GPU, and ended too.
            assert not any(is_running(pid) for pid in before)
        assert served.terminate() == 0
