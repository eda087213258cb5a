"""Owns how log-probabilities look in each API; owns no numbers. Pure.

JSON knows no infinity: a token that cannot be is shown with ``LEAST_LOGPROB``.
"""

import codecs
from collections.abc import Iterable, Sequence

import msgspec

from mizzen_worker.contracts.ids import TokenId
from mizzen_worker.contracts.messages import TokenLogprob
from mizzen_worker.vocabulary.token_bytes import TokenBytes

LEAST_LOGPROB = -9999.0

Score = TokenLogprob | None
"""None stands for a token with nothing before it."""

NativeLogprob = tuple[float | None, int, str | None]
"""Log-probability, id, and the token's text where that was asked for."""


class TopLogprob(msgspec.Struct, frozen=True, kw_only=True):
    """A token that might have stood there."""

    token: str
    bytes: list[int]
    logprob: float


class ContentLogprob(TopLogprob, frozen=True, kw_only=True):
    """A token of a chat answer."""

    top_logprobs: list[TopLogprob]


class ChatLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Those of one chat choice."""

    content: list[ContentLogprob]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct, frozen=True, kw_only=True):
    """Those of one completion: four lists of equal length."""

    tokens: list[str]
    token_logprobs: list[float | None]
    top_logprobs: list[dict[str, float] | None] | None
    text_offset: list[int]


def chat_logprobs(
    vocabulary: TokenBytes, token_ids: Sequence[TokenId], entries: Sequence[TokenLogprob]
) -> ChatLogprobs:
    """Give the log-probabilities of (a piece of) a chat answer."""
    content = []
    for token_id, entry in zip(token_ids, entries, strict=True):
        top = [
            TopLogprob(
                token=vocabulary.string_of(other),
                bytes=list(vocabulary.bytes_of(other)),
                logprob=_finite(logprob),
            )
            for other, logprob in entry.top
        ]
        content.append(
            ContentLogprob(
                token=vocabulary.string_of(token_id),
                bytes=list(vocabulary.bytes_of(token_id)),
                logprob=_finite(entry.logprob),
                top_logprobs=top,
            )
        )
    return ChatLogprobs(content=content)


class CompletionLogprobWriter:
    """Makes those of one completion, piece by piece: offsets go on from piece to piece."""

    def __init__(self, vocabulary: TokenBytes, *, num_top: int, has_special_text: bool) -> None:
        self._vocabulary = vocabulary
        self._num_top = num_top
        self._has_special_text = has_special_text
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._num_chars = 0

    def write(self, token_ids: Sequence[TokenId], entries: Sequence[Score]) -> CompletionLogprobs:
        """Give the next piece; None stands for a token with nothing before it."""
        tokens: list[str] = []
        offsets: list[int] = []
        logprobs: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        for token_id, entry in zip(token_ids, entries, strict=True):
            tokens.append(self._string(token_id))
            offsets.append(self._num_chars)
            self._advance(token_id)
            logprobs.append(None if entry is None else _finite(entry.logprob))
            tops.append(None if entry is None else self._top(entry))
        return CompletionLogprobs(
            tokens=tokens,
            token_logprobs=logprobs,
            top_logprobs=tops if self._num_top else None,
            text_offset=offsets,
        )

    def _advance(self, token_id: TokenId) -> None:
        if self._has_special_text or token_id not in self._vocabulary.special_ids:
            self._num_chars += len(self._decoder.decode(self._vocabulary.bytes_of(token_id)))

    def _top(self, entry: TokenLogprob) -> dict[str, float]:
        found: dict[str, float] = {}
        for token_id, logprob in entry.top:
            found.setdefault(self._string(token_id), _finite(logprob))
        return found

    def _string(self, token_id: TokenId) -> str:
        """Give a token's text; one that is no whole text is told by its bytes, as OpenAI does."""
        raw = self._vocabulary.bytes_of(token_id)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


def native_logprobs(
    vocabulary: TokenBytes | None,
    token_ids: Sequence[TokenId],
    entries: Iterable[TokenLogprob | None],
) -> list[NativeLogprob]:
    """Give (log-probability, id, text) of each token; no text without a vocabulary."""
    return [
        (
            None if entry is None else _finite(entry.logprob),
            token_id,
            None if vocabulary is None else vocabulary.string_of(token_id),
        )
        for token_id, entry in zip(token_ids, entries, strict=True)
    ]


def native_top_logprobs(
    vocabulary: TokenBytes | None, entries: Iterable[TokenLogprob | None]
) -> list[list[NativeLogprob] | None]:
    """Give the alternatives at each place; None where nothing stands before it."""
    return [
        None
        if entry is None
        else [
            (_finite(logprob), other, None if vocabulary is None else vocabulary.string_of(other))
            for other, logprob in entry.top
        ]
        for entry in entries
    ]


def _finite(logprob: float) -> float:
    return max(logprob, LEAST_LOGPROB)
