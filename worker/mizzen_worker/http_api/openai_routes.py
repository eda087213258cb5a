"""Owns ``/v1/chat/completions``, ``/v1/completions`` and ``/v1/models``; owns no generation."""

from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from mizzen_worker.contracts.errors import RequestError
from mizzen_worker.contracts.ids import TokenId
from mizzen_worker.contracts.request import SamplingParams, Usage
from mizzen_worker.http_api.body import json_response, read_body
from mizzen_worker.http_api.engine import FrontEngine
from mizzen_worker.http_api.generation import Generation, IndexedOutput
from mizzen_worker.http_api.openai_bodies import (
    AnswerHead,
    chat_body,
    chat_chunk,
    completion_body,
    completion_chunk,
    usage_chunk,
)
from mizzen_worker.http_api.schemas import ChatMessage, ChatRequest, CompletionRequest
from mizzen_worker.http_api.sse import KEEP_ALIVE, event, stream_answer, unless_disconnected
from mizzen_worker.http_api.validation import at_most, refuse_unserved
from mizzen_worker.tokenizer.request_state import GenerateInput

_COMPLETION_DEFAULT_TOKENS = 16
"""What OpenAI's completions route generates when nothing is asked for."""


def openai_router(engine: FrontEngine) -> APIRouter:
    """Make the routes of one engine."""
    router = APIRouter(prefix="/v1")

    @router.get("/models")
    async def models() -> Response:
        return json_response({"object": "list", "data": [_model(engine)]})

    @router.get("/models/{name:path}")
    async def model(name: str) -> Response:
        engine.check_model(name)
        return json_response(_model(engine))

    @router.post("/chat/completions")
    async def chat(request: Request) -> Response:
        raw, body = await read_body(request, ChatRequest)
        refuse_unserved(raw)
        engine.check_model(body.model)
        wanted = await _chat_input(engine, body)
        generation = Generation(engine, [wanted])
        head = _head(engine, "chatcmpl", body.model, generation)
        if body.stream:
            frames = _ChatFrames(head, has_usage=_has_usage(body))
            return await stream_answer(request, generation, frames)
        async with generation:
            collected = await unless_disconnected(request, generation.collect())
        return json_response(chat_body(head, collected[0]), generation.request_ids[0])

    @router.post("/completions")
    async def completions(request: Request) -> Response:
        raw, body = await read_body(request, CompletionRequest)
        refuse_unserved(raw)
        engine.check_model(body.model)
        inputs = [
            _input(engine, body, ids, body.max_tokens, "max_tokens", _COMPLETION_DEFAULT_TOKENS)
            for ids in await _prompts(engine, body)
        ]
        generation = Generation(engine, inputs)
        head = _head(engine, "cmpl", body.model, generation)
        if body.stream:
            completion_frames = _CompletionFrames(head, has_usage=_has_usage(body))
            return await stream_answer(request, generation, completion_frames)
        async with generation:
            collected = await unless_disconnected(request, generation.collect())
        return json_response(completion_body(head, collected), generation.request_ids[0])

    return router


class _ChatFrames:
    """Frames of one streamed chat answer."""

    def __init__(self, head: AnswerHead, *, has_usage: bool) -> None:
        self._head = head
        self._has_usage = has_usage

    async def __call__(self, outputs: AsyncIterator[IndexedOutput]) -> AsyncIterator[bytes]:
        """Give the frames."""
        usages: list[Usage] = []
        yield self._event({"role": "assistant", "content": ""})
        async for item in outputs:
            output = item.output
            if output is None:
                yield KEEP_ALIVE
                continue
            if output.text:
                yield self._event({"content": output.text})
            if output.final is not None:
                usages.append(output.final.usage)
                yield event(self._chunk(chat_chunk(self._head, {}, output.final)))
        if self._has_usage:
            yield event(usage_chunk(self._head, "chat.completion.chunk", usages))

    def _event(self, delta: dict[str, Any]) -> bytes:
        return event(self._chunk(chat_chunk(self._head, delta, None)))

    def _chunk(self, body: dict[str, Any]) -> dict[str, Any]:
        return {**body, "usage": None} if self._has_usage else body


class _CompletionFrames:
    """Frames of one streamed completion."""

    def __init__(self, head: AnswerHead, *, has_usage: bool) -> None:
        self._head = head
        self._has_usage = has_usage

    async def __call__(self, outputs: AsyncIterator[IndexedOutput]) -> AsyncIterator[bytes]:
        """Give the frames."""
        usages: list[Usage] = []
        async for item in outputs:
            output = item.output
            if output is None:
                yield KEEP_ALIVE
                continue
            if output.final is not None:
                usages.append(output.final.usage)
            if output.text or output.final is not None:
                body = completion_chunk(self._head, item.index, output.text, output.final)
                yield event({**body, "usage": None} if self._has_usage else body)
        if self._has_usage:
            yield event(usage_chunk(self._head, "text_completion", usages))


