"""Owns the thread that lets a worker show life while a long step keeps its loop away.

A step may take longer than peers bear silence: a kernel that is compiled, a prompt of a million
tokens on a CPU. Whether the loop is stuck is the launcher's to judge, not theirs: it hears beats of
the loop itself. Owns no socket.
"""

import threading
from collections.abc import Callable


class Pulse:
    """Calls ``beat`` again and again until stopped."""

    def __init__(self, beat: Callable[[], None], *, interval_s: float) -> None:
        self._beat = beat
        self._interval_s = interval_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pulse", daemon=True)

    def start(self) -> None:
        """Begin; call once."""
        self._thread.start()

    def stop(self) -> None:
        """End, and wait for a beat that is under way; there is none where it never began."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join()

    def _run(self) -> None:
        while not self._stopped.wait(self._interval_s):
            self._beat()
