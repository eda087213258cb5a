"""Owns the estimate of how many tokens a request will still produce; owns no request.

An estimate from what ended before: it only decides how many requests are let in. When it is too
low, retraction is the net; when it is too high, memory stands idle for a while.
"""

import bisect
from collections import deque

import numpy as np

from mizzen_worker.contracts.batch import Int64Array

_WINDOW = 256
_QUANTILE = 0.75
_UNKNOWN = 256
"""Assumed further tokens while nothing is known about outputs as long as this one."""


class OutputPrediction:
    """Lengths of the last outputs that ended by themselves or by their limit."""

    def __init__(self) -> None:
        self._recent: deque[int] = deque()
        self._sorted: list[int] = []
        # The same as an array, made when it is asked for.
        self._array: Int64Array | None = None

    def observe(self, num_output: int) -> None:
        """Learn the length of an output that ended."""
        if len(self._recent) == _WINDOW:
            oldest = self._recent.popleft()
            del self._sorted[bisect.bisect_left(self._sorted, oldest)]
        self._recent.append(num_output)
        bisect.insort(self._sorted, num_output)
        self._array = None

    def remaining(self, *, num_output: int, max_remaining: int) -> int:
        """Estimate further tokens of an output that is ``num_output`` long already."""
        first_longer = bisect.bisect_right(self._sorted, num_output)
        num_longer = len(self._sorted) - first_longer
        if num_longer == 0:
            return min(_UNKNOWN, max_remaining)
        expected = self._sorted[first_longer + int(num_longer * _QUANTILE)]
        return min(expected - num_output, max_remaining)

    def remaining_of(self, num_output: Int64Array, max_remaining: Int64Array) -> Int64Array:
        """Estimate as ``remaining`` does, for many at once [n]."""
        if not self._sorted:
            return np.minimum(max_remaining, _UNKNOWN)
        if self._array is None:
            self._array = np.array(self._sorted, dtype=np.int64)
        first_longer = np.searchsorted(self._array, num_output, side="right")
        num_longer = len(self._array) - first_longer
        index = first_longer + (num_longer * _QUANTILE).astype(np.int64)
        expected = self._array[np.minimum(index, len(self._array) - 1)] - num_output
        return np.minimum(max_remaining, np.where(num_longer == 0, _UNKNOWN, expected))
