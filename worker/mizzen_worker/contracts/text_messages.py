"""Owns the closed union of messages between TokenizerManager and DetokenizerManager.

Owns no sockets and no decoding. Never leaves one machine, so there is no wire version: both ends
are of one installation. A payload carries several messages in order, array-encoded, because there
are as many as streams and steps. At most one ``Feed`` of a stream is unanswered at a time, so what
is queued is bounded by the number of live requests.
"""

import msgspec

from mizzen_worker.contracts.ids import RequestId, TokenId


class OpenText(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="open"):
    """Begin the text of a request.

    ``skip_chars`` characters of it were delivered already, before a detokenizer was lost: the same
    tokens are fed again and that much text is left out. ``stop`` are stop strings, ``stop_regex``
    patterns of RE2 syntax.
    """

    request_id: RequestId
    stop: tuple[str, ...] = ()
    stop_regex: tuple[str, ...] = ()
    skip_special_tokens: bool = True
    keep_stop: bool = False
    skip_chars: int = 0
    log_id: str = ""


class Feed(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="feed"):
    """Next tokens of an open text; ``start`` is the index of the first one in the output.

    ``is_last`` flushes what was held back; ``trim_last`` leaves the last token's text out (the
    stop token that ended the request). Answered by one ``TextChunk``.
    """

    request_id: RequestId
    start: int
    token_ids: tuple[TokenId, ...]
    is_last: bool = False
    trim_last: bool = False


class CloseText(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="close"):
    """Forget a text; nothing answers."""

    request_id: RequestId


class TextChunk(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="text"):
    """New text of a request after ``num_tokens`` of its output.

    ``stopped_by`` names the stop string or pattern found, in which case ``num_tokens`` counts the
    tokens up to and including the one that completed it, the text ends before it and the stream is
    closed.
    """

    request_id: RequestId
    text: str
    num_tokens: int
    is_last: bool = False
    stopped_by: str | None = None


class TextLost(msgspec.Struct, frozen=True, kw_only=True, array_like=True, tag="lost"):
    """The detokenizer does not know this text (it is new, or shed it): open and feed it again."""

    request_id: RequestId


ToDetokenizer = OpenText | Feed | CloseText
FromDetokenizer = TextChunk | TextLost

MAX_FEED_TOKENS = 1 << 14
"""A longer text (one that is fed again after a loss) comes in several feeds."""
MAX_FEED_PATTERN_TOKENS = 32
"""The same where patterns are looked for, which costs more: other texts wait meanwhile."""
MAX_BATCH_MESSAGES = 512
MAX_BATCH_TOKENS = 1 << 15
"""Tokens of one payload: ids or text, it stays far below what the codecs take."""
MAX_BATCH_STOP_CHARS = 1 << 20
"""The same for stop strings; one request's alone may be more, as much as a body holds."""
