"""Administrative routes and keys over real HTTP."""

import asyncio
from pathlib import Path
from typing import Any

import anthropic
import httpx
import msgspec
import openai
import pytest
from tests.worker.front_stack import MODEL, Stack

from mizzen_worker.contracts.admin_answers import Flushed, ServerInfo
from mizzen_worker.http_api.access import AccessKeys

API, ADMIN = "api-key-api-key-1", "admin-key-admin-key"
AS_ADMIN = {"Authorization": f"Bearer {ADMIN}"}
ADMIN_ROUTES = ("/abort_request", "/flush_cache", "/get_server_info", "/server_info")
LONG = {"max_new_tokens": 400, "ignore_eos": True}
WITH_ADMIN = AccessKeys(admin=(ADMIN.encode(),))


def test_without_an_admin_key_the_routes_do_not_exist(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path) as stack, httpx.AsyncClient(base_url=stack.url) as client:
            for path in ADMIN_ROUTES:
                for method in ("GET", "POST"):
                    answer = await client.request(method, path, headers=AS_ADMIN)
                    assert answer.status_code == 404
            assert not set(ADMIN_ROUTES) & set((await client.get("/openapi.json")).json()["paths"])

    asyncio.run(scenario())


def test_with_one_they_need_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            Stack(tmp_path, keys=WITH_ADMIN) as stack,
            httpx.AsyncClient(base_url=stack.url) as client,
        ):
            for path in ADMIN_ROUTES[1:]:
                method = "POST" if path == "/flush_cache" else "GET"
                for headers in ({}, {"Authorization": "Bearer wrong-wrong-wrong"}):
                    refused = await client.request(method, path, headers=headers)
                    assert refused.status_code == 401
                    assert refused.headers["www-authenticate"] == "Bearer"
                    assert "admin key" in refused.json()["error"]["message"]
                answer = await client.request(method, path, headers=AS_ADMIN)
                assert answer.status_code == 200
            assert (await client.post("/abort_request", json={"rid": "a"})).status_code == 401
            for body in ({}, {"rid": ""}, {"rid": "a", "abort_all": True}):
                wrong = await client.post("/abort_request", json=body, headers=AS_ADMIN)
                assert wrong.status_code == 400
                assert "exactly one of rid and abort_all" in wrong.text
            info = (await client.get("/server_info", headers=AS_ADMIN)).json()
            assert info["served_model_name"] == MODEL
            assert msgspec.convert(info, ServerInfo).status == "ready"
            worker = info["processes"]["memory://a"]
            assert worker["tokenizer"]
            assert (worker["page_size"], worker["priority_preemption"]) == (4, True)

    asyncio.run(scenario())


def test_flush_forgets_the_prefix(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            Stack(tmp_path, keys=WITH_ADMIN) as stack,
            httpx.AsyncClient(base_url=stack.url) as client,
        ):
            body = {"text": "abcdefgh" * 4, "sampling_params": {"max_new_tokens": 2}}
            cached = []
            for _ in range(2):
                for _ in range(2):
                    answer = await client.post("/generate", json=body)
                    cached.append(answer.json()["meta_info"]["cached_tokens"] > 0)
                await stack.until(lambda: stack.num_running == 0)
                flushed = await client.post("/flush_cache", headers=AS_ADMIN)
                done = msgspec.convert(flushed.json(), Flushed)
                assert (done.flushed, done.failed) == (1, {})
                assert done.freed_kv_tokens > 0
            assert cached == [False, True, False, True]

    asyncio.run(scenario())


@pytest.mark.parametrize("is_streamed", [True, False])
@pytest.mark.parametrize("by", ["rid", "rid of OpenAI's", "response id", "header", "all"])
def test_abort_ends_a_request_by_each_of_its_names(
    tmp_path: Path, *, by: str, is_streamed: bool
) -> None:
    async def scenario() -> None:
        async with (
            Stack(tmp_path, keys=WITH_ADMIN, step_s=0.005) as stack,
            httpx.AsyncClient(base_url=stack.url, timeout=20) as client,
        ):
            body = {"text": "a", "sampling_params": LONG, "rid": "mine", "stream": is_streamed}
            path: str = "/generate"
            if by in {"response id", "rid of OpenAI's"}:
                path = "/v1/completions"
                body = {"model": MODEL, "prompt": "a", "max_tokens": 400, "ignore_eos": True}
                body |= {"stream": is_streamed, "rid": "ours"}
            request = asyncio.create_task(client.post(path, json=body))
            await stack.until(lambda: stack.num_running == 1)
            await stack.until(lambda: next(iter(stack.manager._states.values())).num_output > 3)
            (request_id,) = stack.manager._states
            name = {"rid": "mine", "response id": f"cmpl-{request_id}", "header": request_id}
            name["rid of OpenAI's"] = "ours"
            order: dict[str, Any] = {"abort_all": True} if by == "all" else {"rid": name[by]}
            done = await client.post("/abort_request", json=order, headers=AS_ADMIN)
            assert done.json() == {"num_aborted": 1}
            answer = await request
            assert answer.status_code == (200 if is_streamed else 400)
            assert "an administrator ended the request" in answer.text
            await stack.until(lambda: stack.num_running == 0)
            assert not stack.manager.num_live
            again = await client.post("/abort_request", json=order, headers=AS_ADMIN)
            assert again.json() == {"num_aborted": 0}

    asyncio.run(scenario())


