"""Owns how values are shown to people: those of a spec in plain words, short, never a Python
literal; moments as Kubernetes writes them.

Does not own the sentences around it (``rules``, ``parse``).
"""

import json
from collections.abc import Iterator, Mapping
from datetime import datetime
from typing import Any

MAX_VALUE_TEXT = 80
MOMENT_FORMAT = "%Y-%m-%dT%H:%M:%SZ"


def moment_text(moment: datetime) -> str:
    """A moment of UTC, to the second."""
    return moment.strftime(MOMENT_FORMAT)


def shown(value: Any) -> str:
    """The value as text, cut to what fits into a sentence; empty for None."""
    if value is None:
        return ""
    text = value if isinstance(value, str) else ", ".join(_words(value, ""))
    return text if len(text) <= MAX_VALUE_TEXT else f"{text[: MAX_VALUE_TEXT - 3]}..."


def _words(value: Any, path: str) -> Iterator[str]:
    """The leaves of maps and lists, each behind its path."""
    if isinstance(value, Mapping) and value:
        for key, item in value.items():
            yield from _words(item, f"{path}.{key}" if path else str(key))
    elif isinstance(value, list) and value:
        for item in value:
            yield from _words(item, path)
    else:
        text = value if isinstance(value, str) else json.dumps(value, default=str)
        yield f"{path}: {text}" if path else text
