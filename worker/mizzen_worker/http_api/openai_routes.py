"""Owns ``/v1/chat/completions`` and ``/v1/completions``; owns no generation."""

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import Response

from mizzen_worker.contracts.errors import RequestError
from mizzen_worker.contracts.request import LogprobParams
from mizzen_worker.http_api.body import json_response, read_body
from mizzen_worker.http_api.chat_prompt import plain_chat, render
from mizzen_worker.http_api.endpoint import Endpoint
from mizzen_worker.http_api.engine import FrontEngine
from mizzen_worker.http_api.event_stream import stream_answer, unless_disconnected
from mizzen_worker.http_api.inputs import (
    Ask,
    check_num_prompt_scores,
    check_num_subrequests,
    choices_of,
    make_input,
    prompts_of,
    timeout_of,
)
from mizzen_worker.http_api.logprobs import CompletionLogprobWriter, Score, chat_logprobs
from mizzen_worker.http_api.openai_answers import (
    AnswerHead,
    ChatChoice,
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    CompletionChoice,
    Message,
    completion_of,
    matched_of,
    reason_of,
    usage_of,
)
from mizzen_worker.http_api.openai_frames import ChatFrames, CompletionFrames, Echo, StreamUsage
from mizzen_worker.http_api.openai_requests import ChatRequest, CompletionRequest
from mizzen_worker.http_api.origin import origin_of
from mizzen_worker.http_api.subrequests import Collected, Subrequests
from mizzen_worker.tokenizer.request_state import GenerateInput

_COMPLETION_DEFAULT_TOKENS = 16
"""What OpenAI's completions route generates when nothing is asked for."""


def openai_endpoints(engine: FrontEngine) -> list[Endpoint]:
    """Make the routes of one engine."""

    async def chat(request: Request) -> Response:
        _, body = await read_body(request, ChatRequest)
        engine.check_model(body.model)
        wanted = await _chat_input(engine, body, request)
        num_choices = body.n or 1
        subrequests = Subrequests(engine, choices_of(wanted, num_choices), origin_of(request.scope))
        head = _head(engine, "chatcmpl", body, subrequests)
        vocabulary = engine.token_bytes if body.logprobs else None
        if body.stream:
            usage = StreamUsage(
                options=body.stream_options,
                num_prompt=len(wanted.prompt_ids),
                num_choices=num_choices,
            )
            frames = ChatFrames(head, usage, num_choices=num_choices, vocabulary=vocabulary)
            return await stream_answer(request, subrequests, frames)
        async with subrequests:
            collected = await unless_disconnected(request.receive, subrequests.collect())
        choices = [
            ChatChoice(
                index=index,
                message=Message(content=one.text),
                logprobs=(
                    None
                    if vocabulary is None
                    else chat_logprobs(vocabulary, one.token_ids, one.logprobs)
                ),
                finish_reason=reason_of(one.final),
                matched_stop=matched_of(one.final),
            )
            for index, one in enumerate(collected)
        ]
        answer = ChatCompletion(
            id=head.response_id,
            created=head.created_at,
            model=head.model,
            choices=choices,
            usage=usage_of([one.final.usage for one in collected], num_choices),
            system_fingerprint=head.fingerprint,
        )
        return json_response(answer)

    async def completions(request: Request) -> Response:
        _, body = await read_body(request, CompletionRequest)
        engine.check_model(body.model)
        wanted = await _completion_inputs(engine, body, request)
        num_choices = body.n or 1
        inputs = [choice for one in wanted for choice in choices_of(one, num_choices)]
        check_num_prompt_scores(inputs, field="logprobs")
        writers = _writers(engine, body, len(inputs))
        echoes = await _echoes(engine, body, inputs, num_choices)
        subrequests = Subrequests(
            engine, inputs, origin_of(request.scope), is_prompt_only=body.max_tokens == 0
        )
        head = _head(engine, "cmpl", body, subrequests)
        if body.stream:
            usage = StreamUsage(
                options=body.stream_options,
                num_prompt=sum(len(one.prompt_ids) for one in wanted),
                num_choices=num_choices,
            )
            frames = CompletionFrames(head, usage, writers=writers, echoes=echoes)
            return await stream_answer(request, subrequests, frames)
        async with subrequests:
            collected = await unless_disconnected(request.receive, subrequests.collect())
        choices = [
            _completion_choice(index, one, writers, echoes) for index, one in enumerate(collected)
        ]
        usage_body = usage_of([one.final.usage for one in collected], num_choices)
        return json_response(completion_of(head, choices, usage_body))

    return [
        Endpoint(
            path="/v1/chat/completions",
            handler=chat,
            summary="Answer a conversation (OpenAI)",
            body=ChatRequest,
            answers=(ChatCompletion,),
            chunk=ChatCompletionChunk,
            operation="chat",
            errors=(404,),
        ),
        Endpoint(
            path="/v1/completions",
            handler=completions,
            summary="Continue a text (OpenAI)",
            body=CompletionRequest,
            answers=(Completion,),
            chunk=Completion,
            operation="text_completion",
            errors=(404,),
        ),
    ]


