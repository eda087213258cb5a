"""Owns when a failed attempt is made again, and after how long. Pure; times are seconds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from mizzen_worker.contracts.errors import FetchError, SourceChangedError
from mizzen_worker.contracts.fetch import FetchReason

T = TypeVar("T")
_RETRIED = (FetchReason.RATE_LIMITED, FetchReason.UNREACHABLE, FetchReason.VERIFY_FAILED)


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryPolicy:
    """How patient an attempt is; those that got further than any before do not count.

    Wrong content is fetched fewer times than a cut connection: it seldom heals.
    """

    max_failures: int = 8
    max_wrong_contents: int = 3
    first_delay_s: float = 1.0
    max_delay_s: float = 60.0
    max_asked_delay_s: float = 300.0
    """Whoever asks for a longer pause is believed: this run ends, a later one goes on."""

    def delay_s(self, error: FetchError, num_failures: int, share: float) -> float | None:
        """Pause before the next attempt; None where there is none. ``share`` is random, 0 to 1."""
        if error.reason not in _RETRIED or isinstance(error, SourceChangedError):
            return None
        wrong = error.reason is FetchReason.VERIFY_FAILED
        if num_failures >= (self.max_wrong_contents if wrong else self.max_failures):
            return None
        grown = min(self.max_delay_s, self.first_delay_s * 2.0 ** (num_failures - 1))
        pause = grown * (0.5 + share / 2)
        asked = error.retry_after_s or 0.0
        if asked > self.max_asked_delay_s:
            return None
        # Jitter on top: all who were refused at once are told the same time.
        return max(pause, asked + share * self.first_delay_s) if asked else pause


class Waiting(Protocol):
    """The effects of waiting."""

    def pause(self, delay_s: float, error: FetchError) -> None:
        """Wait; raises ``FetchError`` (Interrupted) where the process is to end."""

    def share(self) -> float:
        """A random number from 0 to 1."""


def retry(
    work: Callable[[], T],
    *,
    policy: RetryPolicy,
    waiting: Waiting,
    progress: Callable[[], int] = lambda: 0,
) -> T:
    """The result of the first attempt that succeeds; raises what the last one raised.

    ``progress`` never falls; an attempt that raised it makes the count of failures begin anew.
    """
    num_failures, furthest = 0, progress()
    while True:
        try:
            return work()
        except FetchError as error:
            reached = progress()
            num_failures = 1 if reached > furthest else num_failures + 1
            furthest = reached
            delay_s = policy.delay_s(error, num_failures, waiting.share())
            if delay_s is None:
                raise
            waiting.pause(delay_s, error)
