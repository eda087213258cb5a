"""Owns the texts of all live requests: messages in, chunks out; owns no sockets. Pure.

Invariants: a text is open from ``OpenText`` until its last chunk, its ``CloseText`` or until it is
shed as the oldest of too many; every ``Feed`` is answered by exactly one message.
"""

from collections import OrderedDict

from mizzen_worker.contracts.ids import RequestId, TokenId
from mizzen_worker.contracts.text_messages import (
    CloseText,
    Feed,
    FromDetokenizer,
    OpenText,
    TextChunk,
    TextLost,
    ToDetokenizer,
)
from mizzen_worker.detokenizer.incremental import TextDecoder
from mizzen_worker.detokenizer.stop_strings import StopMatcher, StopResult
from mizzen_worker.vocabulary.token_bytes import TokenBytes

MAX_OPEN_TEXTS = 65_536


class _Text:
    """One request's decoder, matcher and how far it is."""

    def __init__(self, table: TokenBytes, opened: OpenText) -> None:
        self._decoder = TextDecoder(table, skip_special_tokens=opened.skip_special_tokens)
        self._matcher = StopMatcher(opened.stop, opened.stop_regex, keep_stop=opened.keep_stop)
        self._skip_chars = opened.skip_chars
        self._num_tokens = 0

    def feed(self, message: Feed) -> FromDetokenizer:
        """Give the text that these tokens complete and no stop can end any more."""
        if message.start != self._num_tokens:
            return TextLost(request_id=message.request_id)
        shown = message.token_ids
        if message.is_last and message.trim_last:
            shown = shown[:-1]
        result = self._decode(shown)
        if result.stopped_by is None:
            self._num_tokens = message.start + len(message.token_ids)
            if message.is_last:
                result = self._flush(result.text)
        return TextChunk(
            request_id=message.request_id,
            text=self._unseen(result.text),
            num_tokens=self._num_tokens,
            is_last=message.is_last or result.stopped_by is not None,
            stopped_by=result.stopped_by,
        )

    def _decode(self, token_ids: tuple[TokenId, ...]) -> StopResult:
        """Decode token by token where a stop has to be counted to the token, else all at once."""
        if self._matcher.is_idle:
            return StopResult(text=self._decoder.push(token_ids))
        parts: list[str] = []
        for place in range(len(token_ids)):
            self._num_tokens += 1
            result = self._matcher.push(self._decoder.push(token_ids[place : place + 1]))
            parts.append(result.text)
            if result.stopped_by is not None:
                return StopResult(text="".join(parts), stopped_by=result.stopped_by)
        return StopResult(text="".join(parts))

    def _flush(self, before: str) -> StopResult:
        result = self._matcher.push(self._decoder.flush())
        held = "" if result.stopped_by is not None else self._matcher.flush()
        return StopResult(text=before + result.text + held, stopped_by=result.stopped_by)

    def _unseen(self, text: str) -> str:
        skipped = min(self._skip_chars, len(text))
        self._skip_chars -= skipped
        return text[skipped:]


class Texts:
    """Every open text of one detokenizer process."""

    def __init__(self, table: TokenBytes, *, max_open: int = MAX_OPEN_TEXTS) -> None:
        self._table = table
        self._max_open = max_open
        self._texts: OrderedDict[RequestId, _Text] = OrderedDict()

    @property
    def num_open(self) -> int:
        """Texts held now."""
        return len(self._texts)

    def take(self, message: ToDetokenizer) -> FromDetokenizer | None:
        """Do what a message says and give the answer, if it has one."""
        match message:
            case OpenText():
                self._texts[message.request_id] = _Text(self._table, message)
                if len(self._texts) > self._max_open:
                    self._texts.popitem(last=False)
                return None
            case CloseText():
                self._texts.pop(message.request_id, None)
                return None
            case Feed():
                return self._feed(message)

    def _feed(self, message: Feed) -> FromDetokenizer:
        text = self._texts.get(message.request_id)
        if text is None:
            return TextLost(request_id=message.request_id)
        answer = text.feed(message)
        if isinstance(answer, TextLost) or answer.is_last:
            del self._texts[message.request_id]
        return answer
