import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from tests.scale import count

from mizzen_operator.workqueue import Backoff, KeySchedule, WorkQueue

KEYS = st.sampled_from("abc")


class ScheduleMachine(RuleBasedStateMachine):
    """KeySchedule against a plain model: what is owed a run must run, once, never twice at once."""

    def __init__(self) -> None:
        super().__init__()
        self.schedule: KeySchedule[str] = KeySchedule()
        self.now_s = 0.0
        self.owed: set[str] = set()
        self.running: set[str] = set()
        self.due_s: dict[str, float] = {}

    def fire(self) -> None:
        for key, due_s in list(self.due_s.items()):
            if due_s <= self.now_s:
                del self.due_s[key]
                self.owed.add(key)

    @rule(key=KEYS)
    def add(self, key: str) -> None:
        self.schedule.add(key)
        self.owed.add(key)

    @rule(key=KEYS)
    def add_routine(self, key: str) -> None:
        self.schedule.add_routine(key)
        self.owed.add(key)

    @rule(key=KEYS, delay_s=st.integers(0, 5))
    def add_at(self, key: str, delay_s: int) -> None:
        due_s = self.now_s + delay_s
        self.schedule.add_at(key, due_s)
        self.due_s[key] = min(due_s, self.due_s.get(key, due_s))

    @rule(step_s=st.integers(0, 6))
    def pass_time(self, step_s: int) -> None:
        self.now_s += step_s

    @rule()
    def take(self) -> None:
        key = self.schedule.take(self.now_s)
        self.fire()
        if key is None:
            assert not self.owed - self.running
            return
        assert key in self.owed
        assert key not in self.running
        self.owed.remove(key)
        self.due_s.pop(key, None)
        self.running.add(key)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def done(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.running)))
        self.schedule.done(key)
        self.running.remove(key)

    @invariant()
    def agrees(self) -> None:
        assert self.schedule.num_running == len(self.running)
        assert self.schedule.next_due_s() == min(self.due_s.values(), default=None)


TestSchedule = ScheduleMachine.TestCase


def taken(schedule: KeySchedule[str], number: int) -> list[str | None]:
    keys = [schedule.take(0.0) for _ in range(number)]
    for key in keys:
        if key is not None:
            schedule.done(key)
    return keys


def test_news_goes_before_routine_which_gets_every_fourth_run() -> None:
    schedule: KeySchedule[str] = KeySchedule()
    for key in "xyz":
        schedule.add_routine(key)
    for key in "abcdefg":
        schedule.add(key)
    assert taken(schedule, 11) == [*"abc", "x", *"def", "y", "g", "z", None]


def test_news_of_a_key_takes_it_out_of_routine() -> None:
    schedule: KeySchedule[str] = KeySchedule()
    for key in "ab":
        schedule.add_routine(key)
    schedule.add("b")
    schedule.add_routine("b")
    assert taken(schedule, 3) == ["b", "a", None]


@given(
    num_failures=st.integers(1, 10_000),
    jitter=st.floats(0, 1, exclude_max=True),
    base_s=st.floats(0.001, 10),
    max_s=st.floats(10, 1000),
)
def test_backoff_stays_in_its_bounds(num_failures, jitter, base_s, max_s) -> None:
    delay_s = Backoff(base_s=base_s, max_s=max_s).delay_s(num_failures=num_failures, jitter=jitter)
    assert base_s / 2 <= delay_s <= max_s


def test_backoff_doubles_until_its_maximum() -> None:
    backoff = Backoff(base_s=1, max_s=10)
    assert [backoff.delay_s(num_failures=n, jitter=0.0) for n in (1, 2, 3, 4, 5, 99)] == [
        1, 2, 4, 8, 10, 10,
    ]  # fmt: skip


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def queue(clock: Clock) -> WorkQueue[str]:
    return WorkQueue(clock=clock, jitter=lambda: 0.0, backoff=Backoff(base_s=2, max_s=8))


