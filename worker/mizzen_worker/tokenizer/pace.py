"""Owns when a refused client is told to come again; owns no requests and no clock. Pure."""

from collections import deque
from dataclasses import dataclass, field

_NUM_KEPT = 64
_SHORTEST_S, _LONGEST_S = 1.0, 30.0


@dataclass(slots=True, kw_only=True)
class Pace:
    """How fast requests ended lately."""

    _ends_s: deque[float] = field(default_factory=lambda: deque(maxlen=_NUM_KEPT))

    def note_end(self, now_s: float) -> None:
        """Count a request that ended."""
        self._ends_s.append(now_s)

    def retry_after_s(self, num_queued: int, now_s: float) -> float:
        """Give the time in which half of a queue ends at the present pace, within bounds.

        Half of it, because others come back too and an empty queue is idle time.
        """
        if len(self._ends_s) < 2:
            return _SHORTEST_S
        each_s = (now_s - self._ends_s[0]) / len(self._ends_s)
        return min(max(_SHORTEST_S, each_s * num_queued / 2), _LONGEST_S)
