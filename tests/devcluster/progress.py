"""Owns what a starting cluster says about itself, from the cell to whoever started it.

Lines of JSON over a pipe whose reader may go away at any time. Not here: what is printed (cli.py).
"""

import contextlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Literal

Kind = Literal["begin", "done", "note", "ready", "failed"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One line of progress."""

    kind: Kind
    text: str
    seconds: float = 0.0


class Reporter:
    """Writes events to a file descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def say(self, kind: Kind, text: str, seconds: float = 0.0) -> None:
        """Report; a reader that is gone is no error."""
        line = json.dumps(asdict(Event(kind=kind, text=text, seconds=seconds))) + "\n"
        with contextlib.suppress(OSError):
            os.write(self._descriptor, line.encode())

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Report the begin of a step and, if it succeeds, its end with the time it took."""
        began = time.monotonic()
        self.say("begin", text)
        yield
        self.say("done", text, time.monotonic() - began)


def parse(line: str) -> Event:
    """Read one line back."""
    return Event(**json.loads(line))
