"""Owns which service is reconciled next: one entry per key, one worker per key, back-off, delays.

Does not own what reconciling means, nor the clock: time and jitter are arguments.

Invariants: a key is in at most one of ready, routine and running; a key added while it runs runs
once more afterwards; of several delays for one key the earliest wins; taking a key clears its
delay. News goes before routine, of which at least every fourth run is while there is any: neither
a look at the whole fleet keeps news waiting, nor does endless news keep that from its end.
"""

import asyncio
import heapq
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)

_NEWS_IN_A_ROW = 3
"""Runs for news, at most, while routine waits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Delays after failures in a row: doubling from base to max, less up to half by jitter."""

    base_s: float = 1.0
    max_s: float = 300.0

    def delay_s(self, *, num_failures: int, jitter: float) -> float:
        """Delay before the next try; `num_failures` from 1, `jitter` in [0, 1)."""
        exponent = min(num_failures - 1, 32)
        return min(self.base_s * 2.0**exponent, self.max_s) * (1.0 - jitter / 2.0)


class KeySchedule(Generic[K]):
    """The queue without waiting: a plain state machine over an explicit `now`."""

    def __init__(self) -> None:
        self._ready: dict[K, None] = {}
        self._routine: dict[K, None] = {}
        self._num_news_in_a_row = 0
        self._running: set[K] = set()
        self._again: set[K] = set()
        self._due_s: dict[K, float] = {}
        self._timers: list[tuple[float, int, K]] = []
        self._num_timers = 0

    @property
    def num_ready(self) -> int:
        return len(self._ready) + len(self._routine)

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def is_idle(self) -> bool:
        """Nothing ready and nothing running; delayed keys do not count."""
        return not self._ready and not self._routine and not self._running

    def add(self, key: K) -> None:
        """Make `key` ready, or let it run once more if it runs now."""
        if key in self._running:
            self._again.add(key)
        else:
            self._routine.pop(key, None)
            self._ready[key] = None

    def add_routine(self, key: K) -> None:
        """Like `add`, behind all that news made ready."""
        if key in self._running:
            self._again.add(key)
        elif key not in self._ready:
            self._routine[key] = None

    def add_at(self, key: K, due_s: float) -> None:
        """Make `key` ready at `due_s`, unless it is due earlier already."""
        known = self._due_s.get(key)
        if known is not None and known <= due_s:
            return
        self._due_s[key] = due_s
        self._num_timers += 1
        heapq.heappush(self._timers, (due_s, self._num_timers, key))

    def take(self, now_s: float) -> K | None:
        """The next key to run, of its kind the oldest first, or None; its delay is cleared."""
        self._fire(now_s)
        is_news = self._num_news_in_a_row < _NEWS_IN_A_ROW or not self._routine
        chosen = self._ready if self._ready and is_news else self._routine
        if not chosen:
            return None
        self._num_news_in_a_row = self._num_news_in_a_row + 1 if chosen is self._ready else 0
        key = next(iter(chosen))
        del chosen[key]
        self._due_s.pop(key, None)
        self._running.add(key)
        return key

    def done(self, key: K) -> None:
        """The run of `key` ended, well or badly."""
        self._running.remove(key)
        if key in self._again:
            self._again.remove(key)
            self._ready[key] = None

    def next_due_s(self) -> float | None:
        """When the earliest delay ends, or None."""
        self._drop_superseded()
        return self._timers[0][0] if self._timers else None

    def drop_delayed(self) -> None:
        """Forget every delay: nothing becomes ready by time any more."""
        self._due_s.clear()
        self._timers.clear()

    def _fire(self, now_s: float) -> None:
        self._drop_superseded()
        while self._timers and self._timers[0][0] <= now_s:
            _, _, key = heapq.heappop(self._timers)
            del self._due_s[key]
            self.add(key)
            self._drop_superseded()

    def _drop_superseded(self) -> None:
        while self._timers and self._due_s.get(self._timers[0][2]) != self._timers[0][0]:
            heapq.heappop(self._timers)


