"""Owns how times, counts and tables look to people.

Does not own what is told.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

MAX_TEXT = 200
_UNITS = (("d", 86_400), ("h", 3_600), ("m", 60))


def age(span: timedelta) -> str:
    """A length of time as a person says it: the two largest units at most."""
    seconds = max(0, int(span.total_seconds()))
    for position, (name, size) in enumerate(_UNITS):
        if seconds >= size:
            count, rest = divmod(seconds, size)
            smaller, small_size = (*_UNITS, ("s", 1))[position + 1]
            more = f" {rest // small_size}{smaller}" if count < 10 and rest >= small_size else ""
            return f"{count}{name}{more}"
    return f"{seconds}s"


def since(start: datetime | None, now: datetime) -> str:
    """Age of a moment; a dash if it is not known."""
    return "-" if start is None else age(now - start)


def shortened(text: str, limit: int = MAX_TEXT) -> str:
    """One line of bounded length."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 3]}..."


def table(rows: Sequence[Sequence[str]], indent: str = "") -> list[str]:
    """Rows with aligned columns; the last column is as long as it is."""
    if not rows:
        return []
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]) - 1)]
    lines = (
        "  ".join([*(cell.ljust(width) for cell, width in zip(row, widths, strict=False)), row[-1]])
        for row in rows
    )
    return [f"{indent}{line}".rstrip() for line in lines]
