"""A child for tests: takes work and dies, dies while it loads, then works until it is drained."""

import sys
from pathlib import Path

import msgspec

from mizzen_worker.ipc.parent_link import ParentLink, Report


class Lives(msgspec.Struct, frozen=True, kw_only=True):
    """Where the number of lives is kept."""

    file: str


def main() -> None:
    link = ParentLink(int(sys.argv[1]))
    file = Path(link.read_configuration(Lives).file)
    life = 1 + (len(file.read_text()) if file.exists() else 0)
    file.write_text("x" * life)
    link.report(Report(state="loading" if life == 2 else "ready", num_beats=life))
    if life < 3:
        raise SystemExit(1)
    link.wait()


if __name__ == "__main__":
    main()
