"""Serving in one process over real HTTP: answers, streams, usage, stop strings, disconnects."""

import asyncio
import json
from pathlib import Path

import httpx
import openai
import pytest
from tests.worker.byte_vocabulary import TEMPLATE
from tests.worker.front_stack import MODEL, Stack

from mizzen_worker.tokenizer.chat_template import ChatTemplate

CHAT = [{"role": "user", "content": "Grüße, wie geht's? 🙂"}]
PROMPT = ChatTemplate(TEMPLATE, bos_token="", eos_token="").render(CHAT)


def sdk(stack: Stack) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0)


def test_chat_through_the_openai_sdk(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path) as stack, sdk(stack) as client:
            assert [model.id async for model in await client.models.list()] == [MODEL]
            answer = await client.chat.completions.create(
                model=MODEL, messages=CHAT, temperature=0, max_tokens=40
            )
            expected = stack.expected_text(PROMPT, max_new_tokens=40)
            assert answer.choices[0].message.content == expected
            assert answer.choices[0].finish_reason in {"length", "stop"}
            assert answer.usage is not None
            assert answer.usage.completion_tokens == len(
                stack.expected_ids(PROMPT, max_new_tokens=40)
            )
            assert answer.usage.prompt_tokens == len(stack.vocabulary.tokenizer.encode(PROMPT).ids)
            again = await client.chat.completions.create(
                model=MODEL, messages=CHAT, temperature=0, max_completion_tokens=40
            )
            assert again.choices[0].message.content == expected
            assert again.usage is not None
            assert again.usage.prompt_tokens_details is not None
            assert (again.usage.prompt_tokens_details.cached_tokens or 0) > 0

    asyncio.run(scenario())


def test_streamed_chat_gives_the_same_text_and_usage(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path) as stack, sdk(stack) as client:
            stream = await client.chat.completions.create(
                model=MODEL,
                messages=CHAT,
                temperature=0,
                max_tokens=60,
                stream=True,
                stream_options={"include_usage": True},
            )
            chunks = [chunk async for chunk in stream]
            text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
            assert text == stack.expected_text(PROMPT, max_new_tokens=60)
            assert chunks[0].choices[0].delta.role == "assistant"
            assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == "length"
            assert chunks[-1].usage is not None
            assert chunks[-1].usage.completion_tokens == 60

    asyncio.run(scenario())


def test_seed_makes_sampling_repeatable_and_temperature_matters(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path) as stack, sdk(stack) as client:

            async def ask(seed: int | None) -> str:
                answer = await client.completions.create(
                    model=MODEL, prompt="abc", temperature=1, seed=seed, max_tokens=20
                )
                return answer.choices[0].text

            assert await ask(7) == await ask(7)
            assert await ask(7) != await ask(8)
            assert await ask(None) != await ask(None)

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["no_stop_trim", "include_stop_str_in_output"])
def test_a_stop_string_is_shown_when_asked_by_either_name(tmp_path: Path, name: str) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path) as stack, httpx.AsyncClient(base_url=stack.url) as client:
            whole = stack.expected_text("abc", max_new_tokens=200, ignore_eos=True)
            body = {"model": MODEL, "prompt": "abc", "temperature": 0, "max_tokens": 200}
            body |= {"stop": whole[30:33], "ignore_eos": True}
            texts = []
            for wanted in (True, False):
                answer = await client.post("/v1/completions", json={**body, name: wanted})
                texts.append(answer.json()["choices"][0]["text"])
            end = whole.index(whole[30:33])
            assert texts == [whole[: end + 3], whole[:end]]

    asyncio.run(scenario())


def test_stop_string_ends_the_text_before_it_and_aborts_the_worker(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path) as stack, sdk(stack) as client:
            whole = stack.expected_text("abc", max_new_tokens=200, ignore_eos=True)
            stop = whole[30:33]
            answer = await client.completions.create(
                model=MODEL,
                prompt="abc",
                temperature=0,
                max_tokens=200,
                stop=[stop],
                extra_body={"ignore_eos": True},
            )
            choice = answer.choices[0]
            assert choice.text == whole[: whole.index(stop)]
            assert choice.finish_reason == "stop"
            assert choice.model_extra is not None
            assert choice.model_extra["matched_stop"] == stop
            assert answer.usage is not None
            assert 0 < answer.usage.completion_tokens < 200
            await stack.until(lambda: stack.num_running == 0)

    asyncio.run(scenario())


