"""Owns which pages of one pool are free; owns neither their contents nor who holds the others.

Invariants: page 0 is never handed out; a page is free at most once; ``take`` gives all or raises
before it changed anything. Free pages are a numpy stack, so taking and giving back cost one copy.
"""

import numpy as np
import numpy.typing as npt

from mizzen_worker.contracts.batch import Int32Array
from mizzen_worker.contracts.errors import InvariantError


class PageAllocator:
    """Free list of pages 1..num_pages. Not thread safe: one loop owns it."""

    def __init__(self, *, num_pages: int) -> None:
        self.num_pages = num_pages
        # Invariant: _stack[:_num_free] are the free pages, the next one to go last.
        self._stack: Int32Array = np.arange(num_pages, 0, -1, dtype=np.int32)
        self._is_free: npt.NDArray[np.bool_] = np.ones(num_pages + 1, dtype=np.bool_)
        self._is_free[0] = False
        self._num_free = num_pages
        # Scratch of ``_are_distinct``: what is in it never matters.
        self._place: Int32Array = np.empty(num_pages + 1, dtype=np.int32)

    @property
    def num_free(self) -> int:
        """Count pages that ``take`` can give."""
        return self._num_free

    def take(self, num_pages: int) -> Int32Array:
        """Hand out ``num_pages`` [n] int32, owned by the caller; asking for too many is a bug."""
        if not 0 <= num_pages <= self._num_free:
            raise InvariantError([f"take({num_pages}) of {self._num_free} free pages"])
        if num_pages == 0:
            return np.empty(0, dtype=np.int32)
        first = self._num_free - num_pages
        pages = self._stack[first : self._num_free][::-1].copy()
        self._num_free = first
        self._is_free[pages] = False
        return pages

    def give_back(self, pages: Int32Array) -> None:
        """Return pages taken before; a page that is not out raises and nothing changes."""
        count = len(pages)
        if count == 0:
            return
        if count == 1:
            page = int(pages[0])
            is_sound = 0 < page <= self.num_pages and not self._is_free[page]
        else:
            is_sound = (
                int(pages.min()) > 0
                and int(pages.max()) <= self.num_pages
                and not self._is_free[pages].any()
                and self._are_distinct(pages)
            )
        if not is_sound:
            raise InvariantError([f"give_back of pages that are not out: {pages.tolist()}"])
        self._is_free[pages] = True
        # Reversed, so that pages taken together come out in the same order again.
        self._stack[self._num_free : self._num_free + count] = pages[::-1]
        self._num_free += count

    def _are_distinct(self, pages: Int32Array) -> bool:
        """Tell whether no page is there twice: of two equal ones the first loses its place."""
        places = np.arange(len(pages), dtype=np.int32)
        self._place[pages] = places
        return bool((self._place[pages] == places).all())

    def free_pages(self) -> Int32Array:
        """Copy the free pages, sorted: for audits and for tests that poison them."""
        return np.sort(self._stack[: self._num_free])
