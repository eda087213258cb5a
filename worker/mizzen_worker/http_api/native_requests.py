"""Owns the checked bodies of the native routes; owns no meaning."""

from typing import Annotated, Literal

from pydantic import Field

from mizzen_worker.http_api.openai_requests import Messages
from mizzen_worker.http_api.request_fields import (
    MAX_CHOICES,
    MAX_INTEGER,
    MAX_PROMPTS,
    MAX_TEMPERATURE,
    MAX_TOP_LOGPROBS,
    Body,
    CountOrZero,
    Extras,
    Name,
    Sampling,
    Stop,
    TemplateArguments,
    Texts,
    TokenIdLists,
    TokenIds,
)


class NativeSampling(Sampling):
    """``sampling_params`` of ``/generate``."""

    max_new_tokens: CountOrZero | None = None
    min_new_tokens: CountOrZero | None = None
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    temperature: float | None = Field(default=None, ge=0, le=MAX_TEMPERATURE)
    stop: Stop | None = None
    sampling_seed: int | None = None


_StartLength = Annotated[int, Field(ge=-1, le=MAX_INTEGER)]
_NumTop = Annotated[int, Field(ge=0, le=MAX_TOP_LOGPROBS)]


class GenerateRequest(Extras):
    """Body of ``/generate``; a list of texts or of id lists is a batch."""

    text: str | Texts | None = None
    input_ids: TokenIds | TokenIdLists | None = None
    sampling_params: (
        NativeSampling
        | Annotated[list[NativeSampling], Field(max_length=MAX_PROMPTS, fail_fast=True)]
        | None
    ) = None
    rid: Name | Annotated[list[Name], Field(max_length=MAX_PROMPTS, fail_fast=True)] | None = None
    stream: bool | None = None
    stream_output: Literal["full", "delta"] | None = None
    return_logprob: (
        bool | Annotated[list[bool], Field(max_length=MAX_PROMPTS, fail_fast=True)] | None
    ) = None
    logprob_start_len: (
        _StartLength
        | Annotated[list[_StartLength], Field(max_length=MAX_PROMPTS, fail_fast=True)]
        | None
    ) = None
    top_logprobs_num: (
        _NumTop | Annotated[list[_NumTop], Field(max_length=MAX_PROMPTS, fail_fast=True)] | None
    ) = None
    return_text_in_logprobs: bool | None = None


class TokenizeRequest(Body):
    """Body of ``/tokenize``: a text, several, or a conversation."""

    model: str | None = None
    prompt: str | Texts | None = None
    messages: Messages | None = None
    add_special_tokens: bool | None = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool | None = None
    chat_template_kwargs: TemplateArguments | None = None
    return_token_strs: bool | None = None


_AnyTokenIds = Annotated[list[Annotated[int, Field(ge=0, le=MAX_INTEGER)]], Field(fail_fast=True)]


class DetokenizeRequest(Body):
    """Body of ``/detokenize``: the ids of one text or of several."""

    model: str | None = None
    tokens: (
        _AnyTokenIds
        | Annotated[
            list[_AnyTokenIds],
            Field(max_length=MAX_PROMPTS, fail_fast=True),
        ]
    )
    skip_special_tokens: bool | None = None


class AbortRequest(Body):
    """Body of ``/abort_request``: an id that a client was told or gave itself, or all."""

    rid: Name | None = None
    abort_all: bool | None = None
