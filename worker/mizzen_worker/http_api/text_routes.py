"""Owns ``/tokenize`` and ``/detokenize``; owns no vocabulary."""

import asyncio
from collections.abc import Sequence

import msgspec
from msgspec import UNSET, UnsetType
from starlette.requests import Request
from starlette.responses import Response

from mizzen_worker.contracts.errors import RequestError
from mizzen_worker.contracts.ids import TokenId
from mizzen_worker.http_api.body import json_response, read_body
from mizzen_worker.http_api.chat_prompt import plain_chat, render
from mizzen_worker.http_api.endpoint import Endpoint
from mizzen_worker.http_api.engine import FrontEngine
from mizzen_worker.http_api.native_requests import DetokenizeRequest, TokenizeRequest
from mizzen_worker.vocabulary.token_bytes import TokenBytes


class Tokenized(msgspec.Struct, frozen=True, kw_only=True):
    """Ids of one text; ``token_strs`` where they were asked for."""

    tokens: list[int]
    count: int
    max_model_len: int | None
    token_strs: list[str] | UnsetType = UNSET


class TokenizedBatch(msgspec.Struct, frozen=True, kw_only=True):
    """Ids of several texts."""

    tokens: list[list[int]]
    count: list[int]
    max_model_len: int | None
    token_strs: list[list[str]] | UnsetType = UNSET


class Detokenized(msgspec.Struct, frozen=True, kw_only=True):
    """Text of the ids, or a list where several were given."""

    text: str | list[str]


def text_endpoints(engine: FrontEngine) -> list[Endpoint]:
    """Make the routes of one engine."""

    async def tokenize(request: Request) -> Response:
        _, body = await read_body(request, TokenizeRequest)
        if body.model is not None:
            engine.check_model(body.model)
        found = await _token_lists(engine, body)
        capacity = engine.manager.workers.capacity()
        max_model_len = None if capacity is None else capacity.context_length
        lists: list[list[int]] = [list(ids) for ids in found]
        strings: list[list[str]] | UnsetType = UNSET
        if body.return_token_strs:
            strings = await asyncio.to_thread(_strings, engine.token_bytes, lists)
        if isinstance(body.prompt, list):
            return json_response(
                TokenizedBatch(
                    tokens=lists,
                    count=[len(ids) for ids in lists],
                    max_model_len=max_model_len,
                    token_strs=strings,
                )
            )
        return json_response(
            Tokenized(
                tokens=lists[0],
                count=len(lists[0]),
                max_model_len=max_model_len,
                token_strs=UNSET if isinstance(strings, UnsetType) else strings[0],
            )
        )

    async def detokenize(request: Request) -> Response:
        _, body = await read_body(request, DetokenizeRequest)
        if body.model is not None:
            engine.check_model(body.model)
        ids: list[int] = []
        several: list[list[int]] = []
        for one in body.tokens:
            if isinstance(one, list):
                several.append(one)
            else:
                ids.append(one)
        texts = await engine.encoder.decode(
            [engine.encoder.check_ids(part, field="tokens") for part in several or [ids]],
            skip_special_tokens=body.skip_special_tokens is not False,
        )
        return json_response(Detokenized(text=texts if several else texts[0]))

    return [
        Endpoint(
            path="/tokenize",
            handler=tokenize,
            summary="Give the tokens of texts or of a conversation",
            body=TokenizeRequest,
            answers=(Tokenized, TokenizedBatch),
            errors=(404,),
        ),
        Endpoint(
            path="/detokenize",
            handler=detokenize,
            summary="Give the text of tokens",
            body=DetokenizeRequest,
            answers=(Detokenized,),
            errors=(404,),
        ),
    ]


async def _token_lists(engine: FrontEngine, body: TokenizeRequest) -> list[tuple[TokenId, ...]]:
    if (body.prompt is None) == (body.messages is None):
        msg = "give exactly one of prompt and messages"
        raise RequestError(msg, field="prompt")
    if body.messages is not None:
        text = render(
            engine,
            plain_chat(body.messages),
            arguments=body.chat_template_kwargs,
            is_last_continued=bool(body.continue_final_message),
            has_generation_prompt=body.add_generation_prompt is not False,
        )
        has_special = bool(body.add_special_tokens)
        return await engine.encoder.encode([text], add_special_tokens=has_special)
    texts = [body.prompt] if isinstance(body.prompt, str) else body.prompt or []
    has_special = body.add_special_tokens is not False
    return await engine.encoder.encode(texts, add_special_tokens=has_special)


def _strings(vocabulary: TokenBytes, lists: Sequence[Sequence[int]]) -> list[list[str]]:
    """Give each token as a text; a token's text is made once, however often it stands there."""
    string_of = {one: vocabulary.string_of(one) for one in set().union(*lists)}
    return [[string_of[one] for one in ids] for ids in lists]
