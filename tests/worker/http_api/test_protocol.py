"""What is no proper request of any API: each answer in its API's own shape, and never a fault."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from tests.worker.front_stack import MODEL, Stack

JSON = {"Content-Type": "application/json"}
ROUTES = ("/v1/chat/completions", "/v1/messages", "/generate", "/tokenize")
BODIES: tuple[tuple[bytes, dict[str, str], int, str], ...] = (
    (b"", JSON, 400, "the body is no JSON"),
    (b"{", JSON, 400, "the body is no JSON"),
    (b"null", JSON, 400, "no JSON object"),
    (b'"a"', JSON, 400, "no JSON object"),
    (b"\xff\xfe{}", JSON, 400, "the body is no JSON"),
    (b'{"temperature": NaN}', JSON, 400, "the body is no JSON"),
    (b'{"temperature": Infinity}', JSON, 400, "the body is no JSON"),
    (b'{"temperature": 1e999}', JSON, 400, ""),
    (b'{"seed": ' + b"9" * 10_000 + b"}", JSON, 400, ""),
    (b'{"a": ' * 100_000, JSON, 400, "the body is no JSON"),
    (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", JSON, 400, ""),
    (b'{"a": ' + b"[" * 70 + b"]" * 70 + b"}", JSON, 400, "nested deeper than 64"),
    (b'{"model": "\\ud800"}', JSON, 400, "the body is no JSON"),
    (b"a=b", {"Content-Type": "application/x-www-form-urlencoded"}, 415, "send Content-Type"),
    (b"{}", {"Content-Type": "text/plain; charset=utf-8"}, 415, "'text/plain'"),
    (b"{}", {"Content-Type": ""}, 415, "content type is ''"),
)


def sentence(path: str, answer: httpx.Response) -> str:
    """Check the shape of an error and give its sentence."""
    body = answer.json()
    error = body["error"]
    if path.startswith("/v1/messages"):
        assert body.keys() == {"type", "error"}
        assert error.keys() == {"type", "message"}
    elif path.startswith("/v1/"):
        assert error.keys() == {"message", "type", "param", "code"}
    else:
        assert error.keys() == {"message", "param", "status_code"}
        assert error["status_code"] == answer.status_code
    return str(error["message"])


@pytest.mark.parametrize("path", ROUTES)
def test_bodies_that_are_none(tmp_path: Path, path: str) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path) as stack, httpx.AsyncClient(base_url=stack.url) as client:
            for content, headers, status, part in BODIES:
                answer = await client.post(path, content=content, headers=headers)
                text = sentence(path, answer)
                assert answer.status_code == status, (content[:40], text)
                assert part in text, (content[:40], text)
                assert len(text) < 400
                assert "\n" not in text

    asyncio.run(scenario())


def test_every_answer_says_the_id_of_its_request_once(tmp_path: Path) -> None:
    """Under OpenAI's and under Anthropic's name, streamed or not, also when it is refused."""
    user = [{"role": "user", "content": "a"}]
    chat = {"model": MODEL, "messages": user, "max_tokens": 2}
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": chat,
        "/v1/messages": chat,
        "/generate": {"text": "a", "sampling_params": {"max_new_tokens": 2}},
    }

    async def scenario() -> None:
        async with Stack(tmp_path) as stack, httpx.AsyncClient(base_url=stack.url) as client:
            for path, good in bodies.items():
                for body in (good, {**good, "stream": True}, {}):
                    answer = await client.post(path, json=body, headers={"X-Request-Id": "mine"})
                    assert answer.status_code == (200 if body else 400), answer.text
                    for name in ("x-request-id", "request-id"):
                        assert answer.headers.get_list(name) == ["mine"]
            drawn = (await client.get("/v1/models")).headers
            assert len(drawn["x-request-id"]) == 32
            assert drawn["request-id"] == drawn["x-request-id"]

    asyncio.run(scenario())


def test_routes_and_methods_that_are_none(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path) as stack, httpx.AsyncClient(base_url=stack.url) as client:
            for method, path, status in (
                ("GET", "/", 404),
                ("POST", "/v1/audio/speech", 404),
                ("POST", "/v1/messages/batches", 404),
                ("GET", "/v1/chat/completions", 405),
                ("DELETE", "/v1/models", 405),
                ("GET", "/v1/messages", 405),
                ("PUT", "/generate", 405),
                ("POST", "/health", 405),
                ("GET", "/generate/", 404),
                ("GET", "/%00%ff", 404),
            ):
                answer = await client.request(method, path)
                assert answer.status_code == status, (method, path)
                assert sentence(path, answer)
                assert ("allow" in answer.headers) == (status == 405)

    asyncio.run(scenario())


def test_keys_in_odd_headers_and_bodies_without_type_are_taken(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path) as stack, httpx.AsyncClient(base_url=stack.url) as client:
            body = b'{"text": "a", "sampling_params": {"max_new_tokens": 2}}'
            for headers in ({}, {"Content-Type": "application/vnd.x+json"}):
                answer = await client.post("/generate", content=body, headers=headers)
                assert answer.status_code == 200, answer.text

    asyncio.run(scenario())


def test_the_sdk_sees_full_and_absent_servers_as_what_they_are(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path, max_running=1, max_queued=1, step_s=0.01) as stack:
            wanted: dict[str, Any] = {"model": MODEL, "prompt": "a", "max_tokens": 300}
            wanted["extra_body"] = {"ignore_eos": True}
            async with openai.AsyncOpenAI(
                base_url=f"{stack.url}/v1", api_key="x", max_retries=0
            ) as client:
                many = [asyncio.create_task(client.completions.create(**wanted)) for _ in range(4)]
                await stack.until(lambda: any(task.done() for task in many))
                error = next(task.exception() for task in many if task.done())
                assert isinstance(error, openai.RateLimitError)
                assert int(error.response.headers["retry-after"]) >= 1
                for task in many:
                    task.cancel()
                await asyncio.gather(*many, return_exceptions=True)
                await stack.until(lambda: stack.num_running == 0)
                with pytest.raises(openai.APITimeoutError):
                    await client.with_options(timeout=0.05).completions.create(**wanted)
                stack.kill_worker("memory://a")
                await stack.until(lambda: not stack.manager.is_accepting)
                with pytest.raises(openai.InternalServerError) as away:
                    await client.completions.create(**wanted)
                assert away.value.status_code == 503

    asyncio.run(scenario())
