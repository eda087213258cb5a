"""Owns ``/generate``, wire-compatible with SGLang's native API; owns no generation."""

from collections.abc import Sequence
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response

from mizzen_worker.contracts.errors import RequestError
from mizzen_worker.contracts.ids import TokenId
from mizzen_worker.contracts.request import LogprobParams
from mizzen_worker.http_api.body import json_response, read_body
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
from mizzen_worker.http_api.misspelling import refuse_misspelt
from mizzen_worker.http_api.native_answers import Generated, ScoreStyle, Shown, generated
from mizzen_worker.http_api.native_frames import NativeFrames, NativeStream
from mizzen_worker.http_api.native_requests import GenerateRequest, NativeSampling
from mizzen_worker.http_api.origin import origin_of
from mizzen_worker.http_api.subrequests import Subrequests
from mizzen_worker.http_api.unserved import refuse_unserved
from mizzen_worker.tokenizer.request_state import GenerateInput

_DEFAULT_NEW_TOKENS = 128
_PREFIX = "sampling_params."

Value = TypeVar("Value")


def native_endpoints(engine: FrontEngine) -> list[Endpoint]:
    """Make the routes of one engine."""

    async def generate(request: Request) -> Response:
        raw, body = await read_body(request, GenerateRequest, inner=NativeSampling.model_fields)
        _check_sampling_names(raw)
        timeout_s = timeout_of(body, request.headers)
        prompts, is_batch = await _prompts(engine, body)
        samplings = _each("sampling_params", body.sampling_params or NativeSampling(), len(prompts))
        num_choices = _num_choices(samplings)
        scores = _scores(body, len(prompts))
        inputs: list[GenerateInput] = []
        for ids, sampling, logprobs in zip(prompts, samplings, scores, strict=True):
            one = _input(engine, body, ids, sampling, logprobs, timeout_s)
            inputs.extend(choices_of(one, num_choices))
        check_num_prompt_scores(inputs, field="top_logprobs_num")
        names = _result_names(body, len(prompts), num_choices)
        is_prompt_only = _is_prompt_only(samplings)
        subrequests = Subrequests(
            engine, inputs, origin_of(request.scope), names=names, is_prompt_only=is_prompt_only
        )
        stream = NativeStream(
            ids=names or subrequests.request_ids,
            inputs=inputs,
            styles=[_style(engine, body, one) for one in inputs],
            weight_version=engine.system_fingerprint(),
            is_batch=is_batch or num_choices > 1,
            is_delta=body.stream_output == "delta",
        )
        if body.stream:
            return await stream_answer(request, subrequests, NativeFrames(stream, subrequests))
        async with subrequests:
            collected = await unless_disconnected(request.receive, subrequests.collect())
        results = [
            generated(
                Shown(
                    result_id=stream.ids[index],
                    wanted=inputs[index],
                    text=one.text,
                    token_ids=one.token_ids,
                    num_tokens=len(one.token_ids),
                    logprobs=one.logprobs,
                    prompt_logprobs=one.prompt_logprobs,
                    final=one.final,
                    seconds=one.seconds,
                    weight_version=stream.weight_version,
                ),
                stream.styles[index],
            )
            for index, one in enumerate(collected)
        ]
        return json_response(results if stream.is_batch else results[0])

    return [
        Endpoint(
            path="/generate",
            handler=generate,
            summary="Continue texts or token ids (native)",
            body=GenerateRequest,
            answers=(Generated, list[Generated]),
            chunk=Generated,
            operation="text_completion",
        )
    ]


def _check_sampling_names(raw: dict[str, Any]) -> None:
    given = raw.get("sampling_params")
    every = given if isinstance(given, list) else [given]
    samplings = [one for one in every if isinstance(one, dict)]
    names = dict.fromkeys(name for one in samplings for name in one)
    for name in names:
        if name in GenerateRequest.model_fields:
            msg = f"{_PREFIX}{name} stands inside of sampling_params; give {name} beside it"
            raise RequestError(msg, field=f"{_PREFIX}{name}")
    refuse_misspelt(names, NativeSampling.model_fields, prefix=_PREFIX)
    for one in samplings:
        refuse_unserved(one, served=NativeSampling.model_fields, prefix=_PREFIX)


