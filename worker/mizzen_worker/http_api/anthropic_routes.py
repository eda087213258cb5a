"""Owns ``/v1/messages`` and ``/v1/messages/count_tokens``, and their stream; no generation.

A conversation that ends with the assistant's words is continued from them, as that API does.
"""

from starlette.requests import Request
from starlette.responses import Response

from mizzen_worker.http_api.anthropic_answers import (
    AnthropicMessage,
    ContentBlockDelta,
    ContentBlockStart,
    ContentBlockStop,
    MessageDelta,
    MessageEvent,
    MessageStart,
    MessageStop,
    MessageUsage,
    Ping,
    TextBlock,
    TextDelta,
    TokenCount,
    stop_of,
    usage_of,
)
from mizzen_worker.http_api.anthropic_requests import CountTokensRequest, MessagesRequest
from mizzen_worker.http_api.body import json_response, read_body
from mizzen_worker.http_api.chat_prompt import render, text_of
from mizzen_worker.http_api.endpoint import Endpoint
from mizzen_worker.http_api.engine import FrontEngine
from mizzen_worker.http_api.errors import Dialect, ErrorAnswer
from mizzen_worker.http_api.event_stream import named_event, stream_answer, unless_disconnected
from mizzen_worker.http_api.inputs import Ask, make_input, timeout_of
from mizzen_worker.http_api.origin import origin_of
from mizzen_worker.http_api.subrequests import Subrequests
from mizzen_worker.tokenizer.request_state import FinalOutput, GenerateInput, Output


def anthropic_endpoints(engine: FrontEngine) -> list[Endpoint]:
    """Make the routes of one engine."""

    async def messages(request: Request) -> Response:
        _, body = await read_body(request, MessagesRequest)
        engine.check_model(body.model)
        wanted = await _input(engine, body, request)
        subrequests = Subrequests(engine, [wanted], origin_of(request.scope))
        message_id = f"msg_{subrequests.request_ids[0]}"
        subrequests.name(message_id)
        if body.stream:
            frames = MessageFrames(message_id, body.model, num_prompt=len(wanted.prompt_ids))
            return await stream_answer(request, subrequests, frames)
        async with subrequests:
            (one,) = await unless_disconnected(request.receive, subrequests.collect())
        stop = stop_of(one.final)
        answer = AnthropicMessage(
            id=message_id,
            model=body.model,
            content=[TextBlock(text=one.text)],
            stop_reason=stop.stop_reason,
            stop_sequence=stop.stop_sequence,
            usage=usage_of(one.final.usage),
        )
        return json_response(answer)

    async def count_tokens(request: Request) -> Response:
        _, body = await read_body(request, CountTokensRequest)
        engine.check_model(body.model)
        ids = await engine.encode(_prompt(engine, body), field="messages", add_special_tokens=False)
        return json_response(TokenCount(input_tokens=len(ids)))

    return [
        Endpoint(
            path="/v1/messages",
            handler=messages,
            summary="Answer a conversation (Anthropic)",
            body=MessagesRequest,
            answers=(AnthropicMessage,),
            chunk=MessageEvent,
            operation="chat",
            errors=(404,),
        ),
        Endpoint(
            path="/v1/messages/count_tokens",
            handler=count_tokens,
            summary="Count the tokens of a conversation (Anthropic)",
            body=CountTokensRequest,
            answers=(TokenCount,),
            errors=(404,),
        ),
    ]


class MessageFrames:
    """Frames of one streamed message."""

    keep_alive = named_event("ping", Ping())

    def __init__(self, message_id: str, model: str, *, num_prompt: int) -> None:
        self._message_id = message_id
        self._model = model
        self._num_prompt = num_prompt
        self._final: FinalOutput | None = None

    def begin(self) -> bytes:
        """See ``Frames``."""
        message = AnthropicMessage(
            id=self._message_id,
            model=self._model,
            content=[],
            stop_reason=None,
            stop_sequence=None,
            usage=MessageUsage(input_tokens=self._num_prompt, output_tokens=0),
        )
        block = ContentBlockStart(index=0, content_block=TextBlock(text=""))
        return _event("message_start", MessageStart(message=message)) + _event(
            "content_block_start", block
        )

    def output(self, index: int, output: Output) -> bytes:
        """See ``Frames``."""
        self._final = output.final
        if not output.text:
            return b""
        delta = ContentBlockDelta(index=index, delta=TextDelta(text=output.text))
        return _event("content_block_delta", delta)

    def end(self) -> bytes:
        """See ``Frames``."""
        frame = _event("content_block_stop", ContentBlockStop(index=0))
        if self._final is not None:
            delta = MessageDelta(delta=stop_of(self._final), usage=usage_of(self._final.usage))
            frame += _event("message_delta", delta)
        return frame + _event("message_stop", MessageStop())

    def error(self, answer: ErrorAnswer) -> bytes:
        """See ``Frames``."""
        return named_event("error", answer.body(Dialect.ANTHROPIC))


def _event(name: str, body: MessageEvent) -> bytes:
    return named_event(name, body)


def _prompt(engine: FrontEngine, body: CountTokensRequest) -> str:
    plain = [
        {"role": message.role, "content": text_of(message.content, f"messages[{index}].content")}
        for index, message in enumerate(body.messages)
    ]
    is_continued = plain[-1]["role"] == "assistant"
    system = text_of(body.system, "system")
    if system:
        plain.insert(0, {"role": "system", "content": system})
    return render(engine, plain, is_last_continued=is_continued)


async def _input(engine: FrontEngine, body: MessagesRequest, request: Request) -> GenerateInput:
    timeout_s = timeout_of(body, request.headers)
    text = _prompt(engine, body)
    await engine.wait_for_worker()
    ids = await engine.encode(text, field="messages", add_special_tokens=False)
    limit = engine.output_limit(
        ids, body.max_tokens, field="max_tokens", prompt_field="messages", default=None
    )
    ask = Ask(
        prompt_ids=ids,
        limit=limit,
        limit_field="max_tokens",
        min_tokens=body.min_tokens,
        temperature=body.temperature,
        seed=body.seed,
        stop=body.stop_sequences,
    )
    return make_input(engine, body, body, ask, timeout_s)
