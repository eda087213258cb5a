"""``/v1/messages`` through the official SDK: answers, streams, stops, counts, errors."""

import asyncio
from pathlib import Path
from typing import Any

import anthropic
import httpx
import pytest
from tests.worker.byte_vocabulary import TEMPLATE
from tests.worker.front_stack import MODEL, Stack

from mizzen_worker.tokenizer.chat_template import ChatTemplate

USER: list[Any] = [{"role": "user", "content": [{"type": "text", "text": "Grüße 🙂"}]}]
RENDERED = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Grüße 🙂"}]
PROMPT = ChatTemplate(TEMPLATE, bos_token="", eos_token="").render(RENDERED)
URL = "/v1/messages"


def sdk(stack: Stack) -> anthropic.AsyncAnthropic:
    return anthropic.AsyncAnthropic(base_url=stack.url, api_key="none", max_retries=0)


def test_a_message_its_usage_and_its_cache(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path) as stack, sdk(stack) as client:
            for is_cached in (False, True):
                answer = await client.messages.create(
                    model=MODEL,
                    max_tokens=40,
                    system="Be brief.",
                    messages=USER,
                    extra_body={"temperature": 0},
                )
                (block,) = answer.content
                assert block.type == "text"
                assert block.text == stack.expected_text(PROMPT, max_new_tokens=40)
                assert answer.stop_reason in {"max_tokens", "end_turn"}
                usage = answer.usage
                num_prompt = len(stack.vocabulary.tokenizer.encode(PROMPT).ids)
                cached = usage.cache_read_input_tokens or 0
                assert usage.input_tokens + cached == num_prompt
                assert (cached > 0) == is_cached
                assert answer._request_id
            count = await client.messages.count_tokens(
                model=MODEL, system="Be brief.", messages=USER
            )
            assert count.input_tokens == num_prompt

    asyncio.run(scenario())


def test_a_stream_has_every_event_in_order_and_adds_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path) as stack, sdk(stack) as client:
            async with client.messages.stream(
                model=MODEL,
                max_tokens=50,
                system="Be brief.",
                messages=USER,
                extra_body={"ignore_eos": True, "temperature": 0},
            ) as stream:
                kinds = [event.type async for event in stream]
                final = await stream.get_final_message()
            raw = [kind for kind in kinds if kind != "text"]
            assert raw[:2] == ["message_start", "content_block_start"]
            assert set(raw[2:-3]) == {"content_block_delta"}
            assert raw[-3:] == ["content_block_stop", "message_delta", "message_stop"]
            expected = stack.expected_text(PROMPT, max_new_tokens=50, ignore_eos=True)
            assert final.content[0].type == "text"
            assert final.content[0].text == expected
            assert final.stop_reason == "max_tokens"
            assert final.usage.output_tokens == 50

    asyncio.run(scenario())


def test_stop_sequences_and_a_begun_answer(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path) as stack, sdk(stack) as client:
            prompt = PROMPT + "Well"
            whole = stack.expected_text(prompt, max_new_tokens=100, ignore_eos=True)
            stop = whole[20:23]
            answer = await client.messages.create(
                model=MODEL,
                max_tokens=100,
                system="Be brief.",
                messages=[*USER, {"role": "assistant", "content": "Well"}],
                stop_sequences=[stop],
                extra_body={"ignore_eos": True, "temperature": 0},
            )
            assert answer.content[0].type == "text"
            assert answer.content[0].text == whole[: whole.index(stop)]
            assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", stop)

    asyncio.run(scenario())


def test_the_sdk_raises_its_own_errors(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path) as stack, sdk(stack) as client:
            with pytest.raises(anthropic.NotFoundError) as missing:
                await client.messages.create(model="x", max_tokens=5, messages=USER)
            assert missing.value.type == "not_found_error"
            with pytest.raises(anthropic.BadRequestError, match="max_tokens is 9999"):
                await client.messages.create(model=MODEL, max_tokens=9999, messages=USER)
            stack.kill_worker("memory://a")
            await stack.until(lambda: not stack.manager.is_accepting)
            with pytest.raises(anthropic.APIStatusError) as away:
                await client.messages.create(model=MODEL, max_tokens=5, messages=USER)
            assert away.value.status_code == 503
            assert away.value.response.headers["retry-after"]

    asyncio.run(scenario())


def test_models_speak_to_anthropics_client_in_its_own_shape(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path) as stack, sdk(stack) as client:
            assert [one.id async for one in client.models.list()] == [MODEL]
            model = await client.models.retrieve(MODEL)
            assert (model.display_name, model.max_input_tokens) == (MODEL, 512)
            with pytest.raises(anthropic.NotFoundError, match="is not served here"):
                await client.models.retrieve("other")

    asyncio.run(scenario())


CASES: tuple[tuple[dict[str, Any], str], ...] = (
    ({"max_tokens": None}, "max_tokens is None"),
    ({"messages": []}, "messages"),
    ({"messages": [{"role": "system", "content": "a"}]}, "messages[0].role is 'system'"),
    ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "reads text only"),
    ({"temperature": 1.5}, "temperature is 1.5"),
    ({"tools": [{"name": "f"}]}, "tools is"),
    ({"tool_choice": {"type": "any"}}, "tool_choice is"),
    ({"thinking": {"type": "enabled", "budget_tokens": 1024}}, "thinking is"),
    ({"mcp_servers": [{"url": "x"}]}, "mcp_servers is"),
    ({"stop_sequence": ["a"]}, "did you mean stop_sequences?"),
    ({"timeout_s": -1}, "timeout_s is -1"),
)


def test_bad_input_is_one_sentence_in_anthropics_shape(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path) as stack, httpx.AsyncClient(base_url=stack.url) as client:
            base = {"model": MODEL, "max_tokens": 5, "messages": USER}
            for fields, sentence in CASES:
                answer = await client.post(URL, json={**base, **fields})
                body = answer.json()
                assert answer.status_code == 400, (fields, body)
                assert body["type"] == "error"
                assert body["error"]["type"] == "invalid_request_error"
                assert sentence in body["error"]["message"], (fields, body)
            neutral = {"tools": [], "thinking": {"type": "disabled"}, "metadata": {"user_id": "u"}}
            answer = await client.post(URL, json={**base, **neutral, "service_tier": "auto"})
            assert answer.status_code == 200, answer.text
            for path, method, status in ((URL, "GET", 405), (f"{URL}/batches", "POST", 404)):
                answer = await client.request(method, path)
                assert answer.status_code == status
                assert answer.json()["type"] == "error"

    asyncio.run(scenario())
