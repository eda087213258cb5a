"""Owns the policy of full attention: one page of KV per page of tokens, needed back to the root.

Holds no state. It is the backbone: a prefix is usable up to any page, and a lock covers the whole
path to the root.
"""

import numpy as np

from mizzen_worker.cache.components.base import Merged, Span
from mizzen_worker.contracts.batch import Int32Array

_NONE: Int32Array = np.empty(0, dtype=np.int32)
_NONE.setflags(write=False)

FULL = "full"


class _AnyPage:
    """Both walks: every page with a value is usable, every edge up to the root is covered."""

    def usable(self, value: Int32Array | None, num_pages: int, num_matched: int) -> bool:  # noqa: ARG002 - a protocol's hook
        return value is not None

    def covers(self, num_pages: int) -> bool:  # noqa: ARG002 - a protocol's hook
        return True


class FullComponent:
    """Full attention's answers to the hooks."""

    name = FULL

    def __init__(self) -> None:
        self._walk = _AnyPage()

    def start_match(self) -> _AnyPage:
        """Begin a lookup; the walk is stateless and shared."""
        return self._walk

    def start_lock(self) -> _AnyPage:
        """Begin a lock; the walk is stateless and shared."""
        return self._walk

    def split(self, value: Int32Array, at_page: int) -> tuple[Int32Array, Int32Array]:
        """Cut the page array; both halves own their memory."""
        return value[:at_page].copy(), value[at_page:].copy()

    def part(self, incoming: Int32Array, span: Span) -> Int32Array:
        """Take the pages of the span."""
        return incoming[span.start : span.end]

    def merge(self, existing: Int32Array | None, incoming: Int32Array) -> Merged:
        """Keep what is there; incoming pages that are not the very same ones are duplicates."""
        if existing is None:
            return Merged(kept=incoming.copy(), freed=_NONE)
        differs = existing != incoming
        return Merged(kept=existing, freed=incoming[differs] if differs.any() else _NONE)
