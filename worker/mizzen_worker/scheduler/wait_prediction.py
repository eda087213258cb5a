"""Owns the estimate of how long a new request would wait; owns no request and no clock.

The estimate is the queue's length over the pace of the last admissions. It is a hint for clients
that were refused; nothing in the scheduler depends on it.
"""

from collections import deque

_WINDOW = 64
_LEAST_S = 1.0
_MOST_S = 60.0


class WaitPrediction:
    """Times of the last admissions, on the loop's clock."""

    def __init__(self) -> None:
        self._times: deque[float] = deque(maxlen=_WINDOW)

    def observe(self, now: float, *, num_waiting: int) -> None:
        """Note that a request left the waiting queue for a slot, and how many it left behind."""
        if num_waiting == 0:
            self._times.clear()  # Nobody waits: what follows may come after a long rest.
        else:
            self._times.append(now)

    def seconds(self, *, num_ahead: int, now: float) -> float:
        """Estimate the wait behind ``num_ahead`` requests, between 1 and 60 seconds."""
        if not self._times:
            return _LEAST_S
        # Up to now, not up to the last admission: a queue that stands still gets longer waits.
        pace_s = (now - self._times[0]) / len(self._times)
        return min(_MOST_S, max(_LEAST_S, num_ahead * pace_s))
