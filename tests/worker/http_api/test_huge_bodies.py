"""A body of millions of faults costs about what reading it costs, and one sentence."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from unittest import mock

import httpx
import msgspec
import pytest
from pydantic import BaseModel, ValidationError
from tests.worker.byte_vocabulary import byte_vocabulary
from tests.worker.front_stack import MODEL, Stack

from mizzen_worker.contracts.errors import RequestError
from mizzen_worker.contracts.ids import TokenId
from mizzen_worker.http_api import inputs
from mizzen_worker.http_api.anthropic_requests import CountTokensRequest, MessagesRequest
from mizzen_worker.http_api.native_requests import (
    DetokenizeRequest,
    GenerateRequest,
    TokenizeRequest,
)
from mizzen_worker.http_api.openai_requests import ChatRequest, CompletionRequest
from mizzen_worker.http_api.request_fields import MAX_MESSAGES, MAX_PARTS
from mizzen_worker.http_api.validation import sentence_of
from mizzen_worker.tokenizer.encode import TextEncoder

BODIES: tuple[type[BaseModel], ...] = (
    *(ChatRequest, CompletionRequest, MessagesRequest, CountTokensRequest),
    *(GenerateRequest, TokenizeRequest, DetokenizeRequest),
)
MANY = 2_000
FAULTY = (1.5, {}, [], [[]], [-1], None, -1, "", [{}], [1.5] * 3, True)


@pytest.mark.parametrize("kind", BODIES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("fault", FAULTY, ids=repr)
def test_few_faults_of_a_long_list_are_collected(kind: type[BaseModel], fault: object) -> None:
    raw: dict[str, object] = dict.fromkeys(kind.model_fields, [fault] * MANY)
    assert _num_faults(kind, raw) <= 4 * len(kind.model_fields)
    raw["messages"] = [{"role": "user", "content": [fault] * MANY}]
    assert _num_faults(kind, raw) <= 4 * len(kind.model_fields)
    raw["sampling_params"] = dict.fromkeys(("stop", "stop_regex", "stop_token_ids"), [fault] * MANY)
    assert _num_faults(kind, raw) <= 4 * len(kind.model_fields) + 6


@pytest.mark.parametrize("value", [999, "a", None])
def test_few_faults_of_a_long_object_are_collected(value: object) -> None:
    raw = {"logit_bias": {str(index): value for index in range(MANY)}}
    assert _num_faults(CompletionRequest, raw) <= 4
    assert _num_faults(GenerateRequest, {"sampling_params": raw}) <= 8


def _num_faults(kind: type[BaseModel], raw: dict[str, object]) -> int:
    with pytest.raises(ValidationError) as caught:
        kind.model_validate(raw)
    faults = caught.value.errors(include_url=False)
    assert len(str(sentence_of(faults))) < 400
    return len(faults)


def test_conversations_are_bounded() -> None:
    message = {"role": "user", "content": "a"}
    part = {"type": "text", "text": "a"}
    head = {"model": "tiny", "max_tokens": 1}
    for kind in (ChatRequest, MessagesRequest):
        kind.model_validate({**head, "messages": [message] * MAX_MESSAGES})
        kind.model_validate({**head, "messages": [{**message, "content": [part] * MAX_PARTS}]})
        for messages in (
            [message] * (MAX_MESSAGES + 1),
            [{**message, "content": [part] * (MAX_PARTS + 1)}],
        ):
            with pytest.raises(ValidationError) as caught:
                kind.model_validate({**head, "messages": messages})
            text = str(sentence_of(caught.value.errors(include_url=False)))
            assert "at most 16384 items" in text


def test_the_loop_goes_on_while_a_long_text_is_encoded_and_decoded(tmp_path: Path) -> None:
    encoder = TextEncoder(byte_vocabulary(tmp_path))
    text = "a b " * 100_000

    async def turns_during(work: "asyncio.Task[object]") -> int:
        turns = 0
        while not work.done():
            turns += 1
            await asyncio.sleep(0)
        return turns

    async def scenario() -> None:
        encoding = asyncio.create_task(encoder.encode([text], add_special_tokens=False))
        assert await turns_during(encoding) > 1000  # type: ignore[arg-type]
        (ids,) = encoding.result()
        decoding = asyncio.create_task(encoder.decode([ids], skip_special_tokens=True))
        assert await turns_during(decoding) > 100  # type: ignore[arg-type]
        assert decoding.result() == [text]

    asyncio.run(scenario())


def test_huge_texts_are_encoded_one_at_a_time_and_others_meanwhile(tmp_path: Path) -> None:
    encoder = TextEncoder(byte_vocabulary(tmp_path))
    may_go_on = threading.Event()
    num_begun = 0
    encode = encoder._encode

    def slow(texts: Sequence[str], *, add_special_tokens: bool) -> list[tuple[TokenId, ...]]:
        nonlocal num_begun
        if texts[0].startswith("huge"):
            num_begun += 1
            assert may_go_on.wait(20)
        return encode(texts, add_special_tokens=add_special_tokens)

    async def scenario() -> None:
        huge = [
            asyncio.create_task(encoder.encode(["huge" * 70_000], add_special_tokens=False))
            for _ in range(3)
        ]
        for text in ("a", "a" * 5_000):
            (ids,) = await encoder.encode([text], add_special_tokens=False)
            assert len(ids) == len(text)
        assert num_begun == 1
        huge[1].cancel()
        may_go_on.set()
        assert len((await huge[0])[0]) == len((await huge[2])[0]) == 280_000
        assert num_begun == 2, "a client that left while it waited costs nothing"

    with mock.patch.object(encoder, "_encode", slow):
        asyncio.run(scenario())


def test_the_first_id_that_is_no_token_is_named(tmp_path: Path) -> None:
    encoder = TextEncoder(byte_vocabulary(tmp_path))
    assert encoder.check_ids([], field="ids") == ()
    assert encoder.check_ids([3, 0], field="ids") == (TokenId(3), TokenId(0))
    for ids in ([1, 2, 10**6, -1], [1, 2, -1, 10**6]):
        with pytest.raises(RequestError, match=rf"ids\[2\] is {ids[2]}, which is no token"):
            encoder.check_ids(ids, field="ids")


def test_scores_of_prompts_are_bounded_over_all_choices(tmp_path: Path) -> None:
    ids = [5] * 500

    async def scenario() -> None:
        async with Stack(tmp_path) as stack, httpx.AsyncClient(base_url=stack.url) as client:
            scores = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 20}
            native = {"input_ids": [ids] * 2, **scores}
            native["sampling_params"] = {"n": 127, "max_new_tokens": 0}
            completion = {"model": MODEL, "prompt": [ids] * 2, "n": 127, "max_tokens": 0}
            completion |= {"echo": True, "logprobs": 20}
            for path, body in (("/generate", native), ("/v1/completions", completion)):
                with mock.patch(f"{inputs.__name__}.MAX_PROMPT_SCORES", 2 * 127 * 500 * 21 - 1):
                    answer = await client.post(path, json=body)
                assert answer.status_code == 400
                assert "asks for 2667000 log-probabilities" in answer.json()["error"]["message"]
            assert stack.manager.num_live == 0

    asyncio.run(scenario())


def test_ids_of_all_bodies_fit_their_messages() -> None:
    found = GenerateRequest.model_validate(msgspec.json.decode(b'{"input_ids": [[0, 2147483647]]}'))
    assert found.input_ids == [[0, 2**31 - 1]]