def _model(engine: FrontEngine) -> dict[str, Any]:
    body = {
        "id": engine.served_name,
        "object": "model",
        "created": engine.started_at,
        "owned_by": "mizzen",
    }
    capacity = engine.manager.workers.capacity()
    if capacity is not None:
        body["max_model_len"] = capacity.context_length
    return body


def _head(engine: FrontEngine, prefix: str, model: str, generation: Generation) -> AnswerHead:
    return AnswerHead(
        response_id=f"{prefix}-{generation.request_ids[0]}",
        model=model,
        created_at=int(engine.wall_clock()),
    )


def _has_usage(body: ChatRequest | CompletionRequest) -> bool:
    return body.stream_options is not None and body.stream_options.include_usage


async def _chat_input(engine: FrontEngine, body: ChatRequest) -> GenerateInput:
    if engine.template is None:
        msg = f"{engine.served_name} has no chat template; use /v1/completions"
        raise RequestError(msg, field="messages")
    text = engine.template.render(
        [_plain(message, index) for index, message in enumerate(body.messages)],
        arguments=body.chat_template_kwargs,
    )
    await engine.wait_for_worker()
    ids = await engine.encode(text, field="messages", add_special_tokens=False)
    if body.max_completion_tokens is not None:
        return _input(engine, body, ids, body.max_completion_tokens, "max_completion_tokens", None)
    return _input(engine, body, ids, body.max_tokens, "max_tokens", None)


def _plain(message: ChatMessage, index: int) -> dict[str, Any]:
    """Give a message as templates know it: a role and a text."""
    role = "system" if message.role == "developer" else message.role
    extra = message.model_extra or {}
    if extra.get("tool_calls"):
        field = f"messages[{index}].tool_calls"
        msg = f"{field}: tools are not served yet; leave it out"
        raise RequestError(msg, field=field)
    if message.content is None or isinstance(message.content, str):
        return {"role": role, "content": message.content or ""}
    texts: list[str] = []
    for place, part in enumerate(message.content):
        field = f"messages[{index}].content[{place}]"
        if part.type != "text":
            msg = f"{field}.type is {part.type!r}; this model reads text only"
            raise RequestError(msg, field=f"{field}.type")
        if part.text is None:
            msg = f"{field}.text is missing; give it"
            raise RequestError(msg, field=f"{field}.text")
        texts.append(part.text)
    return {"role": role, "content": "".join(texts)}


async def _prompts(engine: FrontEngine, body: CompletionRequest) -> list[tuple[TokenId, ...]]:
    prompt = body.prompt
    await engine.wait_for_worker()
    if isinstance(prompt, str):
        return [await engine.encode(prompt, field="prompt")]
    found: list[tuple[TokenId, ...]] = []
    ids: list[int] = []
    for one in prompt:
        if isinstance(one, str):
            found.append(await engine.encode(one, field="prompt"))
        elif isinstance(one, list):
            found.append(engine.encoder.check_ids(one, field="prompt"))
        else:
            ids.append(one)
    return found or [engine.encoder.check_ids(ids, field="prompt")]


def _input(
    engine: FrontEngine,
    body: ChatRequest | CompletionRequest,
    prompt_ids: tuple[TokenId, ...],
    asked: int | None,
    field: str,
    default: int | None,
) -> GenerateInput:
    prompt_field = "messages" if isinstance(body, ChatRequest) else "prompt"
    limit = engine.output_limit(
        prompt_ids, asked, field=field, prompt_field=prompt_field, default=default
    )
    sampling = SamplingParams(
        max_new_tokens=limit,
        min_new_tokens=at_most(body.min_tokens, limit, field="min_tokens", limit_field=field),
        seed=engine.seed_of(body.seed),
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        top_k=max(0, body.top_k or 0),
        min_p=body.min_p or 0.0,
        stop_token_ids=engine.encoder.check_ids(body.stop_token_ids or [], field="stop_token_ids"),
        ignore_eos=bool(body.ignore_eos),
    )
    stop = (body.stop,) if isinstance(body.stop, str) else tuple(body.stop or ())
    return GenerateInput(
        prompt_ids=prompt_ids,
        sampling=sampling,
        stop=stop,
        skip_special_tokens=body.skip_special_tokens is not False,
        keep_stop=bool(body.no_stop_trim),
        priority=body.priority or 0,
        cache_salt=body.cache_salt or "",
    )