def test_retry_backs_off_per_key_and_forget_resets() -> None:
    async def scenario() -> None:
        work = queue(Clock())
        assert [work.retry("a"), work.retry("a"), work.retry("b")] == [2, 4, 2]
        work.forget("a")
        assert work.retry("a") == 2
        assert work.retry("a", not_before_s=60) == 60
        assert work.retry("a", not_after_s=3) == 3
        assert work.retry("a", not_after_s=100) == 8
        assert work.retry("a", not_before_s=60, not_after_s=3) == 60

    asyncio.run(scenario())


@settings(max_examples=count(check=30, full=300))
@given(adds=st.lists(KEYS, max_size=20), num_workers=st.integers(1, 4))
def test_a_key_never_runs_twice_at_once_and_close_drains(adds, num_workers) -> None:
    async def scenario() -> None:
        work = queue(Clock())
        running: set[str] = set()
        ran: list[str] = []

        async def handle(key: str) -> None:
            assert key not in running
            running.add(key)
            await asyncio.sleep(0)
            running.remove(key)
            ran.append(key)

        for key in adds:
            work.add(key)
        work.add_after("late", 1000)
        work.close()
        work.add("ignored")
        await work.run(handle, num_workers=num_workers)
        assert sorted(ran) == sorted(set(adds))

    asyncio.run(scenario())


def test_a_key_added_while_it_runs_runs_once_more() -> None:
    async def scenario() -> None:
        work = queue(Clock())
        runs = 0

        async def handle(key: str) -> None:
            nonlocal runs
            runs += 1
            if runs == 1:
                work.add(key)
                work.add(key)
                work.close()

        work.add("a")
        await work.run(handle, num_workers=2)
        assert runs == 2

    asyncio.run(scenario())


def test_a_delayed_key_wakes_a_sleeping_worker() -> None:
    async def scenario() -> None:
        loop = asyncio.get_running_loop()
        work: WorkQueue[str] = WorkQueue(clock=loop.time, jitter=lambda: 0.0)

        async def handle(key: str) -> None:
            work.close()

        work.add_after("a", 0.01)
        await asyncio.wait_for(work.run(handle, num_workers=2), 10)

    asyncio.run(scenario())


def test_stall_is_measured_only_while_there_is_work() -> None:
    async def scenario() -> None:
        clock = Clock()
        work = queue(clock)
        clock.now_s += 1000
        assert work.stalled_for_s() == 0
        work.add("a")
        clock.now_s += 7
        assert work.stalled_for_s() == 7

    asyncio.run(scenario())


def test_an_exception_out_of_the_handler_ends_the_run() -> None:
    async def scenario() -> None:
        work = queue(Clock())

        async def handle(key: str) -> None:
            raise ValueError(key)

        work.add("a")
        with pytest.RaisesGroup(ValueError):
            await work.run(handle, num_workers=1)

    asyncio.run(scenario())


def test_the_wait_of_a_key_counts_from_the_first_news_for_its_run() -> None:
    async def scenario() -> None:
        clock = Clock()
        waits_s: list[float] = []
        work: WorkQueue[str] = WorkQueue(clock=clock, jitter=lambda: 0.0, on_wait=waits_s.append)

        async def handle(key: str) -> None:
            if len(waits_s) == 1:
                work.add(key)
                clock.now_s += 3
                work.close()

        work.add("a")
        clock.now_s += 1
        work.add("a")
        clock.now_s += 1
        await work.run(handle, num_workers=1)
        assert waits_s == [2, 3]

    asyncio.run(scenario())


def test_a_delay_is_no_wait() -> None:
    async def scenario() -> None:
        clock = Clock()
        waits_s: list[float] = []
        work: WorkQueue[str] = WorkQueue(clock=clock, jitter=lambda: 0.0, on_wait=waits_s.append)

        async def handle(key: str) -> None:
            work.close()

        work.add_after("a", 5)
        clock.now_s += 9
        await work.run(handle, num_workers=1)
        assert waits_s == [0]

    asyncio.run(scenario())
