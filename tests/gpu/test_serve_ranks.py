"""The whole command with a rank on each of two GPUs: answers, and a lost rank in the middle."""

import os
import signal
from pathlib import Path

import pytest
import torch
from tests.gpu.served import BODIES, answers, serve
from tests.worker.launched import free_port, is_running, streaming, write_tiny_model

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.timeout(300),
    pytest.mark.skipif(torch.cuda.device_count() < 2, reason="missing: two GPUs"),
]
PROCESSES = ("scheduler.process", "scheduler.follower_process")


def test_two_ranks_answer_like_one_and_survive_the_loss_of_either(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny")
    port = free_port()
    with serve(model, tmp_path / "one.log", port, "--device", "cuda") as served:
        served.until_ready()
        expected = answers(f"http://127.0.0.1:{port}")
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    ranks = ("--tensor-parallel-size", "2", "--rank-heartbeat-limit", "4")
    with serve(model, tmp_path / "two.log", port, "--device", "cuda", *ranks) as served:
        served.until_ready()
        assert answers(url) == expected, "cold"
        assert answers(url) == expected, "warm"
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
