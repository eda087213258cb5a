"""Owns when a fetch's threads end early: a signal, or another thread's failure."""

import logging
import threading
from collections.abc import Callable

from mizzen_worker.contracts.errors import FetchError
from mizzen_worker.contracts.fetch import FetchReason
from mizzen_worker.fetch.progress import Progress

_logger = logging.getLogger(__name__)


class Stopping:
    """One switch for all threads; see ``Waiting``."""

    def __init__(self, progress: Progress, share: Callable[[], float]) -> None:
        self._is_asked = threading.Event()
        self._is_failed = threading.Event()
        self._wake = threading.Event()
        self._progress = progress
        self._share = share

    def stop(self) -> None:
        """Let every thread end at its next piece of work, for good; also from a handler."""
        self._is_asked.set()
        self._wake.set()

    def fail(self) -> None:
        """Likewise, because one of them failed; until the next ``begin``."""
        self._is_failed.set()
        self._wake.set()

    def begin(self) -> None:
        """Forget the failure of threads that have ended."""
        self._is_failed.clear()
        self._wake.clear()

    def require_going_on(self) -> None:
        """Raise ``FetchError`` (Interrupted) when it is time to end."""
        if self._is_asked.is_set() or self._is_failed.is_set():
            message = "was asked to end; what is here stays for the next attempt"
            raise FetchError(message, reason=FetchReason.INTERRUPTED)

    def pause(self, delay_s: float, error: FetchError) -> None:
        """See ``Waiting``."""
        self._progress.add_retry(error.reason.value)
        fields = {"reason": error.reason.value, "error": str(error), "delay_s": round(delay_s, 1)}
        _logger.warning("trying again", extra=fields)
        self.require_going_on()
        self._wake.wait(delay_s)
        self.require_going_on()

    def share(self) -> float:
        """See ``Waiting``."""
        return self._share()
