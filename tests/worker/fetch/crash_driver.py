"""Ends a fetch before its n-th touch of the disk, for each n asked for, and lets another finish it.

Run as a program: ``crash_driver.py FOLDER STRIDE SOURCE``. Each n gets a folder of its own and a
line: n, the exit status of the run that was to be ended, and that of the one after it.
"""

import os
import sys
from pathlib import Path

from tests.worker.fetch.small_model import IMPATIENT

from mizzen_worker.config.env import process_environment, read_fetch_environment
from mizzen_worker.fetch.command import run

TOUCHES = {"open", "os.rename", "os.remove", "os.rmdir", "os.mkdir", "shutil.rmtree"}
CRASHED = 9


def _end_before(touch: int, folder: Path) -> None:
    """Let this process end at once, as if it were killed; hooks cannot be taken back."""
    num_touches = 0

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal num_touches
        if event in TOUCHES and arguments and str(folder) in os.fsdecode(str(arguments[0])):
            num_touches += 1
            if num_touches == touch:
                os._exit(CRASHED)

    sys.addaudithook(hook)


def _in_child(folder: Path, source: str, touch: int | None) -> int:
    child = os.fork()
    if child == 0:
        if touch is not None:
            _end_before(touch, folder)
        arguments = ["--to", str(folder), "--parallel", "2", source]
        os._exit(run(arguments, read_fetch_environment(process_environment()), IMPATIENT))
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def main() -> None:
    """Go on until a run touches the disk less often than it is asked to end."""
    base, stride, source = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    touch, ended = 1, CRASHED
    while ended == CRASHED:
        folder = base / f"at-{touch}"
        ended = _in_child(folder, source, touch)
        print(touch, ended, _in_child(folder, source, None), flush=True)
        touch += stride


if __name__ == "__main__":
    main()