class WorkQueue(Generic[K]):
    """The queue with waiting, for one event loop; not for use from other threads."""

    def __init__(
        self,
        *,
        clock: Callable[[], float],
        jitter: Callable[[], float],
        backoff: Backoff | None = None,
        on_wait: Callable[[float], object] = lambda _: None,
    ) -> None:
        """`on_wait` is told, at each run, the seconds since news of its key; 0 without any."""
        self._clock = clock
        self._jitter = jitter
        self._backoff = backoff or Backoff()
        self._schedule: KeySchedule[K] = KeySchedule()
        self._num_failures: dict[K, int] = {}
        self._on_wait = on_wait
        self._added_at_s: dict[K, float] = {}
        self._wake = asyncio.Event()
        self._is_closed = False
        self._progress_s = clock()

    @property
    def num_ready(self) -> int:
        return self._schedule.num_ready

    @property
    def num_running(self) -> int:
        return self._schedule.num_running

    def stalled_for_s(self) -> float:
        """How long keys have waited or run without any run starting or ending; 0 when idle."""
        return 0.0 if self._schedule.is_idle else self._clock() - self._progress_s

    def add(self, key: K) -> None:
        """Reconcile `key` as soon as a worker is free; ignored after `close`."""
        if self._is_closed:
            return
        self._note_begin()
        self._schedule.add(key)
        self._added_at_s.setdefault(key, self._clock())
        self._wake.set()

    def add_routine(self, key: K) -> None:
        """Reconcile `key` when news leaves a worker free; ignored after `close`."""
        if self._is_closed:
            return
        self._note_begin()
        self._schedule.add_routine(key)
        self._wake.set()

    def _note_begin(self) -> None:
        if self._schedule.is_idle:
            self._progress_s = self._clock()

    def add_after(self, key: K, delay_s: float) -> None:
        """Reconcile `key` in `delay_s` at the latest; ignored after `close`."""
        if self._is_closed:
            return
        self._schedule.add_at(key, self._clock() + delay_s)
        self._wake.set()

    def retry(
        self, key: K, *, not_before_s: float = 0.0, not_after_s: float | None = None
    ) -> float:
        """Count a failure of `key`, schedule its next try, return the delay.

        `not_after_s` cuts the back-off short; `not_before_s` holds whatever the others say.
        """
        num_failures = self._num_failures.get(key, 0) + 1
        self._num_failures[key] = num_failures
        delay_s = self._backoff.delay_s(num_failures=num_failures, jitter=self._jitter())
        if not_after_s is not None:
            delay_s = min(delay_s, not_after_s)
        delay_s = max(delay_s, not_before_s)
        self.add_after(key, delay_s)
        return delay_s

    def forget(self, key: K) -> None:
        """Reset the back-off of `key` after a success."""
        self._num_failures.pop(key, None)

    def close(self) -> None:
        """Accept nothing more; keys that are ready or running still finish, delays are dropped."""
        self._is_closed = True
        self._schedule.drop_delayed()
        self._wake.set()

    async def run(self, handle: Callable[[K], Awaitable[None]], *, num_workers: int) -> None:
        """Work until closed and drained. `handle` must not raise; if it does, `run` raises."""
        async with asyncio.TaskGroup() as workers:
            for _ in range(num_workers):
                workers.create_task(self._work(handle))

    async def _work(self, handle: Callable[[K], Awaitable[None]]) -> None:
        while True:
            key = self._schedule.take(self._clock())
            if key is not None:
                self._progress_s = self._clock()
                # A key that a delay or routine made ready is no news that waits for a worker.
                self._on_wait(self._progress_s - self._added_at_s.pop(key, self._progress_s))
                try:
                    await handle(key)
                finally:
                    self._schedule.done(key)
                    self._progress_s = self._clock()
                    self._wake.set()
            elif self._is_closed and self._schedule.is_idle:
                return
            else:
                await self._wait()

    async def _wait(self) -> None:
        """Sleep until something was added, a run ended, or the earliest delay is over."""
        self._wake.clear()
        due_s = self._schedule.next_due_s()
        timeout_s = None if due_s is None else max(0.0, due_s - self._clock())
        try:
            await asyncio.wait_for(self._wake.wait(), timeout_s)
        except TimeoutError:
            return
