"""n, log-probabilities, echo and usage in OpenAI's API, through the official SDK."""

import asyncio
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.worker.byte_vocabulary import TEMPLATE
from tests.worker.front_stack import MODEL, Stack

from mizzen_worker.contracts.request import LogprobParams
from mizzen_worker.http_api.inputs import choice_seed
from mizzen_worker.tokenizer.chat_template import ChatTemplate

USER: list[Any] = [{"role": "user", "content": "hä?"}]
PROMPT = ChatTemplate(TEMPLATE, bos_token="", eos_token="").render(USER)
LONG = {"ignore_eos": True}


def sdk(stack: Stack) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key="none", max_retries=0)


def test_choice_seeds_are_distinct_stable_and_small() -> None:
    seeds = {choice_seed(seed, index) for seed in range(50) for index in range(50)}
    assert len(seeds) == 2500
    assert max(seeds) < 1 << 63
    assert choice_seed(7, 0) == 7


def test_choices_of_a_chat_do_not_depend_on_how_many_there_are(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path) as stack, sdk(stack) as client:

            async def ask(n: int) -> list[str]:
                answer = await client.chat.completions.create(
                    model=MODEL, messages=USER, n=n, seed=11, max_tokens=20, extra_body=LONG
                )
                assert [choice.index for choice in answer.choices] == list(range(n))
                assert answer.usage is not None
                assert answer.usage.completion_tokens == 20 * n
                num_prompt = len(stack.vocabulary.tokenizer.encode(PROMPT).ids)
                assert answer.usage.prompt_tokens == num_prompt
                return [choice.message.content or "" for choice in answer.choices]

            four = await ask(4)
            assert len(set(four)) == 4
            assert await ask(2) == four[:2]
            stream = await client.chat.completions.create(
                model=MODEL,
                messages=USER,
                n=4,
                seed=11,
                max_tokens=20,
                stream=True,
                stream_options={"include_usage": True},
                extra_body=LONG,
            )
            texts, roles, reasons = [""] * 4, [0] * 4, [0] * 4
            async for chunk in stream:
                for choice in chunk.choices:
                    texts[choice.index] += choice.delta.content or ""
                    roles[choice.index] += choice.delta.role is not None
                    reasons[choice.index] += choice.finish_reason == "length"
                last = chunk
            assert texts == four
            assert roles == reasons == [1] * 4
            assert last.usage is not None
            assert last.usage.completion_tokens == 80

    asyncio.run(scenario())


def test_prompts_times_choices_are_numbered_prompt_by_prompt(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path) as stack, sdk(stack) as client:

            async def ask(prompt: Any, n: int) -> list[str]:
                answer = await client.completions.create(
                    model=MODEL, prompt=prompt, n=n, seed=3, max_tokens=9, extra_body=LONG
                )
                return [choice.text for choice in answer.choices]

            both = await ask(["one", "three"], 3)
            assert both == [*await ask("one", 3), *await ask("three", 3)]
            assert len(set(both)) == 6

    asyncio.run(scenario())


@pytest.mark.parametrize("is_streamed", [False, True])
def test_chat_logprobs(tmp_path: Path, *, is_streamed: bool) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path) as stack, sdk(stack) as client:
            wanted: dict[str, Any] = {
                "model": MODEL,
                "messages": USER,
                "temperature": 0,
                "max_tokens": 15,
                "logprobs": True,
                "top_logprobs": 3,
                "extra_body": LONG,
            }
            if is_streamed:
                stream = await client.chat.completions.create(stream=True, **wanted)
                content = [
                    entry
                    async for chunk in stream
                    for entry in (chunk.choices[0].logprobs or _NOTHING).content or []
                ]
            else:
                answer = await client.chat.completions.create(**wanted)
                logprobs = answer.choices[0].logprobs
                assert logprobs is not None
                content = logprobs.content or []
            ids = stack.expected_ids(PROMPT, max_new_tokens=15, ignore_eos=True)
            names = stack.vocabulary.tokenizer
            assert len(content) == len(ids)
            raw = b"".join(bytes(entry.bytes or []) for entry in content)
            assert raw.decode(errors="replace") == names.decode(ids, skip_special_tokens=False)
            expected = stack.expected(
                PROMPT, max_new_tokens=15, ignore_eos=True, logprobs=LogprobParams(num_top=3)
            )
            for entry, (logprob, top) in zip(content, expected.scores, strict=True):
                assert entry.logprob == logprob
                assert [one.logprob for one in entry.top_logprobs] == [one[1] for one in top]
                assert entry.token == bytes(entry.bytes or []).decode(errors="replace")

    asyncio.run(scenario())


