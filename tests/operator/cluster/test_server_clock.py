from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from mizzen_operator.cluster.server_clock import ServerClock

NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)


class World:
    """An API server and a machine, each with a clock of its own; seconds pass for both."""

    def __init__(self, *, ahead: timedelta = timedelta(0)) -> None:
        self.passed_s = 0.0
        self.server = NOON
        self.local = NOON + ahead
        self.clock = ServerClock(clock=lambda: self.passed_s, now=lambda: self.local)

    def later(self, seconds: float) -> None:
        self.passed_s += seconds
        self.server += timedelta(seconds=seconds)
        self.local += timedelta(seconds=seconds)

    def answer(self) -> None:
        self.clock.heard(format_datetime(self.server.replace(microsecond=0), usegmt=True))

    def error(self) -> timedelta:
        return self.clock.now() - self.server


def test_it_is_the_local_clock_until_the_first_answer() -> None:
    world = World()
    world.later(5)
    assert world.error() == timedelta(0)


@pytest.mark.parametrize("ahead", [-HOUR, HOUR])
def test_a_local_clock_that_is_wrong_does_not_matter(ahead: timedelta) -> None:
    world = World(ahead=ahead)
    assert world.error() == ahead
    world.answer()
    assert abs(world.error()) <= timedelta(seconds=1)


@pytest.mark.parametrize("jump", [-HOUR, HOUR])
def test_a_jump_of_the_local_clock_is_not_noticed(jump: timedelta) -> None:
    world = World()
    world.answer()
    world.local += jump
    world.later(90)
    assert world.error() == timedelta(0)


@pytest.mark.parametrize("jump", [-HOUR, HOUR])
def test_a_jump_of_the_api_server_is_followed(jump: timedelta) -> None:
    world = World()
    world.answer()
    world.server += jump
    world.answer()
    assert abs(world.error()) <= timedelta(seconds=1)


def test_whole_seconds_and_slow_answers_never_turn_it_back() -> None:
    world = World()
    last = world.clock.now()
    for step in range(200):
        world.later(0.37)
        if step % 3 == 0:
            world.answer()
        assert world.clock.now() > last
        assert abs(world.error()) <= timedelta(seconds=2)
        last = world.clock.now()


@pytest.mark.parametrize("date", [None, "", "yesterday"])
def test_an_answer_without_a_date_tells_nothing(date: str | None) -> None:
    world = World()
    world.clock.heard(date)
    assert world.error() == timedelta(0)