def _head(
    engine: FrontEngine,
    prefix: str,
    body: ChatRequest | CompletionRequest,
    subrequests: Subrequests,
) -> AnswerHead:
    response_id = f"{prefix}-{subrequests.request_ids[0]}"
    subrequests.name(response_id)
    if body.rid:
        subrequests.name(body.rid)
    return AnswerHead(
        response_id=response_id,
        model=body.model,
        created_at=int(engine.wall_clock()),
        fingerprint=engine.system_fingerprint(),
    )


async def _chat_input(engine: FrontEngine, body: ChatRequest, request: Request) -> GenerateInput:
    if body.top_logprobs and not body.logprobs:
        msg = f"top_logprobs is {body.top_logprobs} without logprobs; set logprobs to true"
        raise RequestError(msg, field="top_logprobs")
    timeout_s = timeout_of(body, request.headers)
    text = render(
        engine,
        plain_chat(body.messages),
        arguments=body.chat_template_kwargs,
        is_last_continued=bool(body.continue_final_message),
    )
    await engine.wait_for_worker()
    ids = await engine.encode(text, field="messages", add_special_tokens=False)
    is_new_name = body.max_completion_tokens is not None
    asked = body.max_completion_tokens if is_new_name else body.max_tokens
    field = "max_completion_tokens" if is_new_name else "max_tokens"
    limit = engine.output_limit(ids, asked, field=field, prompt_field="messages", default=None)
    ask = Ask(
        prompt_ids=ids,
        limit=limit,
        limit_field=field,
        min_tokens=body.min_tokens,
        temperature=body.temperature,
        seed=body.seed,
        stop=body.stop,
        logprobs=LogprobParams(num_top=body.top_logprobs or 0) if body.logprobs else None,
    )
    return make_input(engine, body, body, ask, timeout_s)


async def _completion_inputs(
    engine: FrontEngine, body: CompletionRequest, request: Request
) -> list[GenerateInput]:
    if body.best_of is not None and body.best_of != (body.n or 1):
        msg = (
            f"best_of is {body.best_of} and n is {body.n or 1}; this server gives every answer it "
            "makes: leave best_of out, or give both the same value"
        )
        raise RequestError(msg, field="best_of")
    if body.max_tokens == 0 and not body.echo:
        msg = "max_tokens is 0 without echo, which asks for nothing; give at least 1, or echo"
        raise RequestError(msg, field="max_tokens")
    timeout_s = timeout_of(body, request.headers)
    prompts = await prompts_of(engine, body.prompt, field="prompt")
    check_num_subrequests(len(prompts), body.n or 1, field="n")
    logprobs = None
    if body.logprobs is not None:
        start = 0 if body.echo else None
        logprobs = LogprobParams(num_top=body.logprobs, prompt_start=start)
    return [
        make_input(
            engine,
            body,
            body,
            Ask(
                prompt_ids=ids,
                limit=engine.output_limit(
                    ids,
                    1 if body.max_tokens == 0 else body.max_tokens,
                    field="max_tokens",
                    prompt_field="prompt",
                    default=_COMPLETION_DEFAULT_TOKENS,
                ),
                limit_field="max_tokens",
                min_tokens=body.min_tokens,
                temperature=body.temperature,
                seed=body.seed,
                stop=body.stop,
                logprobs=logprobs,
            ),
            timeout_s,
        )
        for ids in prompts
    ]


def _writers(
    engine: FrontEngine, body: CompletionRequest, num_answers: int
) -> list[CompletionLogprobWriter]:
    if body.logprobs is None:
        return []
    return [
        CompletionLogprobWriter(
            engine.token_bytes,
            num_top=body.logprobs,
            has_special_text=body.skip_special_tokens is False,
        )
        for _ in range(num_answers)
    ]


async def _echoes(
    engine: FrontEngine,
    body: CompletionRequest,
    inputs: Sequence[GenerateInput],
    num_choices: int,
) -> list[Echo]:
    if not body.echo:
        return []
    prompt = body.prompt
    given = [prompt] if isinstance(prompt, str) else [one for one in prompt if isinstance(one, str)]
    if not given:
        given = await engine.encoder.decode(
            [one.prompt_ids for one in inputs[::num_choices]],
            skip_special_tokens=body.skip_special_tokens is not False,
        )
    texts = [text for text in given for _ in range(num_choices)]
    return [Echo(text, one.prompt_ids) for text, one in zip(texts, inputs, strict=True)]


def _completion_choice(
    index: int,
    one: Collected,
    writers: Sequence[CompletionLogprobWriter],
    echoes: Sequence[Echo],
) -> CompletionChoice:
    text, token_ids = one.text, one.token_ids
    entries: list[Score] = list(one.logprobs)
    if echoes:
        echo = echoes[index]
        text = echo.text + text
        token_ids = (*echo.token_ids, *token_ids)
        entries = [*echo.entries(one.prompt_logprobs), *entries]
    return CompletionChoice(
        index=index,
        text=text,
        logprobs=writers[index].write(token_ids, entries) if writers else None,
        finish_reason=reason_of(one.final),
        matched_stop=matched_of(one.final),
    )
