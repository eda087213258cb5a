"""Owns the bodies of the native routes' answers; owns no requests and no framing. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from mizzen_worker.contracts.ids import TokenId
from mizzen_worker.contracts.messages import TokenLogprob
from mizzen_worker.contracts.request import FinishKind
from mizzen_worker.http_api.logprobs import (
    NativeLogprob,
    Score,
    native_logprobs,
    native_top_logprobs,
)
from mizzen_worker.tokenizer.request_state import FinalOutput, GenerateInput
from mizzen_worker.vocabulary.token_bytes import TokenBytes


class FinishReasonBody(msgspec.Struct, frozen=True, kw_only=True):
    """How an answer ended."""

    type: Literal["stop", "length"]
    matched: int | str | UnsetType | None = UNSET
    length: int | UnsetType = UNSET


class MetaInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What is known beside the text; the lists only where scores were asked for."""

    id: str
    finish_reason: FinishReasonBody | None
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int | UnsetType = UNSET
    e2e_latency: float | UnsetType = UNSET
    weight_version: str | UnsetType | None = UNSET
    input_token_logprobs: list[NativeLogprob] | UnsetType = UNSET
    output_token_logprobs: list[NativeLogprob] | UnsetType = UNSET
    input_top_logprobs: list[list[NativeLogprob] | None] | UnsetType = UNSET
    output_top_logprobs: list[list[NativeLogprob] | None] | UnsetType = UNSET


class Generated(msgspec.Struct, frozen=True, kw_only=True):
    """An answer of ``/generate``, or an event of a stream; ``index`` only in streamed batches."""

    text: str
    output_ids: list[int]
    meta_info: MetaInfo
    index: int | UnsetType = UNSET


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreStyle:
    """How one answer's scores are shown; ``vocabulary`` where with text."""

    vocabulary: TokenBytes | None
    has_top: bool
    first_scored: int | None
    """Index of the first prompt token that is listed; None when none is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """What of one answer is shown at a moment."""

    result_id: str
    wanted: GenerateInput
    text: str
    token_ids: Sequence[TokenId]
    num_tokens: int
    logprobs: Sequence[TokenLogprob]
    prompt_logprobs: Sequence[TokenLogprob]
    final: FinalOutput | None
    seconds: float
    weight_version: str | None


def generated(shown: Shown, style: ScoreStyle | None, index: int | UnsetType = UNSET) -> Generated:
    """Give the body."""
    meta = _meta(shown)
    if style is not None:
        meta = _with_scores(meta, shown, style)
    return Generated(text=shown.text, output_ids=list(shown.token_ids), meta_info=meta, index=index)


def _meta(shown: Shown) -> MetaInfo:
    final = shown.final
    if final is None:
        return MetaInfo(
            id=shown.result_id,
            finish_reason=None,
            prompt_tokens=len(shown.wanted.prompt_ids),
            completion_tokens=shown.num_tokens,
        )
    if final.kind is FinishKind.LENGTH:
        reason = FinishReasonBody(type="length", length=final.usage.completion_tokens)
    else:
        reason = FinishReasonBody(type="stop", matched=final.matched)
    return MetaInfo(
        id=shown.result_id,
        finish_reason=reason,
        prompt_tokens=final.usage.prompt_tokens,
        completion_tokens=final.usage.completion_tokens,
        cached_tokens=final.usage.cached_tokens,
        e2e_latency=round(shown.seconds, 6),
        weight_version=shown.weight_version,
    )


def _with_scores(meta: MetaInfo, shown: Shown, style: ScoreStyle) -> MetaInfo:
    vocabulary = style.vocabulary
    entries: list[Score] = []
    first = style.first_scored
    if first is not None:
        # Nothing stands before the first token of a prompt, so that it has no score.
        entries = [*([None] if first == 0 else []), *shown.prompt_logprobs]
    prompt_ids = [] if first is None else shown.wanted.prompt_ids[first:]
    meta = msgspec.structs.replace(
        meta,
        input_token_logprobs=native_logprobs(vocabulary, prompt_ids, entries),
        output_token_logprobs=native_logprobs(vocabulary, shown.token_ids, shown.logprobs),
    )
    if not style.has_top:
        return meta
    return msgspec.structs.replace(
        meta,
        input_top_logprobs=native_top_logprobs(vocabulary, entries),
        output_top_logprobs=native_top_logprobs(vocabulary, shown.logprobs),
    )
