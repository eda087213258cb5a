"""Owns turning texts into values, one function a kind; owns no names and no defaults. Pure.

Each raises ``ValueError`` with the end of a sentence: what the value must be.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

Parser = Callable[[str], Any]

AUTO = "auto"


def text(value: str) -> str:
    """Take any text that is not empty."""
    if not value:
        msg = "it must not be empty"
        raise ValueError(msg)
    return value


def path(value: str) -> Path:
    """Take a path; a leading ``~`` is the home folder."""
    return Path(text(value)).expanduser()


def truth(value: str) -> bool:
    """Take true or false."""
    if value not in {"true", "false"}:
        msg = "it must be true or false"
        raise ValueError(msg)
    return value == "true"


def number(least: int, most: int | None = None) -> Parser:
    """Make a parser of whole numbers in a range."""

    def parse(value: str) -> int:
        try:
            parsed = int(value)
        except ValueError:
            msg = "it must be a whole number"
            raise ValueError(msg) from None
        if parsed < least or (most is not None and parsed > most):
            top = "" if most is None else f" to {most}"
            msg = f"it must be {least}{top or ' or more'}"
            raise ValueError(msg)
        return parsed

    return parse


def auto_or(parse: Parser) -> Parser:
    """Make a parser that takes the word auto too; it means None."""

    def parse_or_auto(value: str) -> Any:
        if value == AUTO:
            return None
        try:
            return parse(value)
        except ValueError as error:
            msg = f"{error}, or {AUTO}"
            raise ValueError(msg) from None

    return parse_or_auto


def seconds(least: float = 0.0) -> Parser:
    """Make a parser of durations."""

    def parse(value: str) -> float:
        try:
            parsed = float(value)
        except ValueError:
            msg = "it must be a number of seconds"
            raise ValueError(msg) from None
        if not least <= parsed < float("inf"):
            msg = f"it must be {least:g} seconds or more"
            raise ValueError(msg)
        return parsed

    return parse


def share(value: str) -> float:
    """Take a share of a whole."""
    try:
        parsed = float(value)
    except ValueError:
        parsed = -1.0
    if not 0 <= parsed <= 1:
        msg = "it must be a number from 0 to 1"
        raise ValueError(msg)
    return parsed


def quantity(*, least: float, most: float, can_be_least: bool = True) -> Parser:
    """Make a parser of numbers in a range; ``can_be_least`` False leaves out its lower end."""

    def parse(value: str) -> float:
        try:
            parsed = float(value)
        except ValueError:
            parsed = float("nan")
        if not least <= parsed <= most or (parsed == least and not can_be_least):
            low = f"from {least:g}" if can_be_least else f"above {least:g}"
            top = "" if most == float("inf") else f", {most:g} at most"
            msg = f"it must be a number {low}{top}"
            raise ValueError(msg)
        return parsed

    return parse


def http_url(value: str) -> str:
    """Take an HTTP address."""
    if not value.startswith(("http://", "https://")) or not value.partition("://")[2].strip("/"):
        msg = "it must be http://HOST:PORT or https://HOST:PORT"
        raise ValueError(msg)
    return value


def one_of(*choices: str) -> Parser:
    """Make a parser of fixed words."""

    def parse(value: str) -> str:
        if value not in choices:
            msg = f"it must be one of {', '.join(choices)}"
            raise ValueError(msg)
        return value

    return parse


def only_one(value: str) -> int:
    """Take the one size that is served so far."""
    if value != "1":
        msg = "more than 1 is not available in this version"
        raise ValueError(msg)
    return 1


def addresses(value: str) -> tuple[str, ...]:
    """Take addresses separated by commas."""
    found = tuple(part.strip() for part in value.split(",") if part.strip())
    if not found:
        msg = "it must name at least one tcp://HOST:PORT"
        raise ValueError(msg)
    return found
