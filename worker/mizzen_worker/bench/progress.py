"""Owns telling a person how far a benchmark is; on stderr, so that tables stay clean."""

import sys
import time

_INTERVAL_S = 2.0


class Progress:
    """Counts requests that ended; says so every two seconds. An empty title says nothing."""

    def __init__(self, title: str, total: int) -> None:
        self._title = title
        self._total = total
        self._num_done = 0
        self._told_at = time.perf_counter()

    def count(self, num_done: int) -> None:
        """Note that so many more have ended."""
        self._num_done += num_done
        now = time.perf_counter()
        if self._title and now - self._told_at > _INTERVAL_S:
            self._told_at = now
            self.tell(f"{self._num_done} of {self._total} requests")

    def tell(self, what: str) -> None:
        """Say something at once."""
        sys.stderr.write(f"{self._title}: {what}\n")
        sys.stderr.flush()
