"""Owns ``/generate``, wire-compatible with SGLang's native API; owns no generation.

Streams carry the whole text so far in each event, as that API's clients expect.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from mizzen_worker.contracts.errors import RequestError
from mizzen_worker.contracts.ids import TokenId
from mizzen_worker.contracts.request import FinishKind, SamplingParams
from mizzen_worker.http_api.body import json_response, read_body
from mizzen_worker.http_api.engine import FrontEngine
from mizzen_worker.http_api.generation import Generation, IndexedOutput
from mizzen_worker.http_api.misspelling import refuse_misspelt
from mizzen_worker.http_api.schemas import GenerateRequest, NativeSampling
from mizzen_worker.http_api.sse import KEEP_ALIVE, event, stream_answer, unless_disconnected
from mizzen_worker.http_api.validation import at_most, refuse_unserved
from mizzen_worker.tokenizer.request_state import FinalOutput, GenerateInput

_DEFAULT_NEW_TOKENS = 128


def native_router(engine: FrontEngine) -> APIRouter:
    """Make the routes of one engine."""
    router = APIRouter()

    @router.post("/generate")
    async def generate(request: Request) -> Response:
        raw, body = await read_body(request, GenerateRequest)
        _refuse_unserved(raw)
        prompts, is_batch = await _prompts(engine, body)
        samplings = _samplings(body, len(prompts))
        inputs = [
            _input(engine, body, ids, sampling)
            for ids, sampling in zip(prompts, samplings, strict=True)
        ]
        generation = Generation(engine, inputs)
        ids = _result_ids(body, generation)
        num_prompt_tokens = [len(prompt) for prompt in prompts]
        if body.stream:
            frames = _Frames(ids, num_prompt_tokens, is_batch=is_batch)
            return await stream_answer(request, generation, frames)
        async with generation:
            collected = await unless_disconnected(request, generation.collect())
        results = [
            _result(one.text, one.token_ids, _meta(result_id, one.final))
            for result_id, one in zip(ids, collected, strict=True)
        ]
        return json_response(results if is_batch else results[0], generation.request_ids[0])

    return router


class _Frames:
    """Frames of one native stream."""

    def __init__(
        self, ids: Sequence[str], num_prompt_tokens: Sequence[int], *, is_batch: bool
    ) -> None:
        self._ids = ids
        self._num_prompt_tokens = num_prompt_tokens
        self._is_batch = is_batch
        self._texts = [""] * len(ids)
        self._tokens: list[list[int]] = [[] for _ in ids]

    async def __call__(self, outputs: AsyncIterator[IndexedOutput]) -> AsyncIterator[bytes]:
        """Give the frames."""
        async for item in outputs:
            output, index = item.output, item.index
            if output is None:
                yield KEEP_ALIVE
                continue
            self._texts[index] += output.text
            self._tokens[index].extend(output.token_ids)
            meta = (
                self._running_meta(index)
                if output.final is None
                else _meta(self._ids[index], output.final)
            )
            result = _result(self._texts[index], self._tokens[index], meta)
            yield event({**result, "index": index} if self._is_batch else result)

    def _running_meta(self, index: int) -> dict[str, Any]:
        return {
            "id": self._ids[index],
            "finish_reason": None,
            "prompt_tokens": self._num_prompt_tokens[index],
            "completion_tokens": len(self._tokens[index]),
        }


def _refuse_unserved(raw: dict[str, Any]) -> None:
    refuse_unserved(raw)
    given = raw.get("sampling_params")
    every = given if isinstance(given, list) else [given]
    samplings = [one for one in every if isinstance(one, dict)]
    names = dict.fromkeys(name for one in samplings for name in one)
    refuse_misspelt(names, NativeSampling.model_fields, prefix="sampling_params.")
    for one in samplings:
        refuse_unserved(one, prefix="sampling_params.")


async def _prompts(
    engine: FrontEngine, body: GenerateRequest
) -> tuple[list[tuple[TokenId, ...]], bool]:
    if (body.text is None) == (body.input_ids is None):
        msg = "give exactly one of text and input_ids"
        raise RequestError(msg, field="text")
    await engine.wait_for_worker()
    if isinstance(body.text, str):
        return [await engine.encode(body.text, field="text")], False
    if body.text is not None:
        return [await engine.encode(text, field="text") for text in body.text], True
    ids: list[int] = []
    batch: list[tuple[TokenId, ...]] = []
    for one in body.input_ids or []:
        if isinstance(one, list):
            batch.append(engine.encoder.check_ids(one, field="input_ids"))
        else:
            ids.append(one)
    if batch:
        return batch, True
    return [engine.encoder.check_ids(ids, field="input_ids")], False


def _samplings(body: GenerateRequest, num_prompts: int) -> list[NativeSampling]:
    given = body.sampling_params
    if isinstance(given, list):
        if len(given) != num_prompts:
            msg = (
                f"sampling_params has {len(given)} entries for {num_prompts} prompts; give one for "
                "each, or one object for all"
            )
            raise RequestError(
                msg,
                field="sampling_params",
            )
        return given
    return [given or NativeSampling()] * num_prompts


def _result_ids(body: GenerateRequest, generation: Generation) -> Sequence[str]:
    given = [body.rid] if isinstance(body.rid, str) else body.rid
    if given is None:
        return generation.request_ids
    if len(given) != len(generation.request_ids):
        generation.abort()
        msg = (
            f"rid has {len(given)} entries for {len(generation.request_ids)} prompts; give one for "
            "each"
        )
        raise RequestError(
            msg,
            field="rid",
        )
    return given


def _input(
    engine: FrontEngine,
    body: GenerateRequest,
    prompt_ids: tuple[TokenId, ...],
    given: NativeSampling,
) -> GenerateInput:
    field = "sampling_params.max_new_tokens"
    limit = engine.output_limit(
        prompt_ids,
        given.max_new_tokens,
        field=field,
        prompt_field="input_ids" if body.text is None else "text",
        default=_DEFAULT_NEW_TOKENS,
    )
    min_field, stop_field = "sampling_params.min_new_tokens", "sampling_params.stop_token_ids"
    sampling = SamplingParams(
        max_new_tokens=limit,
        min_new_tokens=at_most(given.min_new_tokens, limit, field=min_field, limit_field=field),
        seed=engine.seed_of(given.sampling_seed),
        temperature=1.0 if given.temperature is None else given.temperature,
        top_p=1.0 if given.top_p is None else given.top_p,
        top_k=max(0, given.top_k or 0),
        min_p=given.min_p or 0.0,
        stop_token_ids=engine.encoder.check_ids(given.stop_token_ids or [], field=stop_field),
        ignore_eos=bool(given.ignore_eos),
    )
    stop = (given.stop,) if isinstance(given.stop, str) else tuple(given.stop or ())
    return GenerateInput(
        prompt_ids=prompt_ids,
        sampling=sampling,
        stop=stop,
        skip_special_tokens=given.skip_special_tokens is not False,
        keep_stop=bool(given.no_stop_trim),
        priority=body.priority or 0,
        cache_salt=body.cache_salt or "",
    )


def _result(text: str, token_ids: Sequence[int], meta: dict[str, Any]) -> dict[str, Any]:
    return {"text": text, "output_ids": list(token_ids), "meta_info": meta}


def _meta(result_id: str, final: FinalOutput) -> dict[str, Any]:
    reason: dict[str, Any]
    if final.kind is FinishKind.LENGTH:
        reason = {"type": "length", "length": final.usage.completion_tokens}
    else:
        reason = {"type": "stop", "matched": final.matched}
    return {
        "id": result_id,
        "finish_reason": reason,
        "prompt_tokens": final.usage.prompt_tokens,
        "completion_tokens": final.usage.completion_tokens,
        "cached_tokens": final.usage.cached_tokens,
    }
