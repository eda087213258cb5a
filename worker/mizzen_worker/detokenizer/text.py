"""Owns the texts of all live requests: messages in, chunks out; owns no sockets. Pure.

Invariants: a text is open from ``OpenText`` until its last chunk, its ``CloseText`` or until it is
shed as the oldest of too many; every ``Feed`` is answered by exactly one message.
"""

from collections import OrderedDict
from typing import TYPE_CHECKING

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
from mizzen_worker.detokenizer.stop_strings import StopMatcher
from mizzen_worker.vocabulary.token_bytes import TokenBytes

if TYPE_CHECKING:
    from mizzen_worker.contracts.ids import RequestId

MAX_OPEN_TEXTS = 65_536


class _Text:
    """One request's decoder, matcher and how far it is."""

    def __init__(self, table: TokenBytes, opened: OpenText) -> None:
        self._decoder = TextDecoder(table, skip_special_tokens=opened.skip_special_tokens)
        self._matcher = StopMatcher(opened.stop, keep_stop=opened.keep_stop)
        self._skip_chars = opened.skip_chars
        self._num_tokens = 0

    def feed(self, message: Feed) -> FromDetokenizer:
        """Decode token by token, so that a stop string is counted to the token."""
        if message.start != self._num_tokens:
            return TextLost(request_id=message.request_id)
        parts: list[str] = []
        stopped_by: str | None = None
        last = len(message.token_ids) - 1
        for place, token_id in enumerate(message.token_ids):
            self._num_tokens += 1
            if message.is_last and message.trim_last and place == last:
                break
            result = self._matcher.push(self._decoder.push(token_id))
            parts.append(result.text)
            stopped_by = result.stopped_by
            if stopped_by is not None:
                break
        if message.is_last and stopped_by is None:
            result = self._matcher.push(self._decoder.flush())
            stopped_by = result.stopped_by
            parts.append(result.text)
            parts.append(self._matcher.flush() if stopped_by is None else "")
        return TextChunk(
            request_id=message.request_id,
            text=self._unseen("".join(parts)),
            num_tokens=self._num_tokens,
            is_last=message.is_last or stopped_by is not None,
            stopped_by=stopped_by,
        )

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
