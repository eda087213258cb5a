"""Owns the checked bodies of Anthropic's routes; owns no meaning."""

from typing import Annotated, Literal

from pydantic import Field

from mizzen_worker.http_api.request_fields import (
    MAX_MESSAGES,
    MAX_STOP_STRINGS,
    Body,
    Count,
    CountOrZero,
    Extras,
    Sampling,
    StopString,
    TextParts,
)


class AnthropicMessage(Body):
    """One turn of a conversation."""

    role: Literal["user", "assistant"]
    content: str | Annotated[TextParts, Field(min_length=1)]


class CountTokensRequest(Body):
    """Body of ``/v1/messages/count_tokens``."""

    model: str
    messages: Annotated[
        list[AnthropicMessage], Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True)
    ]
    system: str | TextParts | None = None


class MessagesRequest(CountTokensRequest, Sampling, Extras):
    """Body of ``/v1/messages``; what Anthropic's API does not have are extensions."""

    max_tokens: Count
    temperature: float | None = Field(default=None, ge=0, le=1)
    stop_sequences: (
        Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS, fail_fast=True)] | None
    ) = None
    seed: int | None = None
    min_tokens: CountOrZero | None = None
    stream: bool | None = None
