"""Owns the TokenizerManager's way to the detokenizer process.

Owns no texts. A lost detokenizer is reported once and connected to again; the manager then opens
and feeds every live text anew.
"""

import asyncio
import itertools
import logging
from collections import deque
from typing import Protocol

from mizzen_worker.contracts.errors import WireError
from mizzen_worker.contracts.text_messages import (
    MAX_BATCH_MESSAGES,
    MAX_BATCH_STOP_CHARS,
    MAX_BATCH_TOKENS,
    Feed,
    FromDetokenizer,
    OpenText,
    ToDetokenizer,
)
from mizzen_worker.ipc.codec import from_detokenizer_codec, to_detokenizer_codec
from mizzen_worker.ipc.link import Link, LinkLostError, OpenLink

logger = logging.getLogger(__name__)

_RETRY_S = 0.1
_FULL_RETRY_S = 0.01
_MAX_UNSENT = 1 << 16


class TextListener(Protocol):
    """Who gets the answers."""

    def on_text(self, message: FromDetokenizer) -> None:
        """Take an answer."""
        ...

    def on_texts_lost(self) -> None:
        """Note that every open text is gone."""
        ...


class TextChannel(Protocol):
    """Where texts are made."""

    def send(self, message: ToDetokenizer) -> bool:
        """Queue a message; False when nobody can take it now."""
        ...


class LinkTextChannel:
    """Texts made by the DetokenizerManager process.

    What is sent in one turn of the event loop leaves together: a message of its own for each
    stream and step would cost more than its text. What the link does not take waits, bounded.
    """

    def __init__(self, address: str, *, open_link: OpenLink) -> None:
        self._address = address
        self._open_link = open_link
        self._link: Link | None = None
        self._unsent: deque[ToDetokenizer] = deque()
        self._is_flush_due = False
        self._encode = to_detokenizer_codec().encode
        self._decode = from_detokenizer_codec().decode

    def send(self, message: ToDetokenizer) -> bool:
        """See ``TextChannel``."""
        if self._link is None or len(self._unsent) >= _MAX_UNSENT:
            return False
        self._unsent.append(message)
        if not self._is_flush_due:
            self._is_flush_due = True
            asyncio.get_running_loop().call_soon(self._flush)
        return True

    async def run(self, listener: TextListener) -> None:
        """Connect, and connect again, until cancelled."""
        while True:
            self._link = self._open_link(self._address)
            try:
                while True:
                    for payload in await self._link.receive():
                        for message in self._decode(payload):
                            listener.on_text(message)
            except (LinkLostError, WireError) as error:
                logger.warning("detokenizer lost", extra={"reason": str(error)})
            finally:
                self._link.close()
                self._link = None
                self._unsent.clear()
            listener.on_texts_lost()
            await asyncio.sleep(_RETRY_S)

    def _flush(self) -> None:
        self._is_flush_due = False
        while self._link is not None and self._unsent:
            batch = self._next_batch()
            if not self._link.send(self._encode(batch)):
                self._is_flush_due = True
                asyncio.get_running_loop().call_later(_FULL_RETRY_S, self._flush)
                return
            for _ in batch:
                self._unsent.popleft()

    def _next_batch(self) -> tuple[ToDetokenizer, ...]:
        num_tokens = num_stop_chars = num_messages = 0
        for message in itertools.islice(self._unsent, MAX_BATCH_MESSAGES):
            if isinstance(message, Feed):
                num_tokens += len(message.token_ids)
            elif isinstance(message, OpenText):
                num_stop_chars += sum(map(len, (*message.stop, *message.stop_regex)))
            is_full = num_tokens > MAX_BATCH_TOKENS or num_stop_chars > MAX_BATCH_STOP_CHARS
            if is_full and num_messages:
                break
            num_messages += 1
        return tuple(itertools.islice(self._unsent, num_messages))
