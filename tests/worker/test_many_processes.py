"""Several fronts behind one port and several ranks: whoever dies or hangs, streams stay right."""

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.worker.launched import Launched, free_port, streaming, write_tiny_model

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

NUM_STREAMS = 6
ADMIN_KEY = "a-key-of-this-test-0123456789"
PROMPTS = [f"Story {number} begins" for number in range(NUM_STREAMS)]


def _body(prompt: str, num_tokens: int = 1500) -> dict[str, object]:
    sampling = {"max_new_tokens": num_tokens, "temperature": 0, "ignore_eos": True}
    return {"text": prompt, "sampling_params": sampling}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Launched, str]]:
    folder = tmp_path_factory.mktemp("many")
    port = free_port()
    key = folder / "admin.key"
    key.write_text(ADMIN_KEY)
    with Launched(
        *("serve", str(write_tiny_model(folder / "tiny")), "--http-port", str(port)),
        *("--threads", "2", "--tokenizer-workers", "2", "--data-parallel-size", "2"),
        *("--stuck-limit", "3", "--drain-mode", "finish"),
        *("--admin-key-file", str(key)),
        log=folder / "log",
        admin_port=free_port(),
    ) as launched:
        launched.until_ready()
        yield launched, f"http://127.0.0.1:{port}"
        pids = [pid for part in ("scheduler", "http_api") for pid in launched.pids_of(part)]
        assert launched.terminate() == 0
        assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


@pytest.fixture(scope="module")
def whole(served: tuple[Launched, str]) -> dict[str, object]:
    """What each prompt's answer is when nothing happens."""
    _, url = served
    return {
        prompt: httpx.post(f"{url}/generate", json=_body(prompt), timeout=120).json()["output_ids"]
        for prompt in PROMPTS
    }


def _streams(url: str, disturb: Callable[[], None]) -> list[object]:
    """Stream every prompt at once, disturb when all have begun; give each last event or error."""
    begun = threading.Barrier(NUM_STREAMS + 1, timeout=60)

    def follow(prompt: str) -> object:
        last: dict[str, object] = {}
        try:
            with streaming(url, _body(prompt)) as events:
                for place, event in enumerate(events):
                    last = event
                    if place == 1:
                        begun.wait()
        except httpx.HTTPError as error:
            return error
        return last["output_ids"]

    with ThreadPoolExecutor(NUM_STREAMS) as pool:
        following = [pool.submit(follow, prompt) for prompt in PROMPTS]
        begun.wait()
        disturb()
        return [one.result() for one in following]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_streams_go_on_without_a_rank(
    served: tuple[Launched, str], whole: dict[str, object], number: signal.Signals
) -> None:
    launched, url = served
    launched.until_ready()
    before = launched.pids_of("scheduler")
    assert len(before) == 2
    assert _streams(url, lambda: os.kill(before[0], number)) == list(whole.values())
    launched.until(lambda: len(launched.pids_of("scheduler")) == 2, 60)
    launched.until(lambda: before[0] not in launched.pids_of("scheduler"), 60)
    launched.until_ready()
    if number is signal.SIGSTOP:
        stuck = _metric(launched, "mizzen_stuck_processes_total")
        assert sum(stuck.values()) == 1


@pytest.mark.parametrize("part", ["http_api", "detokenizer"])
def test_a_front_that_dies_takes_no_connection_and_no_other_stream_along(
    served: tuple[Launched, str], whole: dict[str, object], part: str
) -> None:
    launched, url = served
    launched.until_ready()
    victim = launched.pids_of(part)[0]

    def disturb() -> None:
        os.kill(victim, signal.SIGKILL)
        for _ in range(20):
            assert httpx.get(f"{url}/v1/models", timeout=10).status_code == 200

    outcomes = _streams(url, disturb)
    for outcome, expected in zip(outcomes, whole.values(), strict=True):
        assert outcome == expected or (part == "http_api" and isinstance(outcome, httpx.HTTPError))
    launched.until(
        lambda: victim not in launched.pids_of(part) and len(launched.pids_of(part)) == 2, 60
    )
    launched.until_ready()


