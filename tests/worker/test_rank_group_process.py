"""Tensor-parallel ranks as processes: one machine, two pods, and what happens when one is lost.

Two launchers act as two pods: leader and follower with addresses, ports and keys of their own.
"""

import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
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
from tests.worker.rank_group.pods import Site, drain

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

END_LIMIT_S = 40
"""Far below every other limit that could end a process: those of loading and of stuck loops."""
PROMPTS = ("Once upon a time", "In the beginning", "It was a dark night", "Call me")
SIGNALS = (signal.SIGKILL, signal.SIGSTOP)
PROCESSES = ("scheduler.process", "scheduler.follower_process")


def body(prompt: str, num_tokens: int = 400) -> dict[str, object]:
    sampling = {"max_new_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
    return {"text": prompt, "sampling_params": sampling}


def ids_of(url: str, prompt: str, num_tokens: int = 400) -> object:
    answer = httpx.post(f"{url}/generate", json=body(prompt, num_tokens), timeout=240)
    assert answer.status_code == 200, answer.text
    return answer.json()["output_ids"]


def stream(url: str, prompt: str, then: Callable[[], object] = lambda: None) -> object:
    """Stream an answer, doing something after some tokens; give its ids."""
    last: dict[str, object] = {}
    with streaming(url, body(prompt)) as events:
        for place, event in enumerate(events):
            last = event
            if place == 3:
                then()
    assert "output_ids" in last, last
    return last["output_ids"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def alone(model: Path, tmp_path_factory: pytest.TempPathFactory) -> list[object]:
    """What a single rank answers."""
    port = free_port()
    with Launched(
        *("serve", str(model), "--http-port", str(port), "--threads", "1"),
        log=tmp_path_factory.mktemp("alone") / "log",
        admin_port=free_port(),
    ) as served:
        served.until_ready()
        return [ids_of(f"http://127.0.0.1:{port}", prompt) for prompt in PROMPTS]


# One machine.


@pytest.mark.parametrize("overlap", ["off", "on"])
def test_ranks_of_one_machine_answer_like_one_rank(
    model: Path, alone: list[object], tmp_path: Path, overlap: str
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with Launched(
        *("serve", str(model), "--http-port", str(port), "--tensor-parallel-size", "2"),
        # So little KV memory that the requests push each other out.
        *("--threads", "2", "--overlap", overlap, "--kv-tokens", "1024"),
        log=tmp_path / "log",
        admin_port=free_port(),
    ) as served:
        served.until_ready()
        with ThreadPoolExecutor(len(PROMPTS)) as pool:
            assert list(pool.map(lambda prompt: stream(url, prompt), PROMPTS)) == alone
        with streaming(url, body("left", 900)) as events:
            next(events)
        assert ids_of(url, PROMPTS[0]) == alone[0]

        def metrics() -> str:
            return httpx.get(f"{served.admin}/metrics").text

        served.until(lambda: "mizzen_running_requests 0.0" in metrics(), 20)
        assert "mizzen_rank_group_ranks 2.0" in metrics()
        assert "mizzen_rank_group_joined_ranks 2.0" in metrics()
        assert "mizzen_engine_retractions_total 0.0" not in metrics()
        pids = [served.pid_of(part) for part in PROCESSES]
        assert served.terminate() == 0
        assert not any(is_running(pid) for pid in pids)


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("part", PROCESSES)
def test_streams_go_on_when_a_group_starts_again(
    model: Path, alone: list[object], tmp_path: Path, part: str, number: int
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    with Launched(
        *("serve", str(model), "--http-port", str(port), "--tensor-parallel-size", "2"),
        *("--threads", "2", "--rank-heartbeat-limit", "2"),
        log=tmp_path / "log",
        admin_port=free_port(),
    ) as served:
        served.until_ready()
        before = [served.pid_of(one) for one in PROCESSES]
        victim = served.pid_of(part)
        assert stream(url, PROMPTS[0], lambda: os.kill(victim, number)) == alone[0]
        served.until_ready()
        after = [served.pid_of(one) for one in PROCESSES]
        assert not set(before) & set(after)
        assert not any(is_running(pid) for pid in before)
        assert ids_of(url, PROMPTS[1]) == alone[1]
        assert served.terminate() == 0


def test_copies_of_the_model_may_be_groups(
    model: Path, alone: list[object], tmp_path: Path
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}"
    address = f"tcp://127.0.0.1:{free_port()}"
    with (
        Launched(
            *("worker", "--model", str(model), "--listen", address, "--threads", "4"),
            *("--tensor-parallel-size", "2", "--data-parallel-size", "2"),
            log=tmp_path / "worker.log",
            admin_port=free_port(),
        ) as worker,
        Launched(
            *("tokenizer", "--model", str(model), "--workers", address, "--http-port", str(port)),
            log=tmp_path / "front.log",
            admin_port=free_port(),
        ) as front,
    ):
        worker.until_ready()
        front.until_ready()
        victim = worker.pids_of("follower_process")[0]
        with ThreadPoolExecutor(len(PROMPTS)) as pool:
            begun = threading.Event()
            streams = [pool.submit(stream, url, prompt, begun.set) for prompt in PROMPTS]
            assert begun.wait(60)
            os.kill(victim, signal.SIGKILL)
            assert [one.result() for one in streams] == alone
        worker.until_ready()
        assert worker.terminate() == 0


# Two pods.


@pytest.fixture(scope="module")
def front(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A tokenizer pod that outlives all groups."""
    folder = tmp_path_factory.mktemp("front")
    keys, listen, port = write_keys(folder / "keys"), f"tcp://127.0.0.1:{free_port()}", free_port()
    with Launched(
        *("tokenizer", "--model", str(model), "--workers", listen, "--http-port", str(port)),
        # Streams of a group that is gone for good end soon.
        *("--curve-dir", str(keys), "--resume-timeout", "5"),
        log=folder / "front.log",
        admin_port=free_port(),
    ) as pod:
        pod.until_ready("/health/startup")
        yield Site(model, keys, folder, listen, 0, f"http://127.0.0.1:{port}")


@pytest.fixture
def site(front: Site, tmp_path: Path) -> Site:
    return Site(front.model, front.keys, tmp_path, front.listen, free_port(), front.url)


def test_two_pods_answer_like_one_rank_and_drain_together(site: Site, alone: list[object]) -> None:
    with site.pod(0) as first, site.pod(1) as second:
        first.until_ready()
        second.until_ready()
        assert [stream(site.url, prompt) for prompt in PROMPTS] == alone
        assert "libtorch" not in Path(f"/proc/{second.process.pid}/maps").read_text()
        flushed = httpx.post(f"{second.admin}/flush_cache")
        assert flushed.status_code == 503
        assert "rank 1 of 2 decides nothing; ask its leader, at tcp://127.0.0.1:" in flushed.text
        assert "mizzen_follower_steps_total" in httpx.get(f"{second.admin}/metrics").text
        pids = [first.pid_of("scheduler"), second.pid_of("scheduler")]
        done: list[tuple[int, str]] = []

        def drain_both() -> None:
            with ThreadPoolExecutor(2) as pool:
                done.extend(pool.map(lambda pod: drain(pod, "finish"), (second, first)))

        draining = threading.Thread(target=drain_both)
        assert stream(site.url, PROMPTS[0], draining.start) == alone[0]
        draining.join()
        assert done == [(0, "drained\n")] * 2
        assert (first.terminate(), second.terminate()) == (0, 0)
        assert not any(is_running(pid) for pid in pids)


def test_a_follower_that_is_evicted_alone_drains_its_group(site: Site, alone: list[object]) -> None:
    with site.pod(0) as first, site.pod(1) as second:
        first.until_ready()
        second.until_ready()
        done: list[int] = []

        def evict() -> None:
            done.append(drain(second, "finish")[0])

        draining = threading.Thread(target=evict)
        assert stream(site.url, PROMPTS[0], draining.start) == alone[0]
        draining.join()
        assert done == [0]
        assert second.terminate() == 0
        # The kubelet starts the leader's pod again, to wait for the new follower.
        assert first.process.wait(END_LIMIT_S) == 1
        assert "rank ended with exit status 0: rank 1 of its group had to drain" in site.log(0)


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("victim", [0, 1])
@pytest.mark.parametrize("phase", ["load", "serve", "drain"])
def test_a_lost_rank_ends_both_pods_and_leaves_nothing(
    site: Site, phase: str, victim: int, number: int
) -> None:
    if phase == "load":
        site.hold.touch()
    with site.pod(0) as first, site.pod(1) as second, ExitStack() as stack:
        pods = (first, second)
        pool = stack.enter_context(ThreadPoolExecutor(2))
        if phase == "load":
            first.until(lambda: all("ranks are together" in site.log(node) for node in (0, 1)))
        else:
            first.until_ready()
            second.until_ready()
            # With nobody left to go on, the stream ends with an error event or the pod's client.
            begun = threading.Event()
            pool.submit(_follow, site.url, begun)
            assert begun.wait(60)
        if phase == "drain":
            pool.submit(drain, first, "finish")
            first.until(lambda: '"draining"' in site.log(0))
        pids = [pod.pid_of("scheduler") for pod in pods]
        os.kill(pids[victim], number)
        statuses = [
            pod.process.wait(END_LIMIT_S) if phase != "drain" or pod is second else None
            for pod in pods
        ]
        assert statuses[1] == 1
        first.until(lambda: not any(is_running(pid) for pid in pids), END_LIMIT_S)
        if phase == "drain":
            # Its drain is over, if not as it was meant: it answers probes until the signal.
            assert first.terminate() == 0
        lost = "shown no life" if number == signal.SIGSTOP else "signal 9"
        assert lost in site.log(victim)
        assert _names_the_lost(site.log(1 - victim), victim)
        with socket.create_server(("127.0.0.1", site.rank_port)):
            pass


def _names_the_lost(log: str, victim: int) -> bool:
    return f"rank {victim} of 2 is lost" in log or f"rank {victim} of 2: " in log


def _follow(url: str, begun: threading.Event) -> None:
    with httpx.stream(
        "POST", f"{url}/generate", json={**body("lost", 3900), "stream": True}, timeout=240
    ) as got:
        for _ in got.iter_lines():
            begun.set()


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("victim", [0, 1])
def test_a_rank_lost_at_the_rendezvous_ends_its_pod_and_is_waited_for(
    site: Site, alone: list[object], victim: int, number: int
) -> None:
    with site.pod(victim) as lost, ExitStack() as stack:
        lost.until(lambda: "waits for" in site.log(victim))
        assert lost.probe("/health") == 200
        assert lost.probe("/health/ready") == 503
        os.kill(lost.pid_of("scheduler"), number)
        assert lost.process.wait(END_LIMIT_S) == 1
        pods = [stack.enter_context(site.pod(node)) for node in (1 - victim, victim)]
        for pod in pods:
            pod.until_ready()
        assert ids_of(site.url, PROMPTS[0]) == alone[0]
        for pod in pods:
            pod.process.send_signal(signal.SIGTERM)
        for pod in pods:
            assert pod.process.wait(END_LIMIT_S) in (0, 1)


def test_an_old_epoch_or_other_flags_never_join_and_both_sides_say_why(
    site: Site, alone: list[object]
) -> None:
    with site.pod(0, epoch="1") as first:
        with site.pod(1, epoch="0") as old:
            assert old.process.wait(END_LIMIT_S) == 1
        with site.pod(1, "--page-size", "32", epoch="1") as other:
            assert other.process.wait(END_LIMIT_S) == 1
        for said in (
            "rank 1 has epoch 0 and the leader 1; the older one has to be started anew",
            "rank 1 has --page-size 32 and the leader 16; give all ranks of a group the same",
        ):
            assert said in site.log(0)
            assert said in site.log(1)
        with site.pod(1, epoch="1") as second:
            first.until_ready()
            second.until_ready()
            assert ids_of(site.url, PROMPTS[0]) == alone[0]


def test_a_rank_that_does_not_come_is_named(site: Site) -> None:
    with site.pod(0, "--rendezvous-timeout", "2") as first:
        assert first.process.wait(60) == 1
        said = f"rank 1 of 2 did not come to tcp://127.0.0.1:{site.rank_port} in 2 s; look at"
        assert said in site.log(0)
