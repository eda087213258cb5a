"""Owns the parts of a pattern of RE2 syntax, and two ways to write them; matches nothing. Pure.

``written`` means what the pattern means, ``beginnings`` matches every beginning of what it matches:
RE2 itself cannot say whether a text may be continued to a match. Only what consumes characters has
a meaning in a text that grows: assertions look at neighbours that are not there yet, and are
refused.

Parts: choice, sequence, repetition and atoms. An atom is one character's worth of pattern, carried
on as it was written, in a group with the flags that hold there.
"""

from dataclasses import dataclass
from typing import TypeAlias

import re2

_MAX_DEPTH = 16
_ASSERTIONS = frozenset("AzbB")


@dataclass(frozen=True, slots=True)
class Atom:
    """What consumes one character."""

    text: str


@dataclass(frozen=True, slots=True)
class Sequence:
    """One part behind the other."""

    parts: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Choice:
    """One of several."""

    branches: tuple["Node", ...]


@dataclass(frozen=True, slots=True)
class Repeat:
    """A part, several times; ``most`` None is without end."""

    part: "Node"
    least: int
    most: int | None


Node: TypeAlias = Atom | Sequence | Choice | Repeat


class PatternError(Exception):
    """What is wrong with a pattern, as the end of a sentence about it."""


def parse(pattern: str) -> Node:
    """Read a pattern that RE2 took; raises ``PatternError`` for what cannot be used here."""
    return _Parser(pattern).whole()


