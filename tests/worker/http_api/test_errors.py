"""Bad input, as a table: status, the field it is about, and one clear sentence."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from tests.worker.front_stack import MODEL, Stack

from mizzen_worker.http_api.engine import HttpLimits

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"
USER = [{"role": "user", "content": "hi"}]

Case = tuple[str, Any, int, str | None, str]
CASES: tuple[Case, ...] = (
    (CHAT, {"messages": USER}, 400, "model", "model is missing"),
    (CHAT, {"model": "x", "messages": USER}, 404, "model", "this server serves 'tiny'"),
    (CHAT, {"model": "x" * 99_999, "messages": USER}, 404, "model", "model a string of 99999"),
    (CHAT, {"max_tokens": 10**200}, 400, "max_tokens", "max_tokens is a number of 201 digits"),
    (CHAT, {"model": 5, "messages": USER}, 400, "model", "model is 5: input should be a valid"),
    (CHAT, {"messages": []}, 400, "messages", "messages is []; give at least one entry"),
    (CHAT, {"messages": [{"role": "king"}]}, 400, "messages[0].role", "'king'"),
    (CHAT, {"messages": [{"content": "a"}]}, 400, "messages[0].role", "is missing"),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        400,
        "messages[0].content[0].type",
        "reads text only",
    ),
    (
        CHAT,
        {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
        400,
        "messages[0].content[0].text",
        "is missing",
    ),
    (CHAT, {"messages": [*USER, {"role": "tool", "content": ""}]}, 400, "messages[1]", "refuses"),
    (CHAT, {"temperature": 2.5}, 400, "temperature", "temperature is 2.5"),
    (CHAT, {"temperature": "hot"}, 400, "temperature", "'hot'"),
    (CHAT, {"top_p": 0}, 400, "top_p", "greater than 0"),
    (CHAT, {"top_k": -2}, 400, "top_k", "top_k is -2"),
    (CHAT, {"top_k": 2**63}, 400, "top_k", "less than or equal to"),
    (CHAT, {"priority": -(10**30)}, 400, "priority", "greater than or equal to"),
    (CHAT, {"min_p": 2}, 400, "min_p", "min_p is 2"),
    (CHAT, {"max_tokens": 0}, 400, "max_tokens", "max_tokens is 0"),
    (CHAT, {"max_tokens": 9999}, 400, "max_tokens", "ask for at most"),
    (CHAT, {"max_completion_tokens": 9999}, 400, "max_completion_tokens", "limit of 512"),
    (CHAT, {"min_tokens": 20, "max_tokens": 10}, 400, "min_tokens", "min_tokens is 20"),
    (CHAT, {"stop": ["a"] * 17}, 400, "stop", "at most 16"),
    (CHAT, {"stop": ""}, 400, "stop", "at least 1 character"),
    (CHAT, {"stop_token_ids": [999]}, 400, "stop_token_ids", "is no token of this model"),
    (CHAT, {"n": 0}, 400, "n", "greater than or equal to 1"),
    (CHAT, {"n": 129}, 400, "n", "less than or equal to 128"),
    (CHAT, {"logprobs": 3}, 400, "logprobs", "logprobs is 3"),
    (CHAT, {"top_logprobs": 3}, 400, "top_logprobs", "set logprobs to true"),
    (CHAT, {"logprobs": True, "top_logprobs": 21}, 400, "top_logprobs", "equal to 20"),
    (CHAT, {"tools": [{"type": "function"}]}, 400, "tools", "which this server does not serve"),
    (CHAT, {"tool_choice": "required"}, 400, "tool_choice", "does not serve"),
    (CHAT, {"modalities": ["text", "audio"]}, 400, "modalities", "does not serve"),
    (CHAT, {"audio": {"voice": "a"}}, 400, "audio", "does not serve"),
    (CHAT, {"functions": [{"name": "f"}]}, 400, "functions", "does not serve"),
    (CHAT, {"store": True}, 400, "store", "does not serve"),
    (CHAT, {"service_tier": "flex"}, 400, "service_tier", "does not serve"),
    (CHAT, {"reasoning_effort": "high"}, 400, "reasoning_effort", "does not serve"),
    (CHAT, {"prediction": {"type": "content"}}, 400, "prediction", "does not serve"),
    (CHAT, {"echo": True}, 400, "echo", "does not serve"),
    (CHAT, {"timeout_s": 0}, 400, "timeout_s", "greater than 0"),
    (CHAT, {"stop_regex": "a("}, 400, "stop_regex", "stop_regex"),
    (CHAT, {"continue_final_message": True}, 400, "continue_final_message", "not the assistant's"),
    (
        CHAT,
        {"messages": [*USER, {"role": "assistant", "tool_calls": [{"id": "a"}]}]},
        400,
        "messages[1].tool_calls",
        "no tools",
    ),
    (CHAT, {"response_format": {"type": "json_object"}}, 400, "response_format", "leave it out"),
    (CHAT, {"frequency_penalty": 2.5}, 400, "frequency_penalty", "frequency_penalty is 2.5"),
    (CHAT, {"presence_penalty": -3}, 400, "presence_penalty", "presence_penalty is -3"),
    (CHAT, {"repetition_penalty": 0}, 400, "repetition_penalty", "equal to 0.001"),
    (CHAT, {"logit_bias": {"5": 101}}, 400, "logit_bias", "less than or equal to 100"),
    (CHAT, {"logit_bias": {"x": 1}}, 400, "logit_bias", "'x'"),
    (CHAT, {"logit_bias": {"999": 1}}, 400, "logit_bias", "is no token of this model"),
    (
        CHAT,
        {"messages": [{"role": "user", "content": "x" * 600}]},
        400,
        "messages",
        "shorten the prompt",
    ),
    (CHAT, {"messages": [{"role": "user", "content": "x" * 90_000}]}, 400, "messages", "at least"),
    (COMPLETIONS, {"prompt": "x" * 90_000}, 400, "prompt", "has 90000 characters, which are at"),
    (COMPLETIONS, {"prompt": ["a", "x" * 90_000]}, 400, "prompt", "shorten the prompt"),
    ("/generate", {"text": ["x" * 90_000]}, 400, "text", "shorten the prompt"),
    ("/generate", {"text": "a", "rid": "r" * 257}, 400, "rid", "at most 256 characters"),
    ("/generate", {"text": "a", "rid": ["r"] * 257}, 400, "rid", "at most 256 items"),
    (CHAT, b"{", 400, None, "the body is no JSON"),
    (CHAT, b"[]", 400, None, "no JSON object"),
    (COMPLETIONS, {"prompt": None}, 400, "prompt", "prompt is None"),
    (COMPLETIONS, {"prompt": ""}, 400, "prompt", "has no tokens"),
    (COMPLETIONS, {"prompt": "x" * 600}, 400, "prompt", "shorten the prompt"),
    (COMPLETIONS, {"prompt": [5, 9999]}, 400, "prompt", "prompt[1] is 9999"),
    (COMPLETIONS, {"prompt": []}, 400, "prompt", "prompt is []; give at least one entry"),
    (COMPLETIONS, {"prompt": "a", "best_of": 3}, 400, "best_of", "best_of is 3 and n is 1"),
    (COMPLETIONS, {"prompt": "a", "suffix": "b"}, 400, "suffix", "does not serve"),
    (COMPLETIONS, {"prompt": "a", "max_tokens": 0}, 400, "max_tokens", "asks for nothing"),
    (COMPLETIONS, {"prompt": ["a"] * 3, "n": 100}, 400, "n", "300 answers for 3 prompts"),
    (COMPLETIONS, {"prompt": "a", "logprobs": True}, 400, "logprobs", "logprobs is True"),
    ("/generate", {}, 400, "text", "exactly one of text and input_ids"),
    ("/generate", {"text": "a", "input_ids": [1]}, 400, "text", "exactly one"),
    ("/generate", {"text": ""}, 400, "text", "has no tokens"),
    ("/generate", {"input_ids": [5] * 600}, 400, "input_ids", "shorten the prompt"),
    (
        "/generate",
        {"text": "a", "sampling_params": {"min_new_tokens": 9, "max_new_tokens": 8}},
        400,
        "sampling_params.min_new_tokens",
        "is 9, more than the 8 tokens",
    ),
    ("/generate", {"input_ids": [9999]}, 400, "input_ids", "is no token"),
    (
        "/generate",
        {"text": "a", "sampling_params": {"temperature": -1}},
        400,
        "sampling_params.temperature",
        "is -1",
    ),
    (
        "/generate",
        {"text": "a", "sampling_params": {"regex": "a+"}},
        400,
        "sampling_params.regex",
        "does not serve",
    ),
    (
        "/generate",
        {"text": ["a", "b"], "sampling_params": [{}]},
        400,
        "sampling_params",
        "1 entries",
    ),
    (
        "/generate",
        {"text": "a", "sampling_params": {"top_k": 2**64}},
        400,
        "sampling_params.top_k",
        "less than or equal to",
    ),
    (
        "/generate",
        {"text": "a", "sampling_params": {"temperature": 1e308}},
        400,
        "sampling_params.temperature",
        "is 1e+308: input should be less than or equal to 1000000",
    ),
    ("/generate", {"text": ["a", "b"], "rid": "one"}, 400, "rid", "rid has 1 entries"),
    ("/generate", {"text": "a", "lora_path": "x"}, 400, "lora_path", "does not serve"),
    (
        CHAT,
        {"temprature": 0},
        400,
        "temprature",
        "temprature is no parameter of this route; did you mean temperature?",
    ),
    (COMPLETIONS, {"promtp": "a"}, 400, "promtp", "did you mean prompt?"),
    (CHAT, {"tool_chioce": "auto"}, 400, "tool_chioce", "did you mean tool_choice?"),
    ("/generate", {"txt": "a", "text": "a"}, 400, "txt", "did you mean text?"),
    (
        "/generate",
        {"text": ["a", "b"], "sampling_params": [{}, {"max_tokens": 3}]},
        400,
        "sampling_params.max_tokens",
        "is no parameter of this route; did you mean sampling_params.max_new_tokens?",
    ),
    *(
        (
            "/generate",
            {"text": "a", "sampling_params": {}, name: 3},
            400,
            name,
            f"{name} stands outside of sampling_params; give sampling_params.{meant}",
        )
        for name, meant in (
            ("max_new_tokens", "max_new_tokens"),
            ("max_tokens", "max_new_tokens"),
            ("n", "n"),
            ("seed", "sampling_seed"),
        )
    ),
    (
        "/generate",
        {"text": "a", "sampling_params": {"timeout_s": 3}},
        400,
        "sampling_params.timeout_s",
        "stands inside of sampling_params; give timeout_s beside it",
    ),
    (
        "/generate",
        {"text": "a", "sampling_params": {"seed": 3}},
        400,
        "sampling_params.seed",
        "did you mean sampling_params.sampling_seed?",
    ),
    (
        "/flush_cache",
        {},
        404,
        None,
        "is no route of this server; start it with --admin-key-file, or use its admin port",
    ),
    ("/v1/nothing", {}, 404, None, "is no route of this server"),
    ("/v1/models", {}, 405, None, "does not take POST"),
)


def test_bad_input_is_one_clear_sentence(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path) as stack, httpx.AsyncClient(base_url=stack.url) as client:
            for path, body, status, param, sentence in CASES:
                given = body
                if isinstance(body, dict) and path in {CHAT, COMPLETIONS} and body:
                    base = {"model": MODEL} if path == COMPLETIONS else {"messages": USER}
                    given = {**base, **({"model": MODEL} if "messages" not in body else {}), **body}
                    if body.keys() == {"messages"} and sentence != "model is missing":
                        given["model"] = MODEL
                content = given if isinstance(given, bytes) else None
                answer = await client.post(
                    path, content=content, json=given if content is None else None
                )
                error = answer.json()["error"]
                assert answer.status_code == status, (path, body, error)
                assert error["param"] == param, (path, body, error)
                assert sentence in error["message"], (path, body, error)
                assert "\n" not in error["message"]
                if path.startswith("/v1"):
                    assert error.keys() == {"message", "type", "param", "code"}
            assert stack.manager.num_live == 0

    asyncio.run(scenario())


def test_neutral_and_unknown_fields_are_taken(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path) as stack, httpx.AsyncClient(base_url=stack.url) as client:
            body = {
                "model": MODEL,
                "messages": USER,
                "max_tokens": 3,
                "n": 1,
                "logprobs": False,
                "tools": [],
                "frequency_penalty": 0.0,
                "response_format": {"type": "text"},
                "user": "me",
                "brand_new_field": {"a": 1},
                "parallel_tool_calls": True,
                "x" * 5000: 1,
                "logit_bias": {},
                "tool_choice": "auto",
                "stop": None,
                "seed": -5,
                "top_k": -1,
            }
            answer = await client.post(CHAT, json=body)
            assert answer.status_code == 200, answer.text

    asyncio.run(scenario())


def test_a_refusal_is_logged_with_an_id_too(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", logger="mizzen_worker.http_api.app")

    async def scenario() -> None:
        async with Stack(tmp_path) as stack, httpx.AsyncClient(base_url=stack.url) as client:
            for body in ({}, {"text": "a", "sampling_params": {"max_new_tokens": 2}}):
                await client.post("/generate", json=body)

    asyncio.run(scenario())
    refused, answered = (r.__dict__ for r in caplog.records if r.message == "answered")
    assert len(refused["request_id"]) == 32
    assert answered["request_id"]


def test_the_sdk_raises_its_own_errors(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path) as stack:
            client = openai.AsyncOpenAI(base_url=f"{stack.url}/v1", api_key="x", max_retries=0)
            with pytest.raises(openai.NotFoundError) as missing:
                await client.completions.create(model="other", prompt="a")
            assert missing.value.code == "model_not_found"
            with pytest.raises(openai.BadRequestError) as long:
                await client.completions.create(model=MODEL, prompt="a", max_tokens=10_000)
            assert long.value.code == "context_length_exceeded"
            await client.close()

    asyncio.run(scenario())


@pytest.mark.parametrize("is_declared", [True, False])
def test_long_bodies_are_413(tmp_path: Path, *, is_declared: bool) -> None:
    async def pieces() -> Any:
        for _ in range(40):
            yield b"x" * 1000

    async def scenario() -> None:
        limits = HttpLimits(max_body_bytes=10_000)
        async with Stack(tmp_path, limits=limits) as stack:
            content = b"x" * 40_000 if is_declared else pieces()
            async with httpx.AsyncClient(base_url=stack.url) as client:
                answer = await client.post(CHAT, content=content)
            assert answer.status_code == 413
            assert "exceeds 10000 bytes" in answer.json()["error"]["message"]

    asyncio.run(scenario())


def test_answers_and_refusals_name_the_request_for_the_clients_of_both_vendors(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path) as stack, httpx.AsyncClient(base_url=stack.url) as client:
            good = {"text": "a", "sampling_params": {"max_new_tokens": 1}}
            for body in (good, {**good, "stream": True}, {}):
                answer = await client.post("/generate", json=body, headers={"X-Request-Id": "mine"})
                for name in ("x-request-id", "request-id"):
                    assert answer.headers.get_list(name) == ["mine"], body

    asyncio.run(scenario())