class _Nothing:
    content: None = None


_NOTHING = _Nothing()


@pytest.mark.parametrize("max_tokens", [5, 0])
def test_echo_scores_the_prompt(tmp_path: Path, *, max_tokens: int) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path) as stack, sdk(stack) as client:
            prompts = ["hä?", "xyz"]
            wanted: dict[str, Any] = {
                "model": MODEL,
                "prompt": prompts,
                "temperature": 0,
                "max_tokens": max_tokens,
                "echo": True,
                "logprobs": 2,
                "extra_body": LONG,
            }
            answer = await client.completions.create(**wanted)
            for prompt, choice in zip(prompts, answer.choices, strict=True):
                expected = stack.expected_text(prompt, max_new_tokens=max_tokens, ignore_eos=True)
                assert choice.text == prompt + (expected if max_tokens else "")
                scores = choice.logprobs
                assert scores is not None
                num_tokens = len(prompt.encode()) + max_tokens
                lists = (scores.tokens, scores.token_logprobs, scores.text_offset)
                assert [len(one or []) for one in lists] == [num_tokens] * 3
                assert scores.token_logprobs is not None
                assert scores.token_logprobs[0] is None
                wanted_scores = LogprobParams(num_top=2, prompt_start=0)
                exact = stack.expected(
                    prompt, max_new_tokens=5, ignore_eos=True, logprobs=wanted_scores
                )
                known = [one[0] for one in (*exact.prompt_scores, *exact.scores)]
                assert scores.token_logprobs[1:] == known[: num_tokens - 1]
                assert scores.top_logprobs is not None
                assert [len(top or {}) for top in scores.top_logprobs[1:3]] == [2, 2]
            first = answer.choices[0].logprobs
            assert first is not None
            assert (first.tokens or [])[:4] == ["h", "bytes:\\xc3", "bytes:\\xa4", "?"]
            assert (first.text_offset or [])[:4] == [0, 1, 1, 2]
            assert answer.usage is not None
            assert answer.usage.completion_tokens == max_tokens * 2
            stream = await client.completions.create(stream=True, **wanted)
            texts = ["", ""]
            tokens: list[list[str]] = [[], []]
            async for chunk in stream:
                (choice,) = chunk.choices
                texts[choice.index] += choice.text
                scores = choice.logprobs
                tokens[choice.index] += (scores.tokens or []) if scores is not None else []
            assert texts == [choice.text for choice in answer.choices]
            assert tokens[0] == first.tokens

    asyncio.run(scenario())


def test_usage_can_come_with_every_chunk(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path) as stack, sdk(stack) as client:
            options: Any = {"include_usage": True, "continuous_usage_stats": True}
            stream = await client.chat.completions.create(
                model=MODEL,
                messages=USER,
                max_tokens=30,
                stream=True,
                stream_options=options,
                extra_body=LONG,
            )
            counts = [c.usage.completion_tokens async for c in stream if c.usage is not None]
            assert counts[0] == 0
            assert counts[-1] == 30
            assert counts == sorted(counts)
            assert stack.manager.num_live == 0

    asyncio.run(scenario())


