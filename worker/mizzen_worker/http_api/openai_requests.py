"""Owns the checked bodies of OpenAI's routes; owns no meaning."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from mizzen_worker.http_api.request_fields import (
    MAX_CHOICES,
    MAX_MESSAGES,
    MAX_TOP_LOGPROBS,
    Body,
    Count,
    CountOrZero,
    Extras,
    Name,
    Prompt,
    Sampling,
    Stop,
    StreamOptions,
    TemplateArguments,
    TextParts,
)


class _OpenAiSampling(Sampling, Extras):
    """Fields that both generating routes take."""

    model: str
    temperature: float | None = Field(default=None, ge=0, le=2)
    seed: int | None = None
    stop: Stop | None = None
    min_tokens: CountOrZero | None = None
    n: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    rid: Name | None = None
    stream: bool | None = None
    stream_options: StreamOptions | None = None


class ChatMessage(Body):
    """One message of a conversation; further fields are the template's business."""

    model_config = ConfigDict(strict=True, extra="allow", frozen=True)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    content: str | TextParts | None = None


Messages = Annotated[
    list[ChatMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
]


class ChatRequest(_OpenAiSampling):
    """Body of ``/v1/chat/completions``."""

    messages: Messages
    max_tokens: Count | None = None
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
    chat_template_kwargs: TemplateArguments | None = None
    continue_final_message: bool | None = None


class CompletionRequest(_OpenAiSampling):
    """Body of ``/v1/completions``."""

    prompt: Prompt
    max_tokens: CountOrZero | None = None
    best_of: int | None = Field(default=None, ge=1, le=MAX_CHOICES)
    echo: bool | None = None
    logprobs: int | None = Field(default=None, ge=0, le=MAX_TOP_LOGPROBS)
