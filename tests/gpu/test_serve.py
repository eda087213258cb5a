"""The whole command on a real GPU: its answers are the CPU's, and a lost rank is continued."""

import os
import signal
from pathlib import Path

import pytest
from tests.gpu.served import BODIES, answers, serve
from tests.worker.launched import free_port, streaming, write_tiny_model

pytestmark = [pytest.mark.gpu, pytest.mark.timeout(300)]


def test_answers_are_those_of_the_cpu_and_survive_the_rank(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny")
    port = free_port()
    with serve(model, tmp_path / "cpu.log", port, "--device", "cpu") as served:
        served.until_ready()
        expected = answers(f"http://127.0.0.1:{port}")
    assert [len(ids) for ids in expected] == [60] * len(BODIES)
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with serve(model, tmp_path / "cuda.log", port, "--device", "cuda") as served:
        served.until_ready()
        assert answers(url) == expected, "cold"
        assert answers(url) == expected, "warm"
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
