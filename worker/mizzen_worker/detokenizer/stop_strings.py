"""Owns finding stop strings in growing text; owns no tokens and no sockets. Pure.

Invariants: text that may be the beginning of a stop string is held until it is certain; the result
does not depend on how the text was cut into pieces; of several stop strings the one that is
complete first ends the text, and of those complete at the same character the longest.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StopResult:
    """Text that may be shown now, and the stop string that ended the text, if one did."""

    text: str
    stopped_by: str | None = None


class StopMatcher:
    """Watches one text. Owned by one request; of no use after a match."""

    def __init__(self, stop: Sequence[str], *, keep_stop: bool = False) -> None:
        self._stop = tuple(string for string in stop if string)
        self._keep_stop = keep_stop
        self._held = ""

    def push(self, text: str) -> StopResult:
        """Take more text; costs O(held + new) per stop string."""
        if not self._stop:
            return StopResult(text=text)
        seen = self._held + text
        match = self._first_match(seen)
        if match is not None:
            end, stopped_by = match
            cut = end if self._keep_stop else end - len(stopped_by)
            self._held = ""
            return StopResult(text=seen[:cut], stopped_by=stopped_by)
        keep = self._num_open_chars(seen)
        self._held = seen[len(seen) - keep :]
        return StopResult(text=seen[: len(seen) - keep])

    def flush(self) -> str:
        """Give the held text: no stop string will be completed any more."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, seen: str) -> tuple[int, str] | None:
        found = [
            (start + len(string), -len(string), string)
            for string in self._stop
            if (start := seen.find(string)) >= 0
        ]
        if not found:
            return None
        end, _, string = min(found)
        return end, string

    def _num_open_chars(self, seen: str) -> int:
        """Length of the longest end of ``seen`` that begins a stop string."""
        longest = max(len(string) for string in self._stop) - 1
        for length in range(min(longest, len(seen)), 0, -1):
            tail = seen[len(seen) - length :]
            if any(string.startswith(tail) for string in self._stop):
                return length
        return 0
