"""Owns how long each watch has been silent.

Does not own the connections, nor what a silence means (`health.py`). A connection that a broken
middle box keeps open looks like a calm cluster, so events prove nothing by their absence. But a
watch that lives is heard however calm its kind is: the API server ends each stream in order after
`server_timeout_s`, mostly with a bookmark before.

Streams are followed in the watch's thread, the rest is called from the main loop and from probes.
"""

import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from mizzen_operator.store import ResourceKind


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchTiming:
    """Seconds; within `max_silence_s` there is time for two new connections to be heard."""

    max_silence_s: float = 110.0
    """Of a watch; then liveness fails."""

    @property
    def server_timeout_s(self) -> int:
        """The API server ends each stream after it."""
        return max(1, int(self.max_silence_s / 3))

    @property
    def reconnect_after_s(self) -> float:
        """A stream that was silent for so long is given up for a new one."""
        return 1.25 * self.server_timeout_s + 1.0


class ByteStream(Protocol):
    """The body of an answer, as aiohttp has it."""

    total_bytes: int

    def on_eof(self, callback: Callable[[], None]) -> None:
        """Call it when the stream ends in order, at once if it has; never if it breaks."""


@dataclass(slots=True, kw_only=True)
class _Followed:
    """A stream and how much of it was heard."""

    stream: ByteStream
    num_bytes: int = 0

    def has_news(self) -> bool:
        """Whether any bytes came since the last question."""
        before, self.num_bytes = self.num_bytes, self.stream.total_bytes
        return self.num_bytes != before


class WatchPulse:
    """When each watch was last heard; one stream per kind at a time."""

    def __init__(self, timing: WatchTiming, *, clock: Callable[[], float]) -> None:
        self.timing = timing
        self._clock = clock
        self._lock = threading.Lock()
        self._heard_at_s: dict[ResourceKind, float] = {}
        self._followed: dict[ResourceKind, _Followed] = {}

    def expect(self, kinds: tuple[ResourceKind, ...]) -> None:
        """Watches of these kinds begin now; until then nothing is silent."""
        with self._lock:
            self._heard_at_s = dict.fromkeys(kinds, self._clock())

    def follow(self, kind: ResourceKind, stream: ByteStream) -> None:
        """A stream of `kind` was opened; the one before is heard for the last time."""
        with self._lock:
            self._listen(kind)
            self._followed[kind] = _Followed(stream=stream)
        stream.on_eof(partial(self._hear, kind))

    def listen(self) -> None:
        """Hear every stream; to be called more often than silences are judged."""
        with self._lock:
            for kind in self._followed:
                self._listen(kind)

    def silence_s(self) -> dict[ResourceKind, float]:
        """How long each watch has not been heard."""
        with self._lock:
            now_s = self._clock()
            return {kind: now_s - heard_s for kind, heard_s in self._heard_at_s.items()}

    def too_silent_s(self) -> dict[ResourceKind, float]:
        """Watches that have been silent for longer than they may."""
        return {
            kind: silence_s
            for kind, silence_s in self.silence_s().items()
            if silence_s > self.timing.max_silence_s
        }

    def _listen(self, kind: ResourceKind) -> None:
        followed = self._followed.get(kind)
        if followed is not None and followed.has_news():
            self._heard_at_s[kind] = self._clock()

    def _hear(self, kind: ResourceKind) -> None:
        with self._lock:
            self._heard_at_s[kind] = self._clock()
