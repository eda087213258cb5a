"""Owns what time it is: the API server's, from the `Date` of its answers.

Deadlines are counted from stamps that the API server wrote, so they are compared with its clock: a
local one that is wrong, or jumps, would make them seem over or never come. Between two answers the
monotonic clock goes on.
"""

import logging
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime

logger = logging.getLogger(__name__)

TOLERANCE = timedelta(seconds=2)
"""`Date` has whole seconds and is late by the way of the answer; within this nothing has jumped."""


class ServerClock:
    """The API server's wall clock; the local one until the first answer."""

    def __init__(self, *, clock: Callable[[], float], now: Callable[[], datetime]) -> None:
        self._clock = clock
        self._zero = now() - timedelta(seconds=clock())
        """When the monotonic clock was zero."""

    def now(self) -> datetime:
        """The present time, in UTC."""
        return self._zero + timedelta(seconds=self._clock())

    def heard(self, date: str | None) -> None:
        """An answer came now with this `Date` header; one that cannot be read tells nothing."""
        try:
            told = parsedate_to_datetime(date or "")
        except ValueError:
            return
        zero = told.astimezone(UTC) - timedelta(seconds=self._clock())
        if abs(zero - self._zero) <= TOLERANCE:
            # Of several answers the fastest is the nearest to the truth; so it never goes back.
            self._zero = max(zero, self._zero)
        else:
            by_s = (zero - self._zero).total_seconds()
            logger.info("the clock of the API server is %.0f s ahead of what was thought", by_s)
            self._zero = zero