def test_several_prompts_in_one_completion(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path) as stack, sdk(stack) as client:
            prompts = ["one", "two", "three"]
            expected = [stack.expected_text(prompt, max_new_tokens=10) for prompt in prompts]
            answer = await client.completions.create(
                model=MODEL, prompt=prompts, temperature=0, max_tokens=10
            )
            assert [choice.text for choice in answer.choices] == expected
            stream = await client.completions.create(
                model=MODEL, prompt=prompts, temperature=0, max_tokens=10, stream=True
            )
            texts = ["", "", ""]
            async for chunk in stream:
                texts[chunk.choices[0].index] += chunk.choices[0].text
            assert texts == expected

    asyncio.run(scenario())


def test_native_generate_unary_stream_and_batch(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path) as stack, httpx.AsyncClient(base_url=stack.url) as client:
            sampling = {"max_new_tokens": 12, "temperature": 0, "ignore_eos": True}
            body = {"text": "abc", "sampling_params": sampling, "rid": "mine"}
            unary = (await client.post("/generate", json=body)).json()
            ids = stack.expected_ids("abc", max_new_tokens=12, ignore_eos=True)
            assert unary["output_ids"] == ids
            assert unary["text"] == stack.expected_text("abc", max_new_tokens=12, ignore_eos=True)
            assert unary["meta_info"]["id"] == "mine"
            assert unary["meta_info"]["completion_tokens"] == len(ids)
            assert unary["meta_info"]["finish_reason"] == {"type": "length", "length": 12}
            streamed = await client.post("/generate", json={**body, "stream": True})
            events = [
                line.removeprefix("data: ")
                for line in streamed.text.split("\n\n")
                if "data" in line
            ]
            assert events[-1] == "[DONE]"
            last = json.loads(events[-2])
            assert last["text"] == unary["text"]
            assert last["output_ids"] == ids
            prompt_ids = stack.vocabulary.tokenizer.encode("abc").ids
            batch = await client.post(
                "/generate",
                json={"input_ids": [prompt_ids, prompt_ids[:2]], "sampling_params": sampling},
            )
            assert [one["text"] for one in batch.json()] == [
                unary["text"],
                stack.expected_text("ab", max_new_tokens=12, ignore_eos=True),
            ]

    asyncio.run(scenario())


@pytest.mark.parametrize("stream", [True, False])
def test_client_that_leaves_ends_its_request(tmp_path: Path, *, stream: bool) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path, step_s=0.01) as stack:
            body = {
                "text": "abc",
                "stream": stream,
                "sampling_params": {"max_new_tokens": 400, "ignore_eos": True},
            }
            async with httpx.AsyncClient(base_url=stack.url) as client:
                request = asyncio.create_task(_read(client, body))
                await stack.until(lambda: stack.num_running == 1)
                request.cancel()
                await asyncio.gather(request, return_exceptions=True)
            await stack.until(lambda: stack.num_running == 0, limit_s=3)
            assert stack.manager.num_live == 0
            assert stack.texts.num_open == 0

    asyncio.run(scenario())


async def _read(client: httpx.AsyncClient, body: dict[str, object]) -> None:
    async with client.stream("POST", "/generate", json=body, timeout=60) as response:
        async for _ in response.aiter_lines():
            pass


def test_probes_and_metrics_of_the_public_port(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path) as stack, httpx.AsyncClient(base_url=stack.url) as client:
            for path in ("/health", "/health/ready", "/health/startup"):
                assert (await client.get(path)).status_code == 200
            body = {"text": "abc", "sampling_params": {"max_new_tokens": 5, "ignore_eos": True}}
            await client.post("/generate", json=body)
            metrics = (await client.get("/metrics")).text
            assert 'mizzen_requests_finished_total{reason="length"} 1.0' in metrics
            assert "mizzen_time_to_first_token_seconds_count 1.0" in metrics
            assert 'mizzen_http_requests_total{route="/generate",status="200"} 1.0' in metrics
            assert 'mizzen_http_request_seconds_total{route="/generate"}' in metrics
            assert "mizzen_http_open_requests 1.0" in metrics
            await client.get("/v1/models/other")
            await client.get("/scan/me")
            metrics = (await client.get("/metrics")).text
            assert '{route="/v1/models/{name:path}",status="404"} 1.0' in metrics
            assert '{route="other",status="404"} 1.0' in metrics
            stack.kill_worker("memory://a")
            await stack.until(lambda: not stack.manager.is_accepting)
            assert (await client.get("/health")).status_code == 200
            assert (await client.get("/health/ready")).status_code == 503

    asyncio.run(scenario())
