"""Owns what bytes each token stands for; owns no text and no files. Pure.

Text is the concatenation of token bytes, decoded as UTF-8: that holds for byte-level BPE and for
SentencePiece-style vocabularies with byte fallback, which are the two kinds read here.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mizzen_worker.contracts.errors import ModelLoadError

_METASPACE = "\u2581"


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenBytes:
    """Bytes by token id; ``special_ids`` carry no text for a reader.

    ``is_first_space_dropped``: the space that begins a text belongs to the vocabulary's way of
    writing words and is not part of the text.
    """

    bytes_by_id: Sequence[bytes]
    special_ids: frozenset[int]
    is_first_space_dropped: bool

    def bytes_of(self, token_id: int) -> bytes:
        """Give what one token stands for; nothing for an id that is no token."""
        return self.bytes_by_id[token_id] if 0 <= token_id < len(self.bytes_by_id) else b""

    def readable_bytes_of(self, token_id: int) -> bytes:
        """Give what one token stands for to a reader: nothing for a special one."""
        return b"" if token_id in self.special_ids else self.bytes_of(token_id)

    def string_of(self, token_id: int) -> str:
        """Give one token as a text of its own; bytes that are no whole character are U+FFFD."""
        return self.bytes_of(token_id).decode(errors="replace")


def token_bytes_of(tokenizer_json: str) -> TokenBytes:
    """Read them from the text of a ``tokenizer.json``; raises ``ModelLoadError``."""
    description: dict[str, Any] = json.loads(tokenizer_json)
    steps = _decoder_steps(description.get("decoder"))
    added = description.get("added_tokens") or []
    vocab = _ids_by_token(description["model"]["vocab"])
    num_tokens = 1 + max([*vocab.values(), *(int(entry["id"]) for entry in added)], default=0)
    bytes_by_id = [b""] * num_tokens
    to_bytes = _reader(steps)
    for token, index in vocab.items():
        bytes_by_id[index] = to_bytes(token)
    for entry in added:
        bytes_by_id[int(entry["id"])] = str(entry["content"]).encode()
    return TokenBytes(
        bytes_by_id=bytes_by_id,
        special_ids=frozenset(int(entry["id"]) for entry in added if entry["special"]),
        is_first_space_dropped=any(map(_drops_first_space, steps)),
    )


def _ids_by_token(vocab: Mapping[str, int] | Sequence[tuple[str, float]]) -> Mapping[str, int]:
    """Unify BPE's map of ids with Unigram's list of tokens and scores."""
    if isinstance(vocab, Mapping):
        return vocab
    return {token: index for index, (token, _score) in enumerate(vocab)}


def _decoder_steps(decoder: Mapping[str, Any] | None) -> Sequence[Mapping[str, Any]]:
    if decoder is None:
        return ()
    steps: Sequence[Mapping[str, Any]] = (
        decoder["decoders"] if decoder["type"] == "Sequence" else (decoder,)
    )
    return steps


def _drops_first_space(step: Mapping[str, Any]) -> bool:
    if step["type"] == "Metaspace":
        return bool(step.get("prepend_scheme", "always") != "never")
    return bool(step["type"] == "Strip" and step["content"] == " " and step["start"] > 0)


def _reader(steps: Sequence[Mapping[str, Any]]) -> Callable[[str], bytes]:
    kinds = {str(step["type"]) for step in steps}
    if "ByteLevel" in kinds:
        return _byte_level_reader()
    if "ByteFallback" in kinds:
        return _metaspace_or_byte
    if "Metaspace" in kinds:
        return _metaspace_bytes
    msg = (
        f"tokenizer.json: a decoder of {sorted(kinds) or 'no kind'} cannot be read; only "
        "byte-level and byte-fallback vocabularies can"
    )
    raise ModelLoadError(msg)


def _byte_level_reader() -> Callable[[str], bytes]:
    byte_by_char = _byte_by_char()

    def to_bytes(token: str) -> bytes:
        try:
            return bytes([byte_by_char[char] for char in token])
        except KeyError:
            return token.encode()

    return to_bytes


def _byte_by_char() -> dict[str, int]:
    """GPT-2's printable stand-ins: visible Latin-1 stands for itself, the rest is moved up."""
    visible = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    byte_by_char = {chr(byte): byte for byte in visible}
    hidden = [byte for byte in range(256) if byte not in set(visible)]
    byte_by_char.update({chr(0x100 + place): byte for place, byte in enumerate(hidden)})
    return byte_by_char


def _metaspace_or_byte(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    return _metaspace_bytes(token)


def _metaspace_bytes(token: str) -> bytes:
    return token.replace(_METASPACE, " ").encode()
