"""Owns ``mizzen serve`` as a child that drains when the benchmark that started it dies.

Run as ``python -m mizzen_worker.bench.tied_server PARENT_PID [FLAGS OF SERVE ...]``. The kernel's
signal reaches it also where the parent was killed and could end nothing.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Become the server, unless the parent is gone already."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
    if os.getppid() == int(sys.argv[1]):
        # What was asked of the kernel stays over this.
        command = [sys.executable, "-m", "mizzen_worker", "serve", *sys.argv[2:]]
        os.execv(sys.executable, command)


if __name__ == "__main__":
    main()
