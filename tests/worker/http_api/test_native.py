"""The native API: scores, batches, choices, streams of both kinds, ids, tokens, information."""

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.worker.byte_vocabulary import EOS_ID, TEMPLATE
from tests.worker.front_stack import MODEL, Stack

from mizzen_worker import __version__
from mizzen_worker.contracts.request import LogprobParams
from mizzen_worker.http_api.engine import HttpLimits
from mizzen_worker.tokenizer.chat_template import ChatTemplate

SAMPLING = {"max_new_tokens": 12, "temperature": 0, "ignore_eos": True}


def events(text: str) -> list[dict[str, Any]]:
    found = [line.removeprefix("data: ") for line in text.split("\n") if line]
    assert found[-1] == "[DONE]"
    return [json.loads(one) for one in found[:-1]]


@pytest.mark.parametrize("start", [-1, 0, 1, 3])
@pytest.mark.parametrize("has_text", [False, True])
def test_scores(tmp_path: Path, *, start: int, has_text: bool) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path) as stack, httpx.AsyncClient(base_url=stack.url) as client:
            body = {
                "text": "abcdef",
                "sampling_params": SAMPLING,
                "return_logprob": True,
                "logprob_start_len": start,
                "top_logprobs_num": 2,
                "return_text_in_logprobs": has_text,
            }
            answer = (await client.post("/generate", json=body)).json()
            meta = answer["meta_info"]
            wanted = LogprobParams(num_top=2, prompt_start=None if start < 0 else start)
            expected = stack.expected("abcdef", **{**SAMPLING, "logprobs": wanted})
            names = stack.vocabulary.tokenizer
            output = meta["output_token_logprobs"]
            assert [one[:2] for one in output] == [
                [score[0], token]
                for score, token in zip(expected.scores, expected.output, strict=True)
            ]
            prompt_ids = names.encode("abcdef").ids
            scored: list[Any] = [score[0] for score in expected.prompt_scores]
            values = [None, *scored] if start == 0 else scored
            ids = [] if start < 0 else prompt_ids[start:]
            shown = meta["input_token_logprobs"]
            assert [one[:2] for one in shown] == [list(p) for p in zip(values, ids, strict=True)]
            assert [one[2] for one in shown] == [
                chr(97 + start + i) if has_text else None for i in range(len(ids))
            ]
            assert len(meta["input_top_logprobs"]) == len(ids)
            assert [[one[1] for one in top] for top in meta["output_top_logprobs"]] == [
                [token for token, _ in top] for _, top in expected.scores
            ]
            streamed = await client.post("/generate", json={**body, "stream": True})
            last = events(streamed.text)[-1]
            for entry in (last["meta_info"], meta):
                entry.pop("id")
                entry.pop("e2e_latency")
                entry.pop("cached_tokens")
            assert last == answer

    asyncio.run(scenario())


def test_batches_times_choices_with_own_sampling_and_ids(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path) as stack, httpx.AsyncClient(base_url=stack.url) as client:
            body: dict[str, Any] = {
                "text": ["ab", "xyz"],
                "sampling_params": [
                    {"max_new_tokens": 3, "n": 2, "sampling_seed": 5, "ignore_eos": True},
                    {"max_new_tokens": 7, "n": 2, "temperature": 0, "ignore_eos": True},
                ],
                "rid": ["one", "two"],
                "return_logprob": [False, True],
            }
            results = (await client.post("/generate", json=body)).json()
            names = [result["meta_info"]["id"] for result in results]
            assert names == ["one_0", "one_1", "two_0", "two_1"]
            counts = [result["meta_info"]["completion_tokens"] for result in results]
            assert counts == [3, 3, 7, 7]
            assert results[0]["output_ids"] != results[1]["output_ids"]
            assert results[2]["output_ids"] == results[3]["output_ids"]
            scored = ["output_token_logprobs" in result["meta_info"] for result in results]
            assert scored == [False, False, True, True]
            streamed = events((await client.post("/generate", json={**body, "stream": True})).text)
            last = {one["index"]: one["output_ids"] for one in streamed}
            assert [last[index] for index in range(4)] == [one["output_ids"] for one in results]

    asyncio.run(scenario())


