"""Owns the checked bodies of Anthropic's routes; owns no meaning."""

from typing import Annotated, Literal

from pydantic import Field

from mizzen_worker.http_api.request_fields import (
    MAX_STOP_STRINGS,
    Body,
    Count,
    CountOrZero,
    Extras,
    Sampling,
    StopString,
    TextPart,
)


class AnthropicMessage(Body):
    """One turn of a conversation."""

    role: Literal["user", "assistant"]
    content: str | Annotated[list[TextPart], Field(min_length=1)]


class CountTokensRequest(Body):
    """Body of ``/v1/messages/count_tokens``."""

    model: str
    messages: Annotated[list[AnthropicMessage], Field(min_length=1)]
    system: str | list[TextPart] | None = None


class MessagesRequest(CountTokensRequest, Sampling, Extras):
    """Body of ``/v1/messages``; what Anthropic's API does not have are extensions."""

    max_tokens: Count
    temperature: float | None = Field(default=None, ge=0, le=1)
    stop_sequences: Annotated[list[StopString], Field(max_length=MAX_STOP_STRINGS)] | None = None
    seed: int | None = None
    min_tokens: CountOrZero | None = None
    stream: bool | None = None
