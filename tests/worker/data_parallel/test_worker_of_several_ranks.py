"""One worker address in front of two ranks, for real: streams survive a rank, a drain, a flush."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
from tests.worker.launched import Launched, free_port, streaming, write_tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(500)]

PROMPTS = [f"Story {number} begins" for number in range(6)]


@dataclass
class Pods:
    """A worker pod and a tokenizer pod."""

    worker: Launched
    front: Launched
    url: str


@pytest.fixture(scope="module")
def pods(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pods]:
    folder = tmp_path_factory.mktemp("pods")
    model = str(write_tiny_model(folder / "tiny"))
    address, port = f"tcp://127.0.0.1:{free_port()}", free_port()
    with (
        Launched(
            *("worker", "--model", model, "--listen", address, "--threads", "2"),
            *("--data-parallel-size", "2", "--max-running-requests", "8"),
            log=folder / "worker.log",
            admin_port=free_port(),
        ) as worker,
        Launched(
            *("tokenizer", "--model", model, "--workers", address, "--http-port", str(port)),
            *("--tokenizer-workers", "2"),
            log=folder / "front.log",
            admin_port=free_port(),
        ) as front,
    ):
        worker.until_ready()
        front.until_ready()
        yield Pods(worker=worker, front=front, url=f"http://127.0.0.1:{port}")


def _body(prompt: str, num_tokens: int = 1500) -> dict[str, object]:
    sampling = {"max_new_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
    return {"text": prompt, "sampling_params": sampling}


@pytest.fixture(scope="module")
def whole(pods: Pods) -> list[object]:
    def ask(prompt: str) -> object:
        return httpx.post(f"{pods.url}/generate", json=_body(prompt), timeout=120).json()

    return [ask(prompt)["output_ids"] for prompt in PROMPTS]  # type: ignore[index]


def _streams(url: str, disturb: Callable[[], None]) -> list[object]:
    begun = threading.Barrier(len(PROMPTS) + 1, timeout=60)

    def follow(prompt: str) -> object:
        last: dict[str, object] = {}
        with streaming(url, _body(prompt)) as events:
            for place, event in enumerate(events):
                last = event
                if place == 1:
                    begun.wait()
        assert "output_ids" in last, last
        return last["output_ids"]

    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        following = [pool.submit(follow, prompt) for prompt in PROMPTS]
        begun.wait()
        disturb()
        return [one.result() for one in following]


def test_both_ranks_work_and_one_address_has_the_capacity_of_both(
    pods: Pods, whole: list[object]
) -> None:
    seen: dict[str, int] = {}

    def look() -> None:
        info = httpx.get(f"{pods.worker.admin}/server_info").json()["processes"]
        for name in ("rank-0", "rank-1"):
            seen[name] = info[name]["running_requests"]

    assert _streams(pods.url, look) == whole
    assert all(count > 0 for count in seen.values()), seen
    maps = Path(f"/proc/{pods.worker.pid_of('data_parallel')}/maps").read_text()
    assert "libtorch" not in maps


@pytest.mark.parametrize("place", [0, 1])
def test_streams_go_on_without_a_rank(pods: Pods, whole: list[object], place: int) -> None:
    pods.worker.until_ready()
    victim = pods.worker.pids_of("scheduler")[place]
    assert _streams(pods.url, lambda: os.kill(victim, signal.SIGKILL)) == whole
    pods.worker.until_ready()
    assert victim not in pods.worker.pids_of("scheduler")
    assert _streams(pods.url, lambda: None) == whole


def test_a_client_that_leaves_and_an_abort_free_the_ranks(pods: Pods) -> None:
    pods.worker.until_ready()
    with streaming(pods.url, _body("Once", 3900)) as events:
        next(events)
    body = {**_body("Twice", 3900), "stream": True}
    with httpx.stream("POST", f"{pods.url}/generate", json=body, timeout=60) as got:
        aborted = httpx.post(
            f"{pods.front.admin}/abort_request", json={"rid": got.headers["x-request-id"]}
        )
        assert aborted.json()["num_aborted"] == 1
        got.read()

    def live() -> int:
        info = httpx.get(f"{pods.worker.admin}/server_info").json()["processes"]
        assert info["controller"]["ranks_attached"] == 2
        return info["controller"]["live_requests"] + sum(
            info[name]["running_requests"] for name in ("rank-0", "rank-1")
        )

    pods.worker.until(lambda: live() == 0, 20)


def test_a_flush_reaches_every_rank_from_either_pod(pods: Pods, whole: list[object]) -> None:
    flushed = httpx.post(f"{pods.front.admin}/flush_cache")
    assert flushed.status_code == 200, flushed.text
    assert flushed.json()["freed_kv_tokens"] > 0
    again = httpx.post(f"{pods.worker.admin}/flush_cache").json()
    assert (again["freed_kv_tokens"], again["flushed"]) == (0, 2)


def test_a_drain_finishes_what_streams(pods: Pods, whole: list[object]) -> None:
    drained: list[int] = []

    def drain() -> None:
        query = {"mode": "finish", "deadline_s": "400"}
        answer = httpx.post(f"{pods.worker.admin}/drain", params=query, timeout=420)
        drained.append(answer.status_code)

    assert _streams(pods.url, drain) == whole
    assert drained == [200]
    assert pods.worker.terminate() == 0
    pids = pods.front.pids_of("http_api")
    assert pods.front.terminate() == 0
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
