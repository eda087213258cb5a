"""Owns bytes ↔ messages: one typed msgpack codec per closed union; owns no sockets and no queues.

A decoder knows its union and nothing else: unknown tags, wrong types, missing fields, trailing
bytes, too many bytes and pickles are all one ``WireError``, and no bytes ever name code to run.
"""

from typing import Any, Generic, TypeVar

import msgspec

from mizzen_worker.contracts.cache_events import FromCache, ReplayRequest
from mizzen_worker.contracts.errors import WireError
from mizzen_worker.contracts.messages import ToTokenizer, ToWorker
from mizzen_worker.contracts.rank_messages import ToFollower, ToLeader
from mizzen_worker.contracts.text_messages import FromDetokenizer, ToDetokenizer

MAX_MESSAGE_BYTES = 16 * 1024 * 1024
"""A prompt of a million tokens takes five bytes each; nothing legitimate is longer."""

MAX_SNAPSHOT_BYTES = 256 * 1024 * 1024
"""The names of fourteen million pages."""

Message = TypeVar("Message")

MAX_STEP_BYTES = 1024 * 1024 * 1024
"""A few hundred requests that enter at once, each with a history of a million tokens."""


class Codec(Generic[Message]):
    """Encodes and decodes the messages of one union. Stateless between calls; not thread safe."""

    def __init__(
        self, union: Any, *, name: str, max_message_bytes: int = MAX_MESSAGE_BYTES
    ) -> None:
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[Message] = msgspec.msgpack.Decoder(union)
        self._name = name
        self._max_message_bytes = max_message_bytes

    def encode(self, message: Message) -> bytes:
        """Give the bytes of a message; raises ``WireError`` when it is longer than peers accept."""
        payload = self._encoder.encode(message)
        self._check_length(payload)
        return payload

    def decode(self, payload: bytes | memoryview) -> Message:
        """Give the message of some bytes; raises ``WireError``, whatever the bytes are."""
        self._check_length(payload)
        try:
            return self._decoder.decode(payload)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, OverflowError) as error:
            msg = f"{self._name}: {len(payload)} bytes are no message: {error}"
            raise WireError(msg) from error

    def _check_length(self, payload: bytes | memoryview) -> None:
        if len(payload) > self._max_message_bytes:
            msg = (
                f"{self._name}: a message of {len(payload)} bytes exceeds the limit of "
                f"{self._max_message_bytes}"
            )
            raise WireError(msg)


def to_worker_codec() -> Codec[ToWorker]:
    """Give a codec for what tokenizers send to workers."""
    return Codec(ToWorker, name="to worker")


def to_tokenizer_codec() -> Codec[ToTokenizer]:
    """Give a codec for what workers send to tokenizers."""
    return Codec(ToTokenizer, name="to tokenizer")


def to_detokenizer_codec() -> Codec[tuple[ToDetokenizer, ...]]:
    """Give a codec for what the TokenizerManager sends to the DetokenizerManager."""
    return Codec(tuple[ToDetokenizer, ...], name="to detokenizer")


def from_detokenizer_codec() -> Codec[tuple[FromDetokenizer, ...]]:
    """Give a codec for what the DetokenizerManager answers."""
    return Codec(tuple[FromDetokenizer, ...], name="from detokenizer")


def from_cache_codec() -> Codec[FromCache]:
    """Give a codec for what a worker tells about its cached pages."""
    return Codec(FromCache, name="from cache", max_message_bytes=MAX_SNAPSHOT_BYTES)


def cache_question_codec() -> Codec[ReplayRequest]:
    """Give a codec for what a worker is asked about its cached pages."""
    return Codec(ReplayRequest, name="cache question")


def to_follower_codec() -> Codec[ToFollower]:
    """Give a codec for what a group's leader tells the other ranks."""
    return Codec(ToFollower, name="to follower", max_message_bytes=MAX_STEP_BYTES)


def to_leader_codec() -> Codec[ToLeader]:
    """Give a codec for what ranks tell the leader of their group."""
    return Codec(ToLeader, name="to leader")