def test_metrics_add_up_over_processes_and_their_lives(served: tuple[Launched, str]) -> None:
    launched, url = served
    launched.until_ready()
    total = "mizzen_http_requests_total"

    def count() -> float:
        return sum(
            value
            for labels, value in _metric(launched, total).items()
            if dict(labels)["route"] == "/v1/completions"
        )

    before = count()
    for _ in range(10):
        httpx.get(f"{url}/v1/completions")
    launched.until(lambda: count() == before + 10, 20)
    os.kill(launched.pids_of("http_api")[0], signal.SIGKILL)
    launched.until(lambda: len(_metric(launched, "mizzen_process_up")) == 6, 20)
    assert count() == before + 10
    launched.until_ready()


def test_admin_routes_reach_every_process(served: tuple[Launched, str]) -> None:
    launched, url = served
    launched.until_ready()
    info = httpx.get(f"{launched.admin}/server_info").json()
    assert set(info["processes"]) == {
        *("front-0", "front-1", "detokenizer-0", "detokenizer-1", "rank-0", "rank-1"),
    }
    assert all(process["pid"] for process in info["processes"].values())
    assert info["status"] == "ready"
    assert info["max_total_num_tokens"] > 0
    unknown = httpx.post(f"{launched.admin}/abort_request", json={"rid": "nobody"})
    assert (unknown.status_code, unknown.json()["num_aborted"]) == (404, 0)
    for _ in range(4):
        body = {**_body("Once", 4000), "stream": True}
        with httpx.stream("POST", f"{url}/generate", json=body, timeout=60) as got:
            aborted = httpx.post(
                f"{launched.admin}/abort_request",
                json={"rid": got.headers["x-request-id"]},
            )
            assert (aborted.status_code, aborted.json()["num_aborted"]) == (200, 1)
            got.read()
    assert httpx.post(f"{url}/generate", json=_body("Once", 64), timeout=60).status_code == 200
    flushed = httpx.post(f"{launched.admin}/flush_cache").json()
    assert (flushed["flushed"], flushed["failed"]) == (2, {})
    assert flushed["freed_kv_tokens"] > 0
    assert httpx.post(f"{launched.admin}/flush_cache").json()["freed_kv_tokens"] == 0


def test_public_admin_routes_and_metrics_reach_every_front(served: tuple[Launched, str]) -> None:
    launched, url = served
    launched.until_ready()
    headers = {"Authorization": f"Bearer {ADMIN_KEY}"}
    for count in range(4):
        body = {**_body("Once", 4000), "stream": True, "rid": f"mine-{count}"}
        with httpx.stream("POST", f"{url}/generate", json=body, timeout=60) as got:
            lines = got.iter_lines()
            next(lines)
            info = httpx.get(f"{url}/server_info", headers=headers).json()
            assert info["live_requests"] == 1
            assert info.keys() == httpx.get(f"{launched.admin}/server_info").json().keys()
            wanted = {"rid": f"mine-{count}"} if count < 3 else {"abort_all": True}
            aborted = httpx.post(f"{url}/abort_request", json=wanted, headers=headers)
            assert (aborted.status_code, aborted.json()) == (200, {"num_aborted": 1})
            assert list(lines)
    texts = {httpx.get(f"{url}/metrics", headers=headers).text for _ in range(6)}
    for text in texts:
        assert "mizzen_http_requests_total" in text
        assert "mizzen_process_up" not in text


def _metric(launched: Launched, name: str) -> dict[tuple[tuple[str, str], ...], float]:
    """Give the samples of a metric by labels; no sample may be there twice."""
    text = httpx.get(f"{launched.admin}/metrics").text
    found: dict[tuple[tuple[str, str], ...], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name:
                labels = tuple(sorted(sample.labels.items()))
                assert labels not in found
                found[labels] = sample.value
    return found
