"""Owns the bodies of OpenAI's answers; owns no requests and no framing. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from mizzen_worker.contracts.request import FinishKind, Usage
from mizzen_worker.http_api.generation import Collected
from mizzen_worker.tokenizer.request_state import FinalOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerHead:
    """What every body of one answer repeats."""

    response_id: str
    model: str
    created_at: int

    def body(self, kind: str, **rest: Any) -> dict[str, Any]:
        """Begin a body."""
        return {
            "id": self.response_id,
            "object": kind,
            "created": self.created_at,
            "model": self.model,
            **rest,
        }


def usage_body(usages: Iterable[Usage]) -> dict[str, Any]:
    """Sum token counts of all choices."""
    prompt = completion = cached = 0
    for usage in usages:
        prompt += usage.prompt_tokens
        completion += usage.completion_tokens
        cached += usage.cached_tokens
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion,
        "prompt_tokens_details": {"cached_tokens": cached},
    }


def finish_fields(final: FinalOutput | None) -> dict[str, Any]:
    """Say how a choice ended; ``matched_stop`` is our addition."""
    if final is None:
        return {"finish_reason": None}
    reason = "length" if final.kind is FinishKind.LENGTH else "stop"
    fields: dict[str, Any] = {"finish_reason": reason}
    if final.matched is not None:
        fields["matched_stop"] = final.matched
    return fields


def chat_body(head: AnswerHead, collected: Collected) -> dict[str, Any]:
    """Give a whole chat answer."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": collected.text, "refusal": None},
        "logprobs": None,
        **finish_fields(collected.final),
    }
    usage = usage_body([collected.final.usage])
    return head.body("chat.completion", choices=[choice], usage=usage)


def chat_chunk(
    head: AnswerHead, delta: Mapping[str, Any], final: FinalOutput | None
) -> dict[str, Any]:
    """Give one piece of a streamed chat answer."""
    choice = {"index": 0, "delta": delta, "logprobs": None, **finish_fields(final)}
    return head.body("chat.completion.chunk", choices=[choice])


def completion_body(head: AnswerHead, collected: Iterable[Collected]) -> dict[str, Any]:
    """Give a whole completion."""
    answers = list(collected)
    choices = [
        {"index": index, "text": one.text, "logprobs": None, **finish_fields(one.final)}
        for index, one in enumerate(answers)
    ]
    usage = usage_body(one.final.usage for one in answers)
    return head.body("text_completion", choices=choices, usage=usage)


def completion_chunk(
    head: AnswerHead, index: int, text: str, final: FinalOutput | None
) -> dict[str, Any]:
    """Give one piece of a streamed completion."""
    choice = {"index": index, "text": text, "logprobs": None, **finish_fields(final)}
    return head.body("text_completion", choices=[choice])


def usage_chunk(head: AnswerHead, kind: str, usages: Iterable[Usage]) -> dict[str, Any]:
    """Give the last chunk of a stream that was asked for usage."""
    return head.body(kind, choices=[], usage=usage_body(usages))
