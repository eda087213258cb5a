from collections.abc import Callable

import pytest

from mizzen_operator.cluster.watch_pulse import WatchPulse, WatchTiming
from mizzen_operator.store import POD, SERVICE_KIND


class Stream:
    def __init__(self) -> None:
        self.total_bytes = 0
        self.end: Callable[[], None] = lambda: None

    def on_eof(self, callback: Callable[[], None]) -> None:
        self.end = callback


class World:
    """A pulse of two kinds and a clock that is moved by hand."""

    def __init__(self) -> None:
        self.now_s = 100.0
        self.pulse = WatchPulse(WatchTiming(max_silence_s=30), clock=lambda: self.now_s)
        self.pulse.expect((POD, SERVICE_KIND))

    def later(self, seconds: float) -> dict[str, float]:
        self.now_s += seconds
        self.pulse.listen()
        return {str(kind): silence_s for kind, silence_s in self.pulse.silence_s().items()}


SERVICES = str(SERVICE_KIND)


def test_nothing_is_silent_before_the_watches_begin() -> None:
    assert WatchPulse(WatchTiming(), clock=lambda: 5.0).silence_s() == {}


def test_a_watch_that_never_got_an_answer_is_silent_since_its_start() -> None:
    assert World().later(30) == {"pods": 30, SERVICES: 30}


def test_bytes_break_the_silence_of_their_kind_alone() -> None:
    world, stream = World(), Stream()
    world.pulse.follow(POD, stream)
    stream.total_bytes += 7
    assert world.later(30) == {"pods": 0, SERVICES: 30}
    assert world.later(5) == {"pods": 5, SERVICES: 35}


def test_row_68_only_a_long_silence_is_too_long() -> None:
    world, stream = World(), Stream()
    world.pulse.follow(POD, stream)
    world.later(30)
    assert world.pulse.too_silent_s() == {}
    stream.total_bytes += 1
    world.later(1)
    assert world.pulse.too_silent_s() == {SERVICE_KIND: 31}


def test_headers_alone_prove_nothing() -> None:
    world = World()
    for _ in range(3):
        world.pulse.follow(POD, Stream())
        world.later(10)
    assert world.later(0)["pods"] == 30


def test_a_stream_without_bookmarks_is_heard_by_its_end_in_order() -> None:
    world, stream = World(), Stream()
    world.pulse.follow(POD, stream)
    world.later(30)
    stream.end()
    assert world.later(20)["pods"] == 20


def test_the_last_bytes_of_a_stream_count_when_the_next_one_is_opened() -> None:
    world, stream = World(), Stream()
    world.pulse.follow(POD, stream)
    world.later(30)
    stream.total_bytes += 1
    world.pulse.follow(POD, Stream())
    assert world.later(2)["pods"] == 2


@pytest.mark.parametrize("max_silence_s", [10.0, 12.0, 110.0, 3600.0])
def test_a_connection_that_breaks_is_replaced_and_heard_in_time(max_silence_s: float) -> None:
    """The worst case: it broke just after a sign, and the new one stays calm until its bookmark."""
    timing = WatchTiming(max_silence_s=max_silence_s)
    assert timing.server_timeout_s < timing.reconnect_after_s
    assert timing.reconnect_after_s + timing.server_timeout_s < max_silence_s
