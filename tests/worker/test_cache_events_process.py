"""``--cache-events`` for real: who asks a running server is told what it caches, in each life."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
import zmq
from tests.worker.cache.event_mirror import EventMirror
from tests.worker.launched import Launched, free_port, write_tiny_model

from mizzen_worker.ipc.codec import cache_question_codec, from_cache_codec
from mizzen_worker.ipc.link import replay_address

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

_LIMIT_S = 120.0


def _ask(context: "zmq.Context[zmq.Socket[bytes]]", address: str, mirror: EventMirror) -> None:
    """Ask until there is an answer: a server that starts again is away for a while."""
    for _ in range(int(_LIMIT_S)):
        with context.socket(zmq.DEALER) as questions:
            questions.linger = 0
            questions.connect(replay_address(address))
            questions.send(cache_question_codec().encode(mirror.question()))
            if questions.poll(1000):
                mirror.take_replay(from_cache_codec().decode(questions.recv()))
                return
    raise AssertionError(f"no answer at {address}")


def _until(is_so: Callable[[], bool], what: str) -> None:
    ends_at_s = time.monotonic() + _LIMIT_S
    while not is_so():
        assert time.monotonic() < ends_at_s, what
        time.sleep(0.1)


def test_a_server_tells_what_it_caches_and_starts_again_with_nothing(tmp_path: Path) -> None:
    model = write_tiny_model(tmp_path / "tiny")
    address = f"ipc://{tmp_path}/events"
    port = free_port()
    url = f"http://127.0.0.1:{port}/generate"
    body = {
        "text": "Once upon a time there was a page " * 8,
        "sampling_params": {"max_new_tokens": 40, "temperature": 0, "ignore_eos": True},
    }
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    mirror = EventMirror()
    with Launched(
        *("serve", str(model), "--http-port", str(port), "--threads", "1"),
        *("--cache-events", address, "--cache-eviction", "slru"),
        log=tmp_path / "log",
        admin_port=free_port(),
    ) as served:
        served.until_ready()
        _ask(context, address, mirror)
        assert (mirror.num_snapshots, mirror.hashes) == (1, set())
        answer = httpx.post(url, json=body, timeout=120).json()
        usage = answer["meta_info"]
        _ask(context, address, mirror)
        num_tokens = usage["prompt_tokens"] + usage["completion_tokens"]
        assert len(mirror.hashes) == (num_tokens - 1) // 16, "every whole page that was computed"
        assert (mirror.num_snapshots, mirror.num_replayed > 0) == (1, True)

        first_life = mirror.instance_id
        os.kill(served.pid_of("scheduler"), signal.SIGKILL)

        def is_served() -> bool:
            try:
                return httpx.post(url, json=body, timeout=120).status_code == 200
            except httpx.TransportError:
                return False

        _until(is_served, "not served again")
        _ask(context, address, mirror)
        assert mirror.instance_id != first_life
        assert mirror.num_snapshots == 2
        assert len(mirror.hashes) == (num_tokens - 1) // 16
    context.destroy(linger=0)


@pytest.mark.parametrize(
    ("address", "refusal"),
    [
        ("tcp://0.0.0.0:5557", "leaves this machine without protection"),
        ("5557", "is no address"),
        ("tcp://127.0.0.1:65535", "needs a port from 1 on"),
    ],
)
def test_an_address_that_cannot_be_is_refused_at_the_start(
    tmp_path: Path, address: str, refusal: str
) -> None:
    model = write_tiny_model(tmp_path / "tiny")
    with Launched(
        *("serve", str(model), "--http-port", str(free_port()), "--cache-events", address),
        log=tmp_path / "log",
        admin_port=free_port(),
    ) as served:
        assert served.process.wait(timeout=_LIMIT_S) != 0
    told = (tmp_path / "log").read_text()
    assert "--cache-events" in told
    assert refusal in told
