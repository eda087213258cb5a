"""Owns finding stop strings and patterns in growing text; owns no tokens and no sockets. Pure.

Invariants: text that may be the beginning of a match is held until it is certain; the result does
not depend on how the text was cut into pieces; of several matches the one that is complete first
ends the text, and of those complete at the same character the longest. Strings cost O(1) amortised
per character and string, patterns what RE2 takes for the text that is held.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from mizzen_worker.detokenizer.stop_patterns import StopPatterns, stop_patterns


@dataclass(frozen=True, slots=True, kw_only=True)
class StopResult:
    """Text that may be shown now, and the string or pattern that ended it, if one did."""

    text: str
    stopped_by: str | None = None


@dataclass(frozen=True, slots=True)
class _Match:
    """A match in the held text and a piece behind it."""

    start: int
    end: int
    stopped_by: str


class StopMatcher:
    """Watches one text. Owned by one request; of no use after a match."""

    def __init__(
        self, stop: Sequence[str], patterns: Sequence[str] = (), *, keep_stop: bool = False
    ) -> None:
        self._strings = [_String(string) for string in dict.fromkeys(stop) if string]
        self._patterns: StopPatterns | None = stop_patterns(tuple(patterns)) if patterns else None
        self._keep_stop = keep_stop
        self._held = ""

    @property
    def is_idle(self) -> bool:
        """Whether there is nothing to look for."""
        return not self._strings and self._patterns is None

    def push(self, text: str) -> StopResult:
        """Take more text."""
        seen = self._held + text
        match = self._first_match(seen, text)
        if match is not None:
            self._held = ""
            cut = match.end if self._keep_stop else match.start
            return StopResult(text=seen[:cut], stopped_by=match.stopped_by)
        shown = len(seen) - self._num_open_chars(seen)
        self._held = seen[shown:]
        return StopResult(text=seen[:shown])

    def flush(self) -> str:
        """Give the held text: nothing will be completed any more."""
        held, self._held = self._held, ""
        return held

    def _first_match(self, seen: str, text: str) -> _Match | None:
        found: list[_Match] = []
        num_old = len(seen) - len(text)
        for string in self._strings:
            end = string.push(text)
            if end is not None:
                end += num_old
                found.append(_Match(end - len(string.text), end, string.text))
        if self._patterns is not None:
            match = self._patterns.first_match(seen, num_old)
            if match is not None:
                found.append(_Match(*match))
        return min(found, key=lambda match: (match.end, match.start), default=None)

    def _num_open_chars(self, seen: str) -> int:
        num_open = max((string.num_begun for string in self._strings), default=0)
        if self._patterns is not None:
            num_open = max(num_open, self._patterns.num_open_chars(seen))
        return num_open


class _String:
    """One stop string and how much of it stands at the end of the text (Knuth, Morris, Pratt)."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.num_begun = 0
        self._shorter = [0] * len(text)
        """For each length of a beginning minus 1: the next shorter beginning that ends it too."""
        num = 0
        for place in range(1, len(text)):
            num = self._longest(num, text[place])
            self._shorter[place] = num

    def push(self, piece: str) -> int | None:
        """Take more text; give where in it the string is first complete."""
        place = 0
        num = self.num_begun
        while place < len(piece):
            if num == 0:
                place = piece.find(self.text[0], place)
                if place < 0:
                    break
            num = self._longest(num, piece[place])
            place += 1
            if num == len(self.text):
                return place
        self.num_begun = num
        return None

    def _longest(self, num: int, char: str) -> int:
        while num and self.text[num] != char:
            num = self._shorter[num - 1]
        return num + 1 if self.text[num] == char else 0
