"""Owns the TokenizerManager's way to the detokenizer process.

Owns no texts. A lost detokenizer is reported once and connected to again; the manager then opens
and feeds every live text anew.
"""

import asyncio
import logging
from typing import Protocol

from mizzen_worker.contracts.errors import WireError
from mizzen_worker.contracts.text_messages import FromDetokenizer, ToDetokenizer
from mizzen_worker.ipc.codec import from_detokenizer_codec, to_detokenizer_codec
from mizzen_worker.ipc.link import Link, LinkLostError, OpenLink

logger = logging.getLogger(__name__)

_RETRY_S = 0.1


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
    """Texts made by the DetokenizerManager process."""

    def __init__(self, address: str, *, open_link: OpenLink) -> None:
        self._address = address
        self._open_link = open_link
        self._link: Link | None = None
        self._encode = to_detokenizer_codec().encode
        self._decode = from_detokenizer_codec().decode

    def send(self, message: ToDetokenizer) -> bool:
        """See ``TextChannel``."""
        return self._link is not None and self._link.send(self._encode(message))

    async def run(self, listener: TextListener) -> None:
        """Connect, and connect again, until cancelled."""
        while True:
            self._link = self._open_link(self._address)
            try:
                while True:
                    for payload in await self._link.receive():
                        listener.on_text(self._decode(payload))
            except (LinkLostError, WireError) as error:
                logger.warning("detokenizer lost", extra={"reason": str(error)})
            finally:
                self._link.close()
                self._link = None
            listener.on_texts_lost()
            await asyncio.sleep(_RETRY_S)