@pytest.mark.parametrize("by", ["rid", "header"])
def test_two_requests_of_one_name_are_two_requests(tmp_path: Path, by: str) -> None:
    """Each has its own answer; an abort by the name ends those that live, and only those."""

    async def scenario() -> None:
        async with (
            Stack(tmp_path, keys=WITH_ADMIN, step_s=0.005) as stack,
            httpx.AsyncClient(base_url=stack.url, timeout=20) as client,
        ):

            def begin(text: str, num_tokens: int) -> "asyncio.Task[httpx.Response]":
                sampling = {"max_new_tokens": num_tokens, "ignore_eos": True, "temperature": 0}
                body = {"text": text, "sampling_params": sampling}
                body |= {"rid": "mine"} if by == "rid" else {}
                headers = {"X-Request-Id": "mine"} if by == "header" else {}
                return asyncio.create_task(client.post("/generate", json=body, headers=headers))

            both = [begin(text, 20) for text in ("abc", "xyz")]
            await stack.until(lambda: stack.num_running == 2)
            for text, answer in zip(("abc", "xyz"), await asyncio.gather(*both), strict=True):
                expected = stack.expected_text(text, max_new_tokens=20, ignore_eos=True)
                assert answer.json()["text"] == expected
            short, long = begin("abc", 20), begin("xyz", 400)
            await stack.until(lambda: stack.num_running == 2)
            assert (await short).status_code == 200
            order = {"rid": "mine"}
            done = await client.post("/abort_request", json=order, headers=AS_ADMIN)
            assert done.json() == {"num_aborted": 1}
            assert "an administrator ended the request" in (await long).text
            both = [begin(text, 400) for text in ("abc", "xyz")]
            await stack.until(lambda: stack.num_running == 2)
            done = await client.post("/abort_request", json=order, headers=AS_ADMIN)
            assert done.json() == {"num_aborted": 2}
            for ended in await asyncio.gather(*both):
                assert "an administrator ended the request" in ended.text
            await stack.until(lambda: not stack.manager.num_live)
            again = await client.post("/abort_request", json=order, headers=AS_ADMIN)
            assert again.json() == {"num_aborted": 0}

    asyncio.run(scenario())


def test_an_api_key_guards_everything_but_probes(tmp_path: Path) -> None:
    async def scenario() -> None:
        keys = AccessKeys(api=(API.encode(),))
        async with (
            Stack(tmp_path, keys=keys) as stack,
            httpx.AsyncClient(base_url=stack.url) as client,
        ):
            for path in ("/health", "/health/ready", "/health/startup"):
                assert (await client.get(path)).status_code == 200
            paths = (await client.get("/openapi.json", headers={"X-Api-Key": API})).json()["paths"]
            for path, operations in paths.items():
                if path.startswith("/health") and path != "/health_generate":
                    continue
                for method in operations:
                    answer = await client.request(method, path.replace("{name}", MODEL))
                    assert answer.status_code == 401, path
                    if method == "head":
                        assert not answer.content
                    elif path.startswith("/v1/messages"):
                        assert answer.json()["error"]["type"] == "authentication_error"
                    else:
                        assert "API key" in answer.json()["error"]["message"]
            user: list[Any] = [{"role": "user", "content": "a"}]
            async with openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key=API) as right:
                await right.chat.completions.create(model=MODEL, messages=user, max_tokens=2)
            async with openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key="x" * 20) as wrong:
                with pytest.raises(openai.AuthenticationError):
                    await wrong.chat.completions.create(model=MODEL, messages=user, max_tokens=2)
            async with anthropic.AsyncAnthropic(base_url=stack.url, api_key=API) as theirs:
                await theirs.messages.create(model=MODEL, messages=user, max_tokens=2)
            async with anthropic.AsyncAnthropic(base_url=stack.url, api_key="x" * 20) as others:
                with pytest.raises(anthropic.AuthenticationError):
                    await others.messages.create(model=MODEL, messages=user, max_tokens=2)

    asyncio.run(scenario())
