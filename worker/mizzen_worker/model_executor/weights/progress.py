"""Owns counting of loaded bytes; prints nothing."""

from collections.abc import Callable

ProgressCallback = Callable[[int, int], None]
"""Called with (bytes done, bytes in all); the first call has 0 done, the last has all."""


class ByteProgress:
    """Adds up bytes and tells the callback."""

    def __init__(self, total_bytes: int, callback: ProgressCallback) -> None:
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._callback = callback
        callback(0, total_bytes)

    def add(self, num_bytes: int) -> None:
        """Count more bytes; never beyond the total (a tied weight is read twice)."""
        self._done_bytes = min(self._done_bytes + num_bytes, self._total_bytes)
        self._callback(self._done_bytes, self._total_bytes)

    def finish(self) -> None:
        """Tell that everything is there (tensors that nobody needs included)."""
        self._done_bytes = self._total_bytes
        self._callback(self._total_bytes, self._total_bytes)