def test_penalties_bias_and_patterns_reach_the_worker_and_the_text(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path) as stack, sdk(stack) as client:
            answer = await client.completions.create(
                model=MODEL,
                prompt="abc",
                temperature=0,
                max_tokens=6,
                logit_bias={"65": 100},
                extra_body=LONG,
            )
            ids = stack.expected_ids(
                "abc", max_new_tokens=6, ignore_eos=True, logit_bias=((65, 100.0),)
            )
            assert answer.choices[0].text == stack.vocabulary.tokenizer.decode(ids)
            whole = stack.expected_text("abc", max_new_tokens=100, ignore_eos=True)
            answer = await client.completions.create(
                model=MODEL,
                prompt="abc",
                temperature=0,
                max_tokens=100,
                extra_body={**LONG, "stop_regex": "[0-9A-Za-z]{2}"},
            )
            assert len(answer.choices[0].text) < len(whole)
            assert whole.startswith(answer.choices[0].text)
            assert answer.choices[0].finish_reason == "stop"

    asyncio.run(scenario())


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_deadline_ends_a_request_in_its_apis_way(tmp_path: Path, *, is_streamed: bool) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path, step_s=0.01) as stack, sdk(stack) as client:
            wanted: dict[str, Any] = {"model": MODEL, "prompt": "abc", "max_tokens": 400}
            wanted["extra_body"] = {**LONG, "timeout_s": 0.2}
            if is_streamed:
                texts: list[str] = []
                with pytest.raises(openai.APIError, match="time was up"):
                    await _read_into(texts, client, wanted)
                assert texts
            else:
                with pytest.raises(openai.InternalServerError) as late:
                    await client.completions.create(**wanted)
                assert late.value.status_code == 504
            wanted["extra_headers"] = {"X-Request-Timeout": "0.1"}
            with pytest.raises(openai.InternalServerError):
                await client.completions.create(**{**wanted, "extra_body": LONG})
            wanted["extra_headers"] = {"X-Request-Timeout": "soon"}
            with pytest.raises(openai.BadRequestError, match="x-request-timeout is 'soon'"):
                await client.completions.create(**wanted)
            await stack.until(lambda: stack.num_running == 0)
            assert stack.manager.num_live == 0

    asyncio.run(scenario())


def test_a_time_that_is_over_at_once_is_a_504(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path) as stack, sdk(stack) as client:
            wanted: dict[str, Any] = {"model": MODEL, "prompt": "abc", "max_tokens": 400}
            wanted["extra_body"] = {**LONG, "timeout_s": 1e-9}
            with pytest.raises(openai.InternalServerError) as late:
                await client.completions.create(**wanted)
            assert late.value.status_code == 504
            assert stack.manager.num_live == 0

    asyncio.run(scenario())


async def _read_into(texts: list[str], client: openai.AsyncOpenAI, wanted: dict[str, Any]) -> None:
    async for chunk in await client.completions.create(stream=True, **wanted):
        texts.append(chunk.choices[0].text)  # noqa: PERF401 - read until it fails


def test_a_client_that_leaves_ends_each_of_its_choices(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path, step_s=0.01) as stack:
            for is_streamed in (False, True):
                async with sdk(stack) as client:
                    asked = asyncio.create_task(_read(client, is_streamed=is_streamed))
                    await stack.until(lambda: stack.num_running == 5)
                    asked.cancel()
                    await asyncio.gather(asked, return_exceptions=True)
                await stack.until(lambda: stack.num_running == 0, limit_s=3)
                assert stack.manager.num_live == 0
                assert stack.texts.num_open == 0

    asyncio.run(scenario())
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


async def _read(client: openai.AsyncOpenAI, *, is_streamed: bool) -> None:
    wanted: dict[str, Any] = {"model": MODEL, "messages": USER, "n": 5, "max_tokens": 400}
    wanted["extra_body"] = LONG
    if not is_streamed:
        await client.chat.completions.create(**wanted)
        return
    async for _ in await client.chat.completions.create(stream=True, **wanted):
        pass
