"""Owns turning tokens into text piece by piece; owns no stop strings and no sockets. Pure.

Invariants: what was given out is never taken back; the concatenation of what is given out equals
decoding all bytes at once; a character is given out only when all its bytes are there; the cost of
a token does not depend on how many came before.
"""

import codecs
from collections.abc import Sequence

from mizzen_worker.contracts.ids import TokenId
from mizzen_worker.vocabulary.token_bytes import TokenBytes


class TextDecoder:
    """The text of one token sequence. Owned by one request."""

    def __init__(self, table: TokenBytes, *, skip_special_tokens: bool) -> None:
        self._bytes_of = table.readable_bytes_of if skip_special_tokens else table.bytes_of
        self._is_first_space_due = table.is_first_space_dropped
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token_ids: Sequence[TokenId]) -> str:
        """Give the text that these tokens complete; empty while a character is still open."""
        text = self._decoder.decode(b"".join(map(self._bytes_of, token_ids)))
        if text and self._is_first_space_due:
            self._is_first_space_due = False
            return text.removeprefix(" ")
        return text

    def flush(self) -> str:
        """Give what is left at the end: a character cut short becomes U+FFFD."""
        return self._decoder.decode(b"", final=True)
