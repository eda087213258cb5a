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
DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Namespace:
    """Who may share KV: equal content identity (``model``), equal ``adapter``, equal ``salt``.

    ``adapter`` identifies the content of an adapter on top of the model, "" is none; ``salt`` is
    the tenant's.
    """

    model: str
    adapter: str = ""
    salt: str = ""

    def digest(self) -> bytes:
        """16 bytes that start every key; lengths are hashed, so fields cannot run together."""
        state = hashlib.blake2b(digest_size=DIGEST_BYTES)
        for field in (self.model, self.adapter, self.salt):
            encoded = field.encode()
            state.update(len(encoded).to_bytes(8, "little"))
            state.update(encoded)
        return state.digest()


@dataclass(frozen=True, slots=True)
class PageKey:
    """Tokens of whole pages in a namespace; ``tokens`` is their int32 bytes, page-aligned.

    A key usually starts at the root. One with ``first_page`` names only the pages from there on: it
    can be used where the pages before are known, below a lock.
    """

    namespace: bytes
    tokens: bytes
    first_page: int = 0

    def end_page(self, *, page_size: int) -> int:
        """Count the pages from the root to its end."""
        return self.first_page + len(self.tokens) // (page_size * TOKEN_BYTES)

    def from_page(self, first_page: int, *, page_size: int) -> "PageKey":
        """Leave out the pages before ``first_page``, which is not before the key's own."""
        skipped = (first_page - self.first_page) * page_size * TOKEN_BYTES
        return PageKey(self.namespace, self.tokens[skipped:], first_page)


def page_key(
    namespace: bytes, token_ids: Int32Array, *, page_size: int, first_page: int = 0
) -> PageKey:
    """Build the key of the whole pages in ``token_ids``; a partial page at the end is left out."""
    whole = len(token_ids) - len(token_ids) % page_size
    tokens = token_ids[first_page * page_size : whole].astype(_LITTLE_INT32, copy=False)
    return PageKey(namespace, tokens.tobytes(), first_page)


def common_pages(left: bytes, right: bytes, *, page_size: int) -> int:
    """Count the leading pages in which two page-aligned token strings agree."""
    count = min(len(left), len(right)) // TOKEN_BYTES
    if count == 0:
        return 0
    differ = np.frombuffer(left, dtype=_LITTLE_INT32, count=count) != np.frombuffer(
        right, dtype=_LITTLE_INT32, count=count
    )
    first = int(differ.argmax())
    if not differ[first]:
        return count // page_size
    return first // page_size


def common_prefix_pages(left: PageKey, right: PageKey, *, page_size: int) -> int:
    """Count the leading pages that two keys from the root could share: none across namespaces."""
    if left.namespace != right.namespace:
        return 0
    return common_pages(left.tokens, right.tokens, page_size=page_size)


def hash_pages(previous: bytes, tokens: bytes, *, page_size: int) -> tuple[bytes, ...]:
    """Name the pages that follow the one called ``previous`` (a namespace at the root).

    Each digest covers the namespace and all tokens up to its page's end.
    """
    page_bytes = page_size * TOKEN_BYTES
    digest = hashlib.blake2b
    chain = []
    for start in range(0, len(tokens), page_bytes):
        page = tokens[start : start + page_bytes]
        previous = digest(previous + page, digest_size=DIGEST_BYTES).digest()
        chain.append(previous)
    return tuple(chain)
