"""Owns how a token sequence names KV pages; owns no pages.

Inside the tree a key is its exact tokens in a namespace: two keys are equal when every token is,
never because digests are. Outside (events, storage, routers) a page is named by a hash chain over
namespace and tokens, independent of who computed it. Tokens are little-endian int32 bytes, because
comparing and slicing bytes is what the interpreter does fastest.
"""

import hashlib
from dataclasses import dataclass

import numpy as np

from mizzen_worker.contracts.batch import Int32Array

TOKEN_BYTES = 4
_LITTLE_INT32 = np.dtype("<i4")
_DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """Who may share KV: equal content identity (``model``) and equal tenant ``salt``."""

    model: str
    salt: str = ""

    def digest(self) -> bytes:
        """16 bytes that start every key; lengths are hashed, so fields cannot run together."""
        state = hashlib.blake2b(digest_size=_DIGEST_BYTES)
        for field in (self.model, self.salt):
            encoded = field.encode()
            state.update(len(encoded).to_bytes(8, "little"))
            state.update(encoded)
        return state.digest()


@dataclass(frozen=True, slots=True)
class PageKey:
    """Tokens of whole pages in a namespace; ``tokens`` is their int32 bytes, page-aligned."""

    namespace: bytes
    tokens: bytes

    def num_pages(self, *, page_size: int) -> int:
        """Count its pages."""
        return len(self.tokens) // (page_size * TOKEN_BYTES)


def page_key(namespace: bytes, token_ids: Int32Array, *, page_size: int) -> PageKey:
    """Build the key of the whole pages in ``token_ids``; a partial page at the end is left out."""
    whole = len(token_ids) - len(token_ids) % page_size
    return PageKey(namespace, token_ids[:whole].astype(_LITTLE_INT32, copy=False).tobytes())


def common_pages(left: bytes, right: bytes, *, page_size: int) -> int:
    """Count the leading pages in which two page-aligned token strings agree."""
    count = min(len(left), len(right)) // TOKEN_BYTES
    differ = np.frombuffer(left, dtype=_LITTLE_INT32, count=count) != np.frombuffer(
        right, dtype=_LITTLE_INT32, count=count
    )
    first = int(differ.argmax())
    if not differ[first]:
        return count // page_size
    return first // page_size


def hash_chain(key: PageKey, *, page_size: int) -> list[bytes]:
    """Name every page of a key: each digest covers the namespace and all tokens up to its end."""
    page_bytes = page_size * TOKEN_BYTES
    previous = key.namespace
    chain = []
    for start in range(0, len(key.tokens), page_bytes):
        previous = hashlib.blake2b(
            previous + key.tokens[start : start + page_bytes], digest_size=_DIGEST_BYTES
        ).digest()
        chain.append(previous)
    return chain
