"""Who goes first, and who makes room, under the policy of priorities."""

import pytest
from tests.worker.scheduler.harness import Harness, make_submit

from mizzen_worker.contracts.messages import HandBack, HandBackCause
from mizzen_worker.contracts.schedule_policy import SchedulePolicy
from mizzen_worker.scheduler.preemption import MAX_PREEMPTIONS


def test_priority_decides_who_starts() -> None:
    harness = Harness(max_slots=1, policy=SchedulePolicy.PRIORITY, is_preemptive=False)
    attempts = {
        name: harness.submit(make_submit(name, [1, 2], priority=priority, max_new_tokens=3))
        for name, priority in (("low", -1), ("high", 5), ("high2", 5), ("middle", 0))
    }
    assert harness.order_of_ends(attempts) == ["high", "high2", "middle", "low"]
    assert harness.loop.counters.preemptions == 0


def test_priority_means_nothing_to_another_policy() -> None:
    harness = Harness(max_slots=1)
    attempts = {
        name: harness.submit(make_submit(name, [1, 2], priority=priority, max_new_tokens=3))
        for name, priority in (("low", -1), ("high", 5))
    }
    assert harness.order_of_ends(attempts) == ["low", "high"]


def _fill(harness: Harness, number_of: int, *, priority: int, max_new_tokens: int = 60) -> None:
    for number in range(number_of):
        harness.submit(
            make_submit(
                f"p{priority}-{number}",
                [number, priority % 7, 3],
                priority=priority,
                max_new_tokens=max_new_tokens,
                ignore_eos=True,
            )
        )


def test_an_urgent_request_takes_the_slot_of_the_youngest_of_the_lowest_priority() -> None:
    harness = Harness(max_slots=3, policy=SchedulePolicy.PRIORITY)
    _fill(harness, 2, priority=0)
    _fill(harness, 1, priority=1)
    for _ in range(4):
        harness.step()
    harness.submit(make_submit("urgent", [9], priority=2, ignore_eos=True))
    harness.step()
    assert sorted(harness.running_ids()) == ["p0-0", "p1-0", "urgent"]
    assert harness.live("p0-1").num_output == 4
    harness.run()
    harness.assert_all_served()
    assert harness.loop.counters.preemptions == 1
    # Only its last page was computed again.
    assert harness.loop.counters.prefilled_tokens <= 3 * 3 + 1 + 4
    harness.assert_idle_and_whole()


def test_an_urgent_request_takes_pages() -> None:
    harness = Harness(page_size=4, num_pages=40, policy=SchedulePolicy.PRIORITY)
    _fill(harness, 3, priority=0, max_new_tokens=40)
    for _ in range(12):
        harness.step()
    urgent = harness.submit(
        make_submit("urgent", range(60), priority=1, max_new_tokens=60, ignore_eos=True)
    )
    harness.step()
    assert "urgent" in harness.running_ids()
    assert harness.loop.counters.preemptions >= 1
    harness.run()
    assert urgent.output == harness.expected(urgent.submit)
    harness.assert_all_served()
    harness.assert_idle_and_whole()


@pytest.mark.parametrize("is_preemptive", [True, False])
def test_a_long_prefill_leaves_an_urgent_request_its_chunks(*, is_preemptive: bool) -> None:
    harness = Harness(
        page_size=4, num_pages=1024, policy=SchedulePolicy.PRIORITY, is_preemptive=is_preemptive
    )
    harness.submit(make_submit("long", range(2000)))
    harness.step()
    harness.submit(make_submit("urgent", [5] * 150, priority=1))
    for num_done in (64, 128, 150):
        harness.step()
        assert harness.live("urgent").num_kv == num_done
    # What the urgent one left of its last chunk went to the other.
    assert harness.live("long").num_kv == 64 + 40
    harness.run()
    harness.assert_all_served()
    assert harness.loop.counters.preemptions == 0
    assert harness.loop.counters.prefilled_tokens == 2000 + 150


def test_an_overdue_prefill_leaves_nobody_its_chunks() -> None:
    harness = Harness(page_size=4, num_pages=1024, policy=SchedulePolicy.PRIORITY, ageing_s=10.0)
    harness.submit(make_submit("long", range(400)))
    harness.step()
    harness.now = 11.0
    harness.submit(make_submit("urgent", [5] * 150, priority=1))
    for num_done in (128, 192, 256):
        harness.step()
        assert harness.live("long").num_kv == num_done
    harness.run()
    harness.assert_all_served()


