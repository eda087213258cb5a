"""Owns the bodies of Anthropic's answers and events; owns no requests and no framing. Pure."""

import datetime
from typing import Literal

import msgspec

from mizzen_worker.contracts.request import FinishKind, Usage
from mizzen_worker.http_api.errors import AnthropicError
from mizzen_worker.tokenizer.request_state import FinalOutput

StopReason = Literal["end_turn", "max_tokens", "stop_sequence"]


class MessageUsage(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts; ``input_tokens`` are those of the prompt that were not in the cache."""

    input_tokens: int
    output_tokens: int
    cache_creation_input_tokens: int = 0
    cache_read_input_tokens: int = 0


class TextBlock(msgspec.Struct, frozen=True, kw_only=True, tag="text"):
    """A piece of an answer."""

    text: str


class AnthropicMessage(msgspec.Struct, frozen=True, kw_only=True, tag="message"):
    """Answer of ``/v1/messages``; ``stop_reason`` is None at the start of a stream."""

    id: str
    role: Literal["assistant"] = "assistant"
    model: str
    content: list[TextBlock]
    stop_reason: StopReason | None
    stop_sequence: str | None
    usage: MessageUsage


class TokenCount(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of ``/v1/messages/count_tokens``."""

    input_tokens: int


class AnthropicModel(msgspec.Struct, frozen=True, kw_only=True, tag="model"):
    """A model that is served."""

    id: str
    display_name: str
    created_at: datetime.datetime
    max_input_tokens: int | None


class AnthropicModelList(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of ``/v1/models`` to Anthropic's clients."""

    data: list[AnthropicModel]
    has_more: bool = False
    first_id: str
    last_id: str


class MessageStart(msgspec.Struct, frozen=True, kw_only=True, tag="message_start"):
    """First event."""

    message: AnthropicMessage


class ContentBlockStart(msgspec.Struct, frozen=True, kw_only=True, tag="content_block_start"):
    """A block begins."""

    index: int
    content_block: TextBlock


class TextDelta(msgspec.Struct, frozen=True, kw_only=True, tag="text_delta"):
    """New text."""

    text: str


class ContentBlockDelta(msgspec.Struct, frozen=True, kw_only=True, tag="content_block_delta"):
    """A block grows."""

    index: int
    delta: TextDelta


class ContentBlockStop(msgspec.Struct, frozen=True, kw_only=True, tag="content_block_stop"):
    """A block ends."""

    index: int


class StopDelta(msgspec.Struct, frozen=True, kw_only=True):
    """How the message ends."""

    stop_reason: StopReason
    stop_sequence: str | None


class MessageDelta(msgspec.Struct, frozen=True, kw_only=True, tag="message_delta"):
    """The message's end, and the counts that are known now."""

    delta: StopDelta
    usage: MessageUsage


class MessageStop(msgspec.Struct, frozen=True, kw_only=True, tag="message_stop"):
    """Last event."""


class Ping(msgspec.Struct, frozen=True, kw_only=True, tag="ping"):
    """A sign of life."""


MessageEvent = (
    MessageStart
    | ContentBlockStart
    | ContentBlockDelta
    | ContentBlockStop
    | MessageDelta
    | MessageStop
    | Ping
    | AnthropicError
)


def usage_of(usage: Usage) -> MessageUsage:
    """Give the counts of an answer."""
    return MessageUsage(
        input_tokens=usage.prompt_tokens - usage.cached_tokens,
        output_tokens=usage.completion_tokens,
        cache_read_input_tokens=usage.cached_tokens,
    )


def stop_of(final: FinalOutput) -> StopDelta:
    """Say how an answer ended; only a stop string counts as a stop sequence."""
    if final.kind is FinishKind.LENGTH:
        return StopDelta(stop_reason="max_tokens", stop_sequence=None)
    if isinstance(final.matched, str):
        return StopDelta(stop_reason="stop_sequence", stop_sequence=final.matched)
    return StopDelta(stop_reason="end_turn", stop_sequence=None)
