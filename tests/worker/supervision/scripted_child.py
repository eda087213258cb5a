"""A child for tests: says what its script says, then ends with 1, or stays and hears no wish."""

import os
import sys
import time
from pathlib import Path

import msgspec

from mizzen_worker.ipc.parent_link import ParentLink, Report


class Script(msgspec.Struct, frozen=True, kw_only=True):
    """How often it reports, what it says last, and where the number of its lives is kept."""

    num_reports: int = 1
    state: str = "ready"
    does_stay: bool = False
    lives: str | None = None
    ends_when: str | None = None
    """Ends when there is such a file."""
    shows_life: bool = False
    """Once, and never again."""


def main() -> None:
    link = ParentLink(int(sys.argv[1]))
    script = link.read_configuration(Script)
    if script.lives is not None:
        with Path(script.lives).open("a") as file:
            file.write("x")
    for number in range(script.num_reports - 1):
        link.report(Report(state="loading", num_beats=number))
    link.report(Report(state=script.state, num_beats=-1, detail="the last words"))
    if script.shows_life:
        link.live()
    while script.does_stay:
        time.sleep(60)
    while script.ends_when is not None and not Path(script.ends_when).exists():
        time.sleep(0.01)
    os._exit(1)  # At once: nothing delays its end behind its words.


if __name__ == "__main__":
    main()
