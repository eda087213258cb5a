"""Workers that die, drain or are full: the text stays the same, or the refusal is clear."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from tests.worker.front_stack import Stack

from mizzen_worker.contracts.drain import DrainMode
from mizzen_worker.http_api.engine import HttpLimits
from mizzen_worker.tokenizer.manager_settings import ManagerSettings

SAMPLING = {"max_new_tokens": 120, "temperature": 0, "ignore_eos": True}
STEP_S = 0.002
TWO = ("memory://a", "memory://b")


async def _generate(stack: Stack, text: str = "abc") -> httpx.Response:
    async with httpx.AsyncClient(base_url=stack.url, timeout=30) as client:
        return await client.post("/generate", json={"text": text, "sampling_params": SAMPLING})


def _busy(stack: Stack) -> str:
    return next(name for name, loop in stack.loops.items() if loop.load.running_requests)


async def _disturbed(stack: Stack, disturb: Callable[[Stack], None]) -> httpx.Response:
    request = asyncio.create_task(_generate(stack))
    await stack.until(lambda: stack.num_running == 1)
    state = next(iter(stack.manager._states.values()))
    await stack.until(lambda: state.num_output > 20)
    disturb(stack)
    return await request


def _kill(stack: Stack) -> None:
    stack.kill_worker(_busy(stack))


def _kill_and_restart(stack: Stack) -> None:
    address = _busy(stack)
    stack.kill_worker(address)
    stack.start_worker(address)


def _hand_back(stack: Stack) -> None:
    stack.drain_worker(_busy(stack), DrainMode.HANDBACK)


def _lose_texts(stack: Stack) -> None:
    for request_id in list(stack.texts._texts):
        del stack.texts._texts[request_id]
    stack.manager.on_texts_lost()


@pytest.mark.parametrize(
    ("addresses", "disturb"),
    [
        (TWO, _kill),
        (TWO[:1], _kill_and_restart),
        (TWO, _hand_back),
        (TWO[:1], _lose_texts),
    ],
)
def test_text_is_whole_after(
    tmp_path: Path, addresses: tuple[str, ...], disturb: Callable[[Stack], None]
) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path, addresses=addresses, step_s=STEP_S) as stack:
            answer = await _disturbed(stack, disturb)
            expected = stack.expected_ids("abc", max_new_tokens=120, ignore_eos=True)
            assert answer.status_code == 200
            assert answer.json()["output_ids"] == expected
            assert answer.json()["text"] == stack.vocabulary.tokenizer.decode(expected)
            assert answer.json()["meta_info"]["completion_tokens"] == 120

    asyncio.run(scenario())


def test_stream_says_it_is_alive_and_ends_with_a_typed_error(tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = ManagerSettings(resume_timeout_s=0.5)
        async with Stack(tmp_path, manager_settings=settings, step_s=STEP_S) as stack:
            body = {"text": "abc", "sampling_params": SAMPLING, "stream": True}
            lines: list[str] = []
            async with (
                httpx.AsyncClient(base_url=stack.url, timeout=30) as client,
                client.stream("POST", "/generate", json=body) as response,
            ):
                async for line in response.aiter_lines():
                    lines.append(line)
                    if len(lines) == 20:
                        _kill(stack)
            assert response.status_code == 200
            assert lines[-2] == "data: [DONE]"
            assert "the worker was lost and no equal one came within" in lines[-4]

    asyncio.run(scenario())


def test_full_queues_are_429_and_no_worker_is_503_with_retry_after(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path, max_running=1, max_queued=1, step_s=STEP_S) as stack:
            answers = await asyncio.gather(*(_generate(stack) for _ in range(6)))
            statuses = sorted(answer.status_code for answer in answers)
            assert statuses[0] == 200
            assert statuses[-1] == 429
            refused = next(answer for answer in answers if answer.status_code == 429)
            assert int(refused.headers["Retry-After"]) >= 1
            assert "queue is full" in refused.json()["error"]["message"]
            stack.kill_worker("memory://a")
            await stack.until(lambda: not stack.manager.is_accepting)
            gone = await _generate(stack)
            assert gone.status_code == 503
            assert int(gone.headers["Retry-After"]) >= 1
            assert gone.headers["Connection"] == "close"

    asyncio.run(scenario())


def test_too_many_live_requests_are_429(tmp_path: Path) -> None:
    async def scenario() -> None:
        settings = ManagerSettings(max_live_requests=1)
        async with Stack(tmp_path, manager_settings=settings, step_s=STEP_S) as stack:
            first = asyncio.create_task(_generate(stack))
            await stack.until(lambda: stack.manager.num_live == 1)
            refused = await _generate(stack)
            assert refused.status_code == 429
            assert "1 requests are live" in refused.json()["error"]["message"]
            assert (await first).status_code == 200

    asyncio.run(scenario())


def test_a_front_that_leaves_serves_and_does_not_say_that_it_is_ready(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path) as stack, httpx.AsyncClient(base_url=stack.url) as client:
            assert (await client.get("/health/ready")).status_code == 200
            stack.manager.leave()
            assert (await client.get("/health/ready")).status_code == 503
            assert (await _generate(stack)).status_code == 200

    asyncio.run(scenario())


def test_a_front_without_time_ends_what_is_live_with_an_error(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path, step_s=STEP_S) as stack:
            first = asyncio.create_task(_generate(stack))
            await stack.until(lambda: stack.manager.num_live == 1)
            stack.manager.end_all()
            ended = await first
            assert ended.status_code == 503
            assert "had to end before the answer was whole" in ended.json()["error"]["message"]
            assert stack.manager.num_live == 0
            late = await _generate(stack)
            assert late.status_code == 503
            assert "shutting down" in late.json()["error"]["message"]

    asyncio.run(scenario())


def test_a_new_request_waits_for_a_worker_that_comes_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path, limits=HttpLimits(worker_wait_s=20)) as stack:
            stack.kill_worker("memory://a")
            await stack.until(lambda: not stack.manager.is_accepting)
            request = asyncio.create_task(_generate(stack))
            await asyncio.sleep(0.2)
            assert not request.done()
            stack.start_worker("memory://a")
            answer = await request
            assert answer.status_code == 200
            assert answer.json()["text"] == stack.expected_text("abc", **SAMPLING)

    asyncio.run(scenario())
