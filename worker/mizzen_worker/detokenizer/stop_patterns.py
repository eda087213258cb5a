"""Owns finding stop patterns at the end of a text, and what of it may still become a match. Pure.

Owns no text. Patterns are of RE2 syntax, so matching is linear in the text whatever the pattern.
The text ends where a match is first complete: a pattern like ``a+`` ends it at the first ``a``.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import re2

from mizzen_worker.contracts.errors import RequestError
from mizzen_worker.detokenizer.pattern_syntax import (
    Choice,
    PatternError,
    beginnings,
    num_atoms,
    parse,
    written,
)

MAX_PATTERNS = 8
MAX_PATTERN_CHARS = 256
MAX_MATCH_CHARS = 256
"""Longer matches are not found: so much text may be held back until it is certain."""

MAX_ATOMS = 512
"""Atoms of all patterns, repetitions written out: a token's text costs up to so much for each
character that is held, and one process makes the texts of all requests."""

_MAX_MEMORY_BYTES = 1 << 20
_MAX_WRITTEN_CHARS = 1 << 16


class StopPatterns:
    """Several patterns as one: where a match ends, and what may become one. Immutable."""

    def __init__(self, patterns: Sequence[str]) -> None:
        nodes = tuple(parse(pattern) for pattern in patterns)
        if num_atoms(Choice(nodes)) > MAX_ATOMS:
            msg = f"repeats more than {MAX_ATOMS} parts; write one with less repetition"
            raise PatternError(msg)
        self._patterns = tuple(patterns)
        self._each = tuple(_compile(rf"(?:{written(node)})\z") for node in nodes)
        self._any = _compile(written(Choice(nodes)))
        self._any_at_end = _compile(rf"(?:{written(Choice(nodes))})\z")
        self._begun_at_end = _compile(rf"(?:{beginnings(Choice(nodes))})\z")

    def first_match(self, text: str, num_old: int) -> tuple[int, int, str] | None:
        """Give start, end and pattern of the first match that ends behind ``num_old`` characters.

        The first to be complete, and of those complete at the same character the longest.
        """
        if self._any.search(text) is None:
            return None
        for end in range(num_old + 1, len(text) + 1):
            window = text[max(0, end - MAX_MATCH_CHARS) : end]
            if self._any_at_end.search(window) is None:
                continue
            found = [
                (match.start(), place)
                for place, pattern in enumerate(self._each)
                if (match := pattern.search(window)) is not None
            ]
            start, place = min(found)
            return end - len(window) + start, end, self._patterns[place]
        return None

    def num_open_chars(self, text: str) -> int:
        """Length of the longest end of a text that may still become a match."""
        window = text[-(MAX_MATCH_CHARS - 1) :]
        match = self._begun_at_end.search(window)
        return 0 if match is None else len(window) - match.start()


def check_stop_patterns(patterns: Sequence[str], *, field: str) -> None:
    """Refuse patterns that cannot be used; raises ``RequestError`` naming the one."""
    if len(patterns) > MAX_PATTERNS:
        msg = f"{field} has {len(patterns)} patterns; give at most {MAX_PATTERNS}"
        raise RequestError(msg, field=field)
    for index, pattern in enumerate(patterns):
        name = field if len(patterns) == 1 else f"{field}[{index}]"
        try:
            _check(pattern)
        except PatternError as error:
            msg = f"{name} {error}"
            raise RequestError(msg, field=name) from error
    if patterns:
        try:
            stop_patterns(tuple(patterns))
        except PatternError as error:
            msg = f"{field} {error}"
            raise RequestError(msg, field=field) from error


@lru_cache(maxsize=64)
def stop_patterns(patterns: tuple[str, ...]) -> StopPatterns:
    """Give the compiled form of checked patterns; the same ones often come again."""
    return StopPatterns(patterns)


def _check(pattern: str) -> None:
    if len(pattern) > MAX_PATTERN_CHARS:
        msg = f"has {len(pattern)} characters; give at most {MAX_PATTERN_CHARS}"
        raise PatternError(msg)
    compiled = _compile(pattern)
    parse(pattern)
    if compiled.search("") is not None:
        msg = "can match the empty string, which would end every text at once; make a part required"
        raise PatternError(msg)


def _compile(pattern: str) -> Any:
    if len(pattern) > _MAX_WRITTEN_CHARS:
        msg = "is too big; write a shorter one, with less nesting"
        raise PatternError(msg)
    options = re2.Options()
    options.max_mem = _MAX_MEMORY_BYTES
    options.log_errors = False
    options.never_capture = True
    try:
        return re2.compile(pattern, options)
    except UnicodeEncodeError as error:
        msg = "holds half of a surrogate pair, which is no character; leave it out"
        raise PatternError(msg) from error
    except re2.error as error:
        reason = error.args[0] if error.args else ""
        shown = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
        if "too large" in shown:
            msg = "is too big; write one with less repetition"
        else:
            msg = f"is no pattern of RE2 syntax: {shown}"
        raise PatternError(msg) from error
