"""Owns reading a little of an encoded message without decoding it, for who only passes it on. Pure.

Our encoder writes a struct as a map whose first entry is the tag, and ``TokenEvents`` with its
events next. Bytes that look otherwise give None: the caller decodes them.
"""

from mizzen_worker.contracts.messages import TokenEvents
from mizzen_worker.ipc.codec import to_tokenizer_codec

_PATTERN = to_tokenizer_codec().encode(TokenEvents(events=()))
_START = 1
_END = _PATTERN.index(b"events") + len(b"events")
_PREFIX = _PATTERN[_START:_END]
"""What stands between the map's header, which counts the fields, and the header of the events."""


def num_token_events(payload: bytes) -> int | None:
    """Give the number of events of an encoded ``TokenEvents``; None for any other bytes."""
    if payload[_START:_END] != _PREFIX or payload[0] & 0xF0 != 0x80:
        return None
    header = payload[_END : _END + 5]
    if not header:
        return None
    if header[0] & 0xF0 == 0x90:
        return header[0] & 0x0F
    if header[0] == 0xDC and len(header) >= 3:
        return int.from_bytes(header[1:3], "big")
    if header[0] == 0xDD and len(header) == 5:
        return int.from_bytes(header[1:5], "big")
    return None