def test_nobody_is_preempted_for_an_equal_or_in_vain() -> None:
    harness = Harness(page_size=4, num_pages=32, max_slots=2, policy=SchedulePolicy.PRIORITY)
    _fill(harness, 1, priority=5, max_new_tokens=90)
    _fill(harness, 1, priority=0, max_new_tokens=20)
    for _ in range(3):
        harness.step()
    _fill(harness, 2, priority=-1)
    harness.submit(make_submit("equal", [5, 6, 7], priority=0))
    harness.submit(make_submit("large", range(100), priority=4, ignore_eos=True))
    harness.step()
    assert harness.loop.counters.preemptions == 0
    harness.run()
    harness.assert_all_served()


def test_preemption_can_be_switched_off() -> None:
    harness = Harness(max_slots=2, policy=SchedulePolicy.PRIORITY, is_preemptive=False)
    _fill(harness, 2, priority=0)
    harness.step()
    harness.submit(make_submit("urgent", [9], priority=2, ignore_eos=True))
    harness.run()
    harness.assert_all_served()
    assert harness.loop.counters.preemptions == 0


def test_one_request_makes_room_three_times_and_then_stays() -> None:
    harness = Harness(max_slots=1, policy=SchedulePolicy.PRIORITY)
    victim = harness.submit(make_submit("victim", [4], ignore_eos=True, max_new_tokens=20))
    harness.step()
    for number in range(60):
        if victim.terminals:
            break
        harness.submit(make_submit(f"u{number}", [9], priority=1, max_new_tokens=2))
        for _ in range(3):
            harness.step()
    assert harness.loop.counters.preemptions == MAX_PREEMPTIONS
    assert victim.output == harness.expected(victim.submit)
    harness.run()
    harness.assert_all_served()


def test_an_overdue_request_is_not_preempted() -> None:
    harness = Harness(max_slots=1, policy=SchedulePolicy.PRIORITY, ageing_s=10.0)
    harness.submit(make_submit("old", [4], ignore_eos=True))
    harness.step()
    harness.now = 11.0
    harness.submit(make_submit("urgent", [9], priority=1))
    harness.step()
    assert harness.running_ids() == ["old"]
    harness.run()
    harness.assert_all_served()
    assert harness.loop.counters.preemptions == 0


def test_an_urgent_newcomer_takes_the_place_of_the_last_in_a_full_queue() -> None:
    harness = Harness(max_slots=1, max_queued=2, policy=SchedulePolicy.PRIORITY, ageing_s=9.0)
    harness.submit(make_submit("runs", [1], priority=9, ignore_eos=True))
    harness.step()
    waiting = [harness.submit(make_submit(f"w{i}", [2, i], priority=i)) for i in (2, 1)]
    harness.step()
    refused = harness.submit(make_submit("equal", [3], priority=1))
    urgent = harness.submit(make_submit("urgent", [4], priority=3))
    harness.step()
    assert not waiting[0].terminals
    for attempt in (refused, waiting[1]):
        (terminal,) = attempt.terminals
        assert isinstance(terminal, HandBack)
        assert terminal.cause is HandBackCause.QUEUE_FULL
        assert 1 <= (terminal.retry_after_s or 0) <= 60
    harness.now = 10.0  # Those that wait are overdue: nobody takes their place any more.
    late = harness.submit(make_submit("late", [5], priority=8))
    harness.step()
    assert isinstance(late.terminals[0], HandBack)
    harness.run()
    assert urgent.output == harness.expected(urgent.submit)
    assert waiting[0].output == harness.expected(waiting[0].submit)


def test_a_request_that_was_served_already_keeps_its_place_in_a_full_queue() -> None:
    harness = Harness(max_slots=1, max_queued=1, policy=SchedulePolicy.PRIORITY)
    victim = harness.submit(make_submit("victim", [1], ignore_eos=True))
    harness.step()
    harness.submit(make_submit("urgent", [2], priority=1, ignore_eos=True))
    harness.step()
    assert harness.loop.counters.preemptions == 1
    refused = harness.submit(make_submit("more", [3], priority=2))
    harness.step()
    assert isinstance(refused.terminals[0], HandBack)
    harness.run()
    assert victim.output == harness.expected(victim.submit)