def test_a_stream_is_cumulative_unless_asked_otherwise(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with (
            Stack(tmp_path, step_s=0.002) as stack,
            httpx.AsyncClient(base_url=stack.url) as client,
        ):
            text = stack.expected_text("abc", **SAMPLING)
            body: dict[str, Any] = {"text": "abc", "sampling_params": SAMPLING, "stream": True}
            full = events((await client.post("/generate", json=body)).text)
            assert full[-1]["text"] == text
            assert all(text.startswith(one["text"]) for one in full)
            body["stream_output"] = "delta"
            delta = events((await client.post("/generate", json=body)).text)
            assert "".join(one["text"] for one in delta) == text
            counts = [one["meta_info"]["completion_tokens"] for one in delta]
            assert counts == sorted(counts)
            assert counts[-1] == 12
            ids = [token for one in delta for token in one["output_ids"]]
            assert ids == stack.expected_ids("abc", **SAMPLING)
            assert delta[-1]["meta_info"]["finish_reason"] == {"type": "length", "length": 12}

    asyncio.run(scenario())


def test_signs_of_life_do_not_disturb_clients_that_read_every_line(tmp_path: Path) -> None:
    async def scenario() -> None:
        limits = HttpLimits(keep_alive_s=0.02)
        async with (
            Stack(tmp_path, step_s=0.06, limits=limits) as stack,
            httpx.AsyncClient(base_url=stack.url, timeout=30) as client,
        ):
            body = {"text": "abc", "sampling_params": SAMPLING, "stream": True}
            answer = await client.post("/generate", json=body)
            assert "\n\n\n\n" in answer.text
            assert events(answer.text)[-1]["text"] == stack.expected_text("abc", **SAMPLING)

    asyncio.run(scenario())


def test_scoring_a_prompt_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path) as stack, httpx.AsyncClient(base_url=stack.url) as client:
            body = {
                "text": "abc",
                "sampling_params": {"max_new_tokens": 0},
                "return_logprob": True,
                "logprob_start_len": 0,
            }
            answer = (await client.post("/generate", json=body)).json()
            assert answer["text"] == ""
            assert answer["output_ids"] == []
            assert answer["meta_info"]["completion_tokens"] == 0
            assert len(answer["meta_info"]["input_token_logprobs"]) == 3
            mixed = {"text": ["a", "b"], "sampling_params": [{"max_new_tokens": 0}, {}]}
            assert (await client.post("/generate", json=mixed)).status_code == 400
            body["logprob_start_len"] = 3
            refused = await client.post("/generate", json=body)
            assert "the prompt has 3 tokens" in refused.json()["error"]["message"]

    asyncio.run(scenario())


def test_tokens_there_and_back(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path) as stack, httpx.AsyncClient(base_url=stack.url) as client:
            text = "Grüße 🙂"
            ids = stack.vocabulary.tokenizer.encode(text).ids
            one = (
                await client.post("/tokenize", json={"prompt": text, "return_token_strs": True})
            ).json()
            assert one["tokens"] == ids
            assert one["count"] == len(one["token_strs"]) == len(ids)
            assert one["max_model_len"] == 512
            assert one["token_strs"][:2] == ["G", "r"]
            several = (await client.post("/tokenize", json={"prompt": [text, "a"]})).json()
            assert several["tokens"][0] == ids
            assert several["count"] == [len(ids), 1]
            back = await client.post("/detokenize", json={"tokens": ids})
            assert back.json() == {"text": text}
            back = await client.post("/detokenize", json={"tokens": several["tokens"]})
            assert back.json() == {"text": [text, "a"]}
            back = await client.post(
                "/detokenize", json={"tokens": [*ids, EOS_ID], "skip_special_tokens": False}
            )
            assert back.json() == {"text": f"{text}<end>"}
            assert (await client.post("/detokenize", json={"tokens": []})).json() == {"text": ""}
            messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "We"}]
            template = ChatTemplate(TEMPLATE, bos_token="", eos_token="")
            for fields, prompt in (
                ({}, template.render(messages)),
                (
                    {"add_generation_prompt": False},
                    template.render(messages, add_generation_prompt=False),
                ),
                ({"continue_final_message": True}, template.render(messages[:1]) + "We"),
            ):
                chat = await client.post("/tokenize", json={"messages": messages, **fields})
                assert chat.json()["tokens"] == stack.vocabulary.tokenizer.encode(prompt).ids
            for path, body, sentence in (
                ("/tokenize", {}, "exactly one of prompt and messages"),
                ("/tokenize", {"prompt": "a", "model": "x"}, "is not served here"),
                ("/detokenize", {"tokens": [999]}, "is no token"),
                ("/detokenize", {}, "tokens is missing"),
            ):
                refused = await client.post(path, json=body)
                assert refused.status_code in {400, 404}
                assert sentence in refused.json()["error"]["message"]

    asyncio.run(scenario())


def test_information_that_native_clients_ask_for(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path) as stack, httpx.AsyncClient(base_url=stack.url) as client:
            for path in ("/get_model_info", "/model_info"):
                info = (await client.get(path)).json()
                assert info["model_path"] == MODEL
                assert info["is_generation"]
                assert info["max_model_len"] == 512
            assert info["weight_version"].startswith("fp_")
            assert (await client.get("/version")).json() == {"version": __version__}
            probes = await asyncio.gather(*(client.get("/health_generate") for _ in range(5)))
            assert [probe.status_code for probe in probes] == [200] * 5
            for path in ("/v1/models", "/health", "/metrics", "/openapi.json"):
                head = await client.head(path)
                assert head.status_code == 200
                assert not head.content
            stack.kill_worker("memory://a")
            await stack.until(lambda: not stack.manager.is_accepting)
            assert (await client.get("/health_generate")).status_code == 503

    asyncio.run(scenario())
