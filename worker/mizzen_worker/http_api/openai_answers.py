"""Owns the bodies of OpenAI's answers; owns no requests and no framing. Pure.

They are structs, not dictionaries: encoding costs least that way, and the OpenAPI document is made
of them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from mizzen_worker.contracts.request import FinishKind, Usage
from mizzen_worker.http_api.logprobs import ChatLogprobs, CompletionLogprobs
from mizzen_worker.tokenizer.request_state import FinalOutput

Reason = Literal["stop", "length"]


class PromptTokensDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Where the prompt's tokens came from."""

    cached_tokens: int


class UsageBody(msgspec.Struct, frozen=True, kw_only=True):
    """Token counts of an answer; details only once they are known."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails | None = None


class Message(msgspec.Struct, frozen=True, kw_only=True):
    """A chat answer's text."""

    role: Literal["assistant"] = "assistant"
    content: str
    refusal: None = None


class ChatChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One answer of several; ``matched_stop`` is our addition."""

    index: int
    message: Message
    logprobs: ChatLogprobs | None = None
    finish_reason: Reason
    matched_stop: int | str | UnsetType = UNSET


class ChatCompletion(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of ``/v1/chat/completions``."""

    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    choices: list[ChatChoice]
    usage: UsageBody
    system_fingerprint: str | None


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """What a chunk adds."""

    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType = UNSET


class ChunkChoice(msgspec.Struct, frozen=True, kw_only=True):
    """What a chunk adds to one answer."""

    index: int
    delta: Delta
    logprobs: ChatLogprobs | None = None
    finish_reason: Reason | None = None
    matched_stop: int | str | UnsetType = UNSET


class ChatCompletionChunk(msgspec.Struct, frozen=True, kw_only=True):
    """A piece of a streamed chat answer."""

    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    choices: list[ChunkChoice]
    usage: UsageBody | UnsetType | None = UNSET
    system_fingerprint: str | None


class CompletionChoice(msgspec.Struct, frozen=True, kw_only=True):
    """One completion, or what a chunk adds to it."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: Reason | None
    matched_stop: int | str | UnsetType = UNSET


class Completion(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of ``/v1/completions``, and a piece of one that is streamed."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    choices: list[CompletionChoice]
    usage: UsageBody | UnsetType | None = UNSET
    system_fingerprint: str | None


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model that is served; ``max_model_len`` once a worker has said it."""

    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = "mizzen"
    max_model_len: int | UnsetType = UNSET


class ModelList(msgspec.Struct, frozen=True, kw_only=True):
    """Answer of ``/v1/models``."""

    object: Literal["list"] = "list"
    data: list[Model]


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerHead:
    """What every body of one answer repeats."""

    response_id: str
    model: str
    created_at: int
    fingerprint: str | None


def completion_of(
    head: AnswerHead, choices: list[CompletionChoice], usage: UsageBody | UnsetType | None
) -> Completion:
    """Give a completion whole, or the piece of one that is streamed."""
    return Completion(
        id=head.response_id,
        created=head.created_at,
        model=head.model,
        choices=choices,
        usage=usage,
        system_fingerprint=head.fingerprint,
    )


def reason_of(final: FinalOutput) -> Reason:
    """Say how a choice ended."""
    return "length" if final.kind is FinishKind.LENGTH else "stop"


def matched_of(final: FinalOutput | None) -> int | str | UnsetType:
    """Say what a choice was stopped by, where something did."""
    return UNSET if final is None or final.matched is None else final.matched


def usage_of(usages: Sequence[Usage], num_choices: int) -> UsageBody:
    """Sum token counts of all choices, each prompt counted once; ``usages`` prompt by prompt."""
    prompts = usages[::num_choices]
    num_prompt = sum(usage.prompt_tokens for usage in prompts)
    num_completion = sum(usage.completion_tokens for usage in usages)
    cached = sum(usage.cached_tokens for usage in prompts)
    return UsageBody(
        prompt_tokens=num_prompt,
        completion_tokens=num_completion,
        total_tokens=num_prompt + num_completion,
        prompt_tokens_details=PromptTokensDetails(cached_tokens=cached),
    )


def running_usage(num_prompt: int, num_completion: int) -> UsageBody:
    """Give token counts of an answer that goes on."""
    return UsageBody(
        prompt_tokens=num_prompt,
        completion_tokens=num_completion,
        total_tokens=num_prompt + num_completion,
    )


def in_order(usages: Mapping[int, Usage]) -> list[Usage]:
    """Sort what came in any order by choice."""
    return [usages[index] for index in sorted(usages)]
