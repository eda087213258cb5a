"""Two toy components, each with the simplest model of what it promises.

``EndState`` is like a recurrent model's snapshot: one unit, true exactly at the end of a node.
``Window`` is like sliding attention: a unit a page, of which only the last ``WINDOW`` are needed.
"""

from collections.abc import Callable

import numpy as np

from mizzen_worker.cache.components.base import Merged, Span

_NONE = np.empty(0, dtype=np.int32)
WINDOW = 3


class _AtEnd:
    def usable(self, value: np.ndarray | None, num_pages: int, num_matched: int) -> bool:
        return value is not None and num_matched == num_pages


class _NodeOnly:
    def __init__(self) -> None:
        self.is_first = True

    def covers(self, num_pages: int) -> bool:
        was_first, self.is_first = self.is_first, False
        return was_first


class EndState:
    name = "end_state"

    def start_match(self) -> _AtEnd:
        return _AtEnd()

    def start_lock(self) -> _NodeOnly:
        return _NodeOnly()

    def split(self, value: np.ndarray, at_page: int) -> tuple[None, np.ndarray]:
        return None, value

    def part(self, incoming: np.ndarray, span: Span) -> np.ndarray | None:
        return incoming if span.end == span.total else None

    def merge(self, existing: np.ndarray | None, incoming: np.ndarray) -> Merged:
        if existing is None:
            return Merged(kept=incoming.copy(), freed=_NONE)
        return Merged(kept=existing, freed=incoming[incoming != existing])

    # What the model needs.

    def pages_with_units(self, num_pages: int) -> range:
        """Say which of an insert's pages get a unit."""
        return range(max(0, num_pages - 1), num_pages)

    def limit(self, has_unit: Callable[[int], bool], num_pages: int) -> int:
        """Say how far a prefix of ``num_pages`` cached pages is usable."""
        return next((end for end in range(num_pages, 0, -1) if has_unit(end - 1)), 0)


class _Run:
    def __init__(self) -> None:
        self.length = WINDOW  # nothing is needed before the root

    def usable(self, value: np.ndarray | None, num_pages: int, num_matched: int) -> bool:
        self.length = 0 if value is None else self.length + num_matched
        return self.length >= WINDOW


class _Covered:
    def __init__(self) -> None:
        self.num_covered = 0

    def covers(self, num_pages: int) -> bool:
        if self.num_covered >= WINDOW:
            return False
        self.num_covered += num_pages
        return True


class Window:
    name = "window"

    def start_match(self) -> _Run:
        return _Run()

    def start_lock(self) -> _Covered:
        return _Covered()

    def split(self, value: np.ndarray, at_page: int) -> tuple[np.ndarray, np.ndarray]:
        return value[:at_page].copy(), value[at_page:].copy()

    def part(self, incoming: np.ndarray, span: Span) -> np.ndarray:
        return incoming[span.start : span.end]

    def merge(self, existing: np.ndarray | None, incoming: np.ndarray) -> Merged:
        if existing is None:
            return Merged(kept=incoming.copy(), freed=_NONE)
        return Merged(kept=existing, freed=incoming[incoming != existing])

    def pages_with_units(self, num_pages: int) -> range:
        return range(num_pages)

    def limit(self, has_unit: Callable[[int], bool], num_pages: int) -> int:
        """A window of units up to the end, or units all the way to the root.

        The walk is asked per edge: within one all pages have units or none has.
        """
        return next(
            (
                end
                for end in range(num_pages, 0, -1)
                if all(has_unit(page) for page in range(max(0, end - WINDOW), end))
            ),
            0,
        )
