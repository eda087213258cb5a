"""The process tree for real: killed at any place, it heals or fails stop, and leaves nothing."""

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from tests.worker.launched import (
    Launched,
    free_port,
    is_running,
    streaming,
    write_keys,
    write_tiny_model,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NUM_TOKENS = 1500
BODY: dict[str, object] = {
    "text": "Once upon a time",
    "sampling_params": {"max_new_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True},
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


def _stream_through(url: str, disturb: Callable[[], None]) -> dict[str, object]:
    """Stream, disturb after some tokens, give the last event."""
    last: dict[str, object] = {}
    with streaming(url, BODY) as events:
        for place, event in enumerate(events):
            last = event
            if place == 20:
                disturb()
    return last


def _serve(model: Path, folder: Path, port: int) -> Launched:
    return Launched(
        *("serve", str(model), "--http-port", str(port), "--threads", "1"),
        log=folder / "log",
        admin_port=free_port(),
    )


def _drain(served: Launched, deadline_s: int) -> str:
    """Ask for it, and wait until it is over."""
    return httpx.post(f"{served.admin}/drain?deadline_s={deadline_s}", timeout=None).text


def test_serve_heals_drains_and_leaves_nothing(model: Path, tmp_path: Path) -> None:
    port, admin_port = free_port(), free_port()
    url = f"http://127.0.0.1:{port}"
    with Launched(
        *("serve", str(model), "--http-port", str(port), "--threads", "1"),
        log=tmp_path / "log",
        admin_port=admin_port,
    ) as served:
        served.until_ready()
        assert "is served at" in served.log.read_text()
        children = served.children()
        assert len(children) == 3
        folder = _socket_folder(served)

        for pid in (served.process.pid, served.pid_of("http_api"), served.pid_of("detokenizer")):
            assert "libtorch" not in Path(f"/proc/{pid}/maps").read_text()
        assert "libtorch" in Path(f"/proc/{served.pid_of('scheduler')}/maps").read_text()

        whole = httpx.post(f"{url}/generate", json=BODY, timeout=120).json()
        assert whole["meta_info"]["completion_tokens"] == NUM_TOKENS

        for part in ("scheduler", "detokenizer"):
            before = served.pid_of(part)
            last = _stream_through(url, lambda pid=before: os.kill(pid, signal.SIGKILL))
            assert last["output_ids"] == whole["output_ids"]
            assert last["text"] == whole["text"]
            assert served.pid_of(part) != before
        # A process tells its metrics every few seconds.
        for line in (
            'mizzen_process_restarts_total{process="rank"} 1.0',
            "mizzen_requests_resumed_total 1.0",
        ):
            served.until(lambda line=line: line in httpx.get(f"{served.admin}/metrics").text, 20)
        served.until_ready()

        last = _stream_through(url, lambda: served.process.send_signal(signal.SIGTERM))
        assert last["output_ids"] == whole["output_ids"]
        assert served.process.wait(60) == 0
        assert not folder.exists()
        assert not any(is_running(pid) for pid in children.values())


def test_row_36_a_server_that_drains_serves_all_who_ask_and_ends_when_they_left(
    model: Path, tmp_path: Path
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    short = {"text": "Once", "sampling_params": {"max_new_tokens": 2, "ignore_eos": True}}
    with (
        _serve(model, tmp_path, port) as served,
        ThreadPoolExecutor(1) as pool,
        httpx.Client(timeout=120) as kept,
    ):
        served.until_ready()

        def ask() -> httpx.Response:
            return kept.post(f"{url}/generate", json=short)

        assert "connection" not in ask().headers
        draining: list[Future[str]] = []

        def begin_drain_and_ask() -> None:
            draining.append(pool.submit(_drain, served, 300))
            served.until(lambda: served.probe("/health/ready") == 503)
            # One on the connection that was open before, one on a new connection. The first may
            # come before the front knows.
            for _ in range(2):
                answer = ask()
                assert answer.status_code == 200
            assert answer.headers["connection"] == "close"

        last = _stream_through(url, begin_drain_and_ask)
        assert last["meta_info"]["completion_tokens"] == NUM_TOKENS  # type: ignore[index]
        assert draining[0].result() == "drained\n"
        with pytest.raises(httpx.ConnectError):
            ask()
        assert served.terminate() == 0


def test_clients_who_never_cease_to_come_are_refused_in_time_for_those_within(
    model: Path, tmp_path: Path
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    body = {"text": "Once", "sampling_params": {"max_new_tokens": 200, "ignore_eos": True}}

    def ask_on_and_on() -> list[int]:
        statuses: list[int] = []
        while True:
            try:
                statuses.append(httpx.post(f"{url}/generate", json=body, timeout=120).status_code)
            except httpx.ConnectError:
                return statuses
            except httpx.TransportError:
                # Connected, but not yet accepted when the door was closed.
                continue

    with (
        _serve(model, tmp_path, port) as served,
        ThreadPoolExecutor(4) as pool,
    ):
        served.until_ready()
        clients = [pool.submit(ask_on_and_on) for _ in range(4)]
        assert _drain(served, 40) == "drained\n"
        statuses = [status for client in clients for status in client.result()]
        assert len(statuses) >= len(clients)
        assert set(statuses) == {200}
        assert served.terminate() == 0


@pytest.mark.parametrize("part", ["detokenizer", "scheduler"])
def test_what_dies_during_a_drain_is_healed_while_the_front_needs_it(
    model: Path, tmp_path: Path, part: str
) -> None:
    port = free_port()
    with (
        _serve(model, tmp_path, port) as served,
        ThreadPoolExecutor(1) as pool,
    ):
        served.until_ready()
        draining: list[Future[str]] = []

        def drain_and_kill() -> None:
            draining.append(pool.submit(_drain, served, 300))
            served.until(lambda: served.probe("/health/ready") == 503)
            os.kill(served.pid_of(part), signal.SIGKILL)

        last = _stream_through(f"http://127.0.0.1:{port}", drain_and_kill)
        assert last["meta_info"]["completion_tokens"] == NUM_TOKENS  # type: ignore[index]
        assert draining[0].result() == "drained\n"
        assert served.terminate() == 0


def test_a_drain_ends_what_is_live_at_its_deadline_with_an_error(
    model: Path, tmp_path: Path
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with (
        _serve(model, tmp_path, port) as served,
        ThreadPoolExecutor(1) as pool,
    ):
        served.until_ready()
        draining: list[Future[str]] = []
        last = _stream_through(url, lambda: draining.append(pool.submit(_drain, served, 0)))
        message = last["error"]["message"]  # type: ignore[index]
        assert "had to end before the answer was whole" in message
        assert draining[0].result() == "drained\n"
        with pytest.raises(httpx.ConnectError):
            httpx.post(f"{url}/generate", json=BODY)
        assert served.terminate() == 0


def test_children_die_with_a_killed_launcher(model: Path, tmp_path: Path) -> None:
    with Launched(
        *("serve", str(model), "--http-port", "0", "--threads", "1"),
        log=tmp_path / "log",
        admin_port=free_port(),
    ) as served:
        served.until_ready()
        children = served.children()
        served.process.kill()
        served.process.wait()
        ends_at = time.monotonic() + 10
        while any(is_running(pid) for pid in children.values()):
            assert time.monotonic() < ends_at
            time.sleep(0.05)


def test_split_roles_with_keys_fail_stop_and_resume(model: Path, tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys")
    wire_port, port = free_port(), free_port()
    worker_admin = free_port()
    url = f"http://127.0.0.1:{port}"
    address = f"tcp://127.0.0.1:{wire_port}"

    def worker() -> Launched:
        return Launched(
            *("worker", "--model", str(model), "--listen", address, "--threads", "1"),
            *("--curve-dir", str(keys)),
            log=tmp_path / "worker.log",
            admin_port=worker_admin,
        )

    with Launched(
        *("tokenizer", "--model", str(model), "--workers", address, "--http-port", str(port)),
        *("--curve-dir", str(keys)),
        log=tmp_path / "front.log",
        admin_port=free_port(),
    ) as front:
        with worker() as first:
            first.until_ready()
            front.until_ready()
            whole = httpx.post(f"{url}/generate", json=BODY, timeout=120).json()
            second: list[Launched] = []

            def kill_rank_and_start_another() -> None:
                os.kill(first.pid_of("scheduler"), signal.SIGKILL)
                assert first.process.wait(30) == 1
                second.append(worker())

            last = _stream_through(url, kill_rank_and_start_another)
            assert last["output_ids"] == whole["output_ids"]
        with second[0] as healed:
            drained = subprocess.run(
                [
                    *(sys.executable, "-m", "mizzen_worker", "drain", "--mode", "handback"),
                    *("--admin-port", str(worker_admin), "--deadline-s", "10"),
                ],
                env={**os.environ, "PYTHONPATH": "worker:operator"},
                capture_output=True,
                text=True,
                check=False,
            )
            assert (drained.returncode, drained.stdout) == (0, "drained\n"), drained.stderr
            front.until(lambda: httpx.get(f"{url}/health/ready").status_code == 503, 20)
            refused = httpx.post(f"{url}/generate", json=BODY, timeout=120)
            assert refused.status_code == 503
            assert int(refused.headers["retry-after"]) > 0
            # It stays in its Service, or nobody could tell clients when to come back.
            assert front.probe("/health/ready") == 200
            assert healed.terminate() == 0
        os.kill(front.pid_of("detokenizer"), signal.SIGKILL)
        assert front.process.wait(30) == 1


def test_broken_model_is_said_once_and_ends(tmp_path: Path, model: Path) -> None:
    broken = tmp_path / "broken"
    broken.mkdir()
    (broken / "tokenizer.json").write_text((model / "tokenizer.json").read_text())
    (broken / "config.json").write_text("{}")
    with Launched(
        "serve", str(broken), "--http-port", "0", log=tmp_path / "log", admin_port=free_port()
    ) as served:
        assert served.process.wait(60) == 1
        log = served.log.read_text()
        assert "rank ended with exit status 1: " in log
        assert "Traceback" not in log


def test_a_taken_port_is_said_in_one_sentence(tmp_path: Path, model: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with Launched(
            *("serve", str(model), "--http-port", str(port)),
            log=tmp_path / "log",
            admin_port=free_port(),
        ) as served:
            assert served.process.wait(60) == 2
            said = f"mizzen serve: --http-port: 127.0.0.1:{port} cannot be bound"
            assert said in served.log.read_text()


def test_a_missing_vocabulary_is_said_in_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "pytorch_model.bin").write_bytes(b"\x80\x04N.")
    with Launched(
        "serve", str(tmp_path), "--http-port", "0", log=tmp_path / "log", admin_port=free_port()
    ) as served:
        assert served.process.wait(60) == 1
        assert "holds no tokenizer.json and no .gguf file; give a" in served.log.read_text()


def _socket_folder(served: Launched) -> Path:
    found = re.search(r"ipc://(/\S+)/rank\b", served.log.read_text())
    assert found is not None, "no socket folder"
    return Path(found[1])