class _Parser:
    """Reads a pattern that RE2 took, so that only what matters here is looked at."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self._at = 0
        self._depth = 0

    def whole(self) -> Node:
        """Read all of it."""
        return self._choice(frozenset())

    def _peek(self) -> str:
        return self._pattern[self._at : self._at + 1]

    def _choice(self, flags: frozenset[str]) -> Node:
        """Read branches up to the end of the group; a flag set inside holds to that end."""
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            msg = f"nests groups more than {_MAX_DEPTH} deep; write it with fewer"
            raise PatternError(msg)
        branches: list[Node] = []
        parts: list[Node] = []
        while (char := self._peek()) and char != ")":
            if char == "|":
                self._at += 1
                branches.append(Sequence(tuple(parts)))
                parts = []
            elif (
                self._pattern.startswith("(?", self._at)
                and (changed := self._bare_flags(flags)) is not None
            ):
                flags = changed
            elif self._pattern.startswith("\\Q", self._at):
                parts.extend(self._quoted(flags))
                self._repeat_last(parts)
            else:
                parts.append(self._group(flags) if char == "(" else self._atom(flags))
                self._repeat_last(parts)
        self._depth -= 1
        branches.append(Sequence(tuple(parts)))
        return branches[0] if len(branches) == 1 else Choice(tuple(branches))

    def _bare_flags(self, flags: frozenset[str]) -> frozenset[str] | None:
        """Read ``(?flags)``, which changes what follows; None where something else stands."""
        end = self._pattern.find(")", self._at)
        letters = self._pattern[self._at + 2 : end]
        if not letters or set(letters) - set("imsU-"):
            return None
        self._at = end + 1
        return _changed(flags, letters)

    def _group(self, flags: frozenset[str]) -> Node:
        self._at += 1
        if self._peek() == "?":
            is_named = self._pattern[self._at + 1] in "P<"
            end = self._pattern.index(">" if is_named else ":", self._at)
            if not is_named:
                flags = _changed(flags, self._pattern[self._at + 1 : end])
            self._at = end + 1
        inside = self._choice(flags)
        self._at += 1
        return inside

    def _quoted(self, flags: frozenset[str]) -> list[Node]:
        start = self._at + 2
        end = self._pattern.find("\\E", start)
        end = len(self._pattern) if end < 0 else end
        self._at = min(len(self._pattern), end + 2)
        return [_literal(char, flags) for char in self._pattern[start:end]]

    def _atom(self, flags: frozenset[str]) -> Node:
        start = self._at
        char = self._peek()
        if char in "^$":
            raise _assertion(char)
        if char == "\\":
            self._skip_escape()
        elif char == "[":
            self._skip_class()
        else:
            self._at += 1
            if char != ".":
                return _literal(char, flags)
        return _flagged(self._pattern[start : self._at], flags)

    def _skip_escape(self) -> None:
        kind = self._pattern[self._at + 1]
        if kind in _ASSERTIONS:
            raise _assertion("\\" + kind)
        if kind == "C":
            msg = "has \\C, which matches half a character; use . instead"
            raise PatternError(msg)
        self._at += 2
        if kind in "pPx" and self._peek() == "{":
            self._at = self._pattern.index("}", self._at) + 1
        elif kind in "pP":
            self._at += 1
        elif kind == "x":
            self._at += 2
        elif kind in "01234567":
            digits = self._pattern[self._at : self._at + 2]
            self._at += len(digits) - len(digits.lstrip("01234567"))

    def _skip_class(self) -> None:
        self._at += 1
        if self._peek() == "^":
            self._at += 1
        is_first = True
        while is_first or self._peek() != "]":
            is_first = False
            if self._pattern.startswith("[:", self._at):
                end = self._pattern.find(":]", self._at)
                self._at = end + 2 if end >= 0 else self._at + 1
            elif self._peek() == "\\":
                self._skip_escape()
            else:
                self._at += 1
        self._at += 1

    def _repeat_last(self, parts: list[Node]) -> None:
        """Read what repeats the last part; greedy and lazy mean the same texts."""
        bounds = self._bounds()
        if bounds is None:
            return
        if self._peek() == "?":
            self._at += 1
        if parts:
            parts[-1] = Repeat(parts[-1], *bounds)

    def _bounds(self) -> tuple[int, int | None] | None:
        char = self._peek()
        if char and char in "*+?":
            self._at += 1
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[char]
        end = self._pattern.find("}", self._at)
        if char != "{" or end < 0:
            return None
        first, comma, last = self._pattern[self._at + 1 : end].partition(",")
        if not first.isdecimal() or (last and not last.isdecimal()):
            return None
        self._at = end + 1
        if not comma:
            return int(first), int(first)
        return int(first), int(last) if last else None


def _changed(flags: frozenset[str], letters: str) -> frozenset[str]:
    on, _, off = letters.partition("-")
    return (flags | set(on)) - set(off)


def _assertion(written: str) -> PatternError:
    return PatternError(
        f"has {written}, which looks at what stands beside a match, and that is not known in a "
        "text that grows; leave it out"
    )


def _literal(char: str, flags: frozenset[str]) -> Atom:
    return _flagged(re2.escape(char), flags)


def _flagged(text: str, flags: frozenset[str]) -> Atom:
    meant = "".join(sorted(flags & {"i", "s"}))
    return Atom(f"(?{meant}:{text})" if meant else text)


def written(node: Node) -> str:
    """Write a pattern that matches what the node matches."""
    match node:
        case Atom(text):
            return text
        case Sequence(parts):
            return "".join(map(written, parts))
        case Choice(branches):
            return f"(?:{'|'.join(map(written, branches))})"
        case Repeat(part, least, most):
            return f"(?:{written(part)}){_bounds_written(least, most)}"


def beginnings(node: Node) -> str:
    """Write a pattern that matches every beginning of what the node matches, the whole included."""
    match node:
        case Atom(text):
            return f"(?:{text})?"
        case Sequence(parts):
            begun = ""
            for part in reversed(parts):
                rest = f"|{written(part)}{begun}" if begun else ""
                begun = f"(?:{beginnings(part)}{rest})"
            return begun
        case Choice(branches):
            return f"(?:{'|'.join(map(beginnings, branches))})"
        case Repeat(part, _, most):
            if most == 0:
                return ""
            whole = _bounds_written(0, None if most is None else most - 1)
            return f"(?:{written(part)}){whole}{beginnings(part)}"


def num_atoms(node: Node) -> int:
    """Count the atoms that a node has once its repetitions are written out."""
    match node:
        case Atom():
            return 1
        case Sequence(parts):
            return sum(map(num_atoms, parts))
        case Choice(branches):
            return sum(map(num_atoms, branches))
        case Repeat(part, least, most):
            return num_atoms(part) * max(1, least, most or 0)


def _bounds_written(least: int, most: int | None) -> str:
    if most is None:
        return {0: "*", 1: "+"}.get(least, f"{{{least},}}")
    return f"{{{least},{most}}}"