async def _prompts(
    engine: FrontEngine, body: GenerateRequest
) -> tuple[list[tuple[TokenId, ...]], bool]:
    if (body.text is None) == (body.input_ids is None):
        msg = "give exactly one of text and input_ids"
        raise RequestError(msg, field="text")
    field, given = ("input_ids", body.input_ids or []) if body.text is None else ("text", body.text)
    is_batch = not isinstance(given, str) and not isinstance(given[0], int)
    return await prompts_of(engine, given, field=field), is_batch


def _each(field: str, given: Value | list[Value], num_prompts: int) -> list[Value]:
    """Give one value a prompt; raises ``RequestError`` for a list of another length."""
    if not isinstance(given, list):
        return [given] * num_prompts
    if len(given) != num_prompts:
        msg = (
            f"{field} has {len(given)} entries for {num_prompts} prompts; give one for each, or "
            "one value for all"
        )
        raise RequestError(msg, field=field)
    return given


def _num_choices(samplings: Sequence[NativeSampling]) -> int:
    counts = {sampling.n or 1 for sampling in samplings}
    if len(counts) > 1:
        msg = f"{_PREFIX}n differs between prompts of one batch; give all the same"
        raise RequestError(msg, field=f"{_PREFIX}n")
    num_choices = counts.pop()
    check_num_subrequests(len(samplings), num_choices, field=f"{_PREFIX}n")
    return num_choices


def _is_prompt_only(samplings: Sequence[NativeSampling]) -> bool:
    kinds = {sampling.max_new_tokens == 0 for sampling in samplings}
    if len(kinds) > 1:
        field = f"{_PREFIX}max_new_tokens"
        msg = f"{field} is 0 for some prompts of the batch only; send those apart"
        raise RequestError(msg, field=field)
    return kinds.pop()


def _scores(body: GenerateRequest, num_prompts: int) -> list[LogprobParams | None]:
    wanted = _each("return_logprob", body.return_logprob or False, num_prompts)
    starts = _each(
        "logprob_start_len",
        -1 if body.logprob_start_len is None else body.logprob_start_len,
        num_prompts,
    )
    tops = _each("top_logprobs_num", body.top_logprobs_num or 0, num_prompts)
    return [
        LogprobParams(num_top=top, prompt_start=None if start < 0 else start) if is_wanted else None
        for is_wanted, start, top in zip(wanted, starts, tops, strict=True)
    ]


def _style(engine: FrontEngine, body: GenerateRequest, one: GenerateInput) -> ScoreStyle | None:
    logprobs = one.sampling.logprobs
    if logprobs is None:
        return None
    return ScoreStyle(
        vocabulary=engine.token_bytes if body.return_text_in_logprobs else None,
        has_top=logprobs.num_top > 0,
        first_scored=logprobs.prompt_start,
    )


def _result_names(body: GenerateRequest, num_prompts: int, num_choices: int) -> list[str]:
    """Give the client's own id of each answer, or none."""
    if body.rid is None:
        return []
    given = [body.rid] if isinstance(body.rid, str) else body.rid
    if len(given) != num_prompts:
        msg = f"rid has {len(given)} entries for {num_prompts} prompts; give one for each"
        raise RequestError(msg, field="rid")
    if num_choices == 1:
        return given
    return [f"{rid}_{choice}" for rid in given for choice in range(num_choices)]


def _input(
    engine: FrontEngine,
    body: GenerateRequest,
    prompt_ids: tuple[TokenId, ...],
    given: NativeSampling,
    logprobs: LogprobParams | None,
    timeout_s: float | None,
) -> GenerateInput:
    field = f"{_PREFIX}max_new_tokens"
    prompt_field = "input_ids" if body.text is None else "text"
    limit = engine.output_limit(
        prompt_ids,
        1 if given.max_new_tokens == 0 else given.max_new_tokens,
        field=field,
        prompt_field=prompt_field,
        default=_DEFAULT_NEW_TOKENS,
    )
    start = None if logprobs is None else logprobs.prompt_start
    if start is not None and start >= len(prompt_ids):
        msg = (
            f"logprob_start_len is {start} and the prompt has {len(prompt_ids)} tokens; give less, "
            "or -1 for no scores of the prompt"
        )
        raise RequestError(msg, field="logprob_start_len")
    ask = Ask(
        prompt_ids=prompt_ids,
        limit=limit,
        limit_field=field,
        min_tokens=given.min_new_tokens,
        min_field=f"{_PREFIX}min_new_tokens",
        temperature=given.temperature,
        seed=given.sampling_seed,
        stop=given.stop,
        logprobs=logprobs,
        prefix=_PREFIX,
    )
    return make_input(engine, given, body, ask, timeout_s)
