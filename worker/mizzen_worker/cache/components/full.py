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


class FullComponent:
    """Full attention's answers to the hooks."""

    name = FULL

    def start_match(self) -> None:
        """Ask nothing: every page of the path is usable."""

    def start_lock(self) -> None:
        """Ask nothing: the whole path is needed."""

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
