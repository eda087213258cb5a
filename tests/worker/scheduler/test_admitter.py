"""Who starts when: orders, shared prefixes, preemption, and that nobody waits for ever."""

import random

import pytest
from tests.scale import count
from tests.worker.scheduler.harness import Attempt, Harness, make_submit

from mizzen_worker.cache.page_key import PageKey
from mizzen_worker.cache.results import Match
from mizzen_worker.contracts.messages import HandBack, HandBackCause
from mizzen_worker.contracts.request import FinishKind
from mizzen_worker.contracts.schedule_policy import SchedulePolicy
from mizzen_worker.scheduler.admitter import MAX_EXAMINED
from mizzen_worker.scheduler.preemption import MAX_PREEMPTIONS
from mizzen_worker.scheduler.prefix_sharing import WORTH_TOKENS
from mizzen_worker.scheduler.req import Req


def _live(harness: Harness, name: str) -> Req:
    req = harness.state.roster.get(name)
    assert req is not None
    return req


def _steps(harness: Harness, number_of: int) -> None:
    for _ in range(number_of):
        harness.step()


def _running(harness: Harness) -> list[str]:
    return [req.request_id for req in harness.state.roster.running]


def _order_of_ends(harness: Harness, attempts: dict[str, Attempt]) -> list[str]:
    ends: list[str] = []
    for _ in range(5000):
        harness.step()
        ends += [n for n, attempt in attempts.items() if attempt.terminals and n not in ends]
        if len(ends) == len(attempts):
            return ends
    raise AssertionError(f"only {ends} ended")


# Orders.


def _warm(harness: Harness, prompt: list[int]) -> None:
    harness.submit(make_submit(f"warm{len(harness.attempts)}", prompt, max_new_tokens=1))
    harness.run()


def test_lpm_starts_what_is_cached_longest() -> None:
    harness = Harness(max_slots=1, policy=SchedulePolicy.LPM)
    _warm(harness, [9, *range(40)])
    wanted = {"none": [8, 8, 8], "short": [9, *range(20), 7], "long": [9, *range(38), 7]}
    attempts = {
        name: harness.submit(make_submit(name, prompt, max_new_tokens=2, ignore_eos=True))
        for name, prompt in wanted.items()
    }
    assert _order_of_ends(harness, attempts) == ["long", "short", "none"]
    harness.assert_idle_and_whole()


def test_dfs_weight_lets_siblings_run_together() -> None:
    harness = Harness(max_slots=1, policy=SchedulePolicy.DFS_WEIGHT)
    _warm(harness, [1] * 33)
    _warm(harness, [2] * 33)
    wanted = {"a1": [1] * 33, "b1": [2] * 33, "none": [5] * 5, "b2": [2] * 34, "b3": [2] * 35}
    attempts = {
        name: harness.submit(make_submit(name, prompt, max_new_tokens=2, ignore_eos=True))
        for name, prompt in wanted.items()
    }
    assert _order_of_ends(harness, attempts) == ["b1", "b2", "b3", "a1", "none"]
    harness.assert_idle_and_whole()


def test_lof_starts_the_longest_output() -> None:
    harness = Harness(max_slots=1, policy=SchedulePolicy.LOF)
    attempts = {
        str(length): harness.submit(
            make_submit(str(length), [length], max_new_tokens=length, ignore_eos=True)
        )
        for length in (3, 9, 6)
    }
    assert _order_of_ends(harness, attempts) == ["9", "6", "3"]


def test_a_long_line_is_first_come_first_served_behind_what_is_examined() -> None:
    harness = Harness(max_slots=1, policy=SchedulePolicy.LPM)
    _warm(harness, [9, *range(40)])
    attempts = {
        f"r{number}": harness.submit(make_submit(f"r{number}", [number % 50], max_new_tokens=1))
        for number in range(MAX_EXAMINED)
    }
    attempts["cached"] = harness.submit(make_submit("cached", [9, *range(38)], max_new_tokens=1))
    ends = _order_of_ends(harness, attempts)
    assert ends[:2] == ["r0", "cached"]
    assert ends[2:] == [f"r{number}" for number in range(1, MAX_EXAMINED)]


@pytest.mark.parametrize("policy", SchedulePolicy)
def test_a_step_matches_a_bounded_part_of_a_long_line_and_only_what_is_new(
    policy: SchedulePolicy,
) -> None:
    harness = Harness(page_size=4, num_pages=64, max_slots=4, policy=policy, is_audited=False)
    harness.submit(make_submit("runs", range(20), max_new_tokens=200, ignore_eos=True))
    _steps(harness, 2)
    for number in range(300):  # None fits beside the one that runs.
        harness.submit(make_submit(f"r{number}", [number % 50] * 100, max_new_tokens=150))
    cache = harness.state.residency.cache
    asked: list[Match | None] = []
    really_match = cache.match

    def count_and_match(key: PageKey, hint: Match | None = None) -> Match:
        asked.append(hint)
        return really_match(key, hint)

    cache.match = count_and_match  # type: ignore[method-assign]
    harness.step()
    assert 0 < len(asked) <= MAX_EXAMINED
    asked.clear()
    _steps(harness, 5)
    # The tree did not change, so everybody's match is still known.
    assert asked == []


# Prefixes computed once.


@pytest.mark.parametrize("page_size", [1, 4, 16])
@pytest.mark.parametrize("max_chunk_tokens", [16, 48, 512])
@pytest.mark.parametrize("delays", [None, 3])
def test_a_common_prefix_is_computed_once(
    page_size: int, max_chunk_tokens: int, delays: int | None
) -> None:
    harness = Harness(
        page_size=page_size, max_chunk_tokens=max_chunk_tokens, num_pages=1024, delays=delays
    )
    common = [*range(1, 61), *range(4)] * 3  # 192 tokens, whole pages of every size.
    tails = [[50 + number, number] for number in range(6)]
    for number, tail in enumerate(tails):
        harness.submit(
            make_submit(f"r{number}", common + tail, temperature=1.0, seed=number, ignore_eos=True)
        )
        if number % 3 == 0:  # Some come while the first prefill is in flight.
            harness.step()
    harness.run()
    harness.assert_all_served()
    num_wasted = harness.loop.counters.prefilled_tokens - len(common) - sum(map(len, tails))
    # With so small chunks the rest in flight may be too short to be worth waiting for.
    assert 0 <= num_wasted < (WORTH_TOKENS if delays and max_chunk_tokens == 16 else 1)
    harness.assert_idle_and_whole()


def test_copies_of_one_prompt_compute_it_once_and_their_last_page_each() -> None:
    harness = Harness(page_size=4, max_chunk_tokens=32)
    for number in range(8):
        harness.submit(make_submit(f"n{number}", range(50), temperature=1.0, seed=number))
    harness.run()
    harness.assert_all_served()
    assert harness.loop.counters.prefilled_tokens == 50 + 7 * 2


def test_strangers_go_on_while_others_wait_for_a_prefix() -> None:
    harness = Harness(page_size=4, max_chunk_tokens=64)
    harness.submit(make_submit("leader", range(48)))
    harness.submit(make_submit("follower", range(50)))
    harness.submit(make_submit("stranger", [60] * 12))
    harness.submit(make_submit("salted", range(50), cache_salt="tenant"))
    harness.step()
    assert _running(harness) == ["leader", "stranger", "salted"]
    harness.step()
    assert "follower" in _running(harness)
    harness.run()
    harness.assert_all_served()


def test_a_short_common_prefix_is_not_worth_waiting_for() -> None:
    harness = Harness(page_size=4, max_chunk_tokens=64)
    harness.submit(make_submit("a", [*range(20), 1]))
    harness.submit(make_submit("b", [*range(20), 2]))
    harness.step()
    assert _running(harness) == ["a", "b"]
    harness.run()
    harness.assert_all_served()


def test_a_follower_goes_on_as_soon_as_the_shared_part_is_cached() -> None:
    harness = Harness(page_size=4, max_chunk_tokens=32)
    harness.submit(make_submit("leader", [*range(40), *([55] * 80)]))
    harness.submit(make_submit("follower", [*range(40), 56]))
    harness.step()
    assert _live(harness, "leader").num_kv == 32
    harness.step()
    assert _running(harness) == ["leader"]
    harness.step()
    assert _live(harness, "leader").num_kv == 96
    harness.step()
    assert "follower" in _running(harness)
    harness.run()
    harness.assert_all_served()
    assert harness.loop.counters.prefilled_tokens == 120 + 1


@pytest.mark.parametrize("how", ["abort", "deadline", "lost_step"])
def test_a_follower_goes_on_when_its_leader_ends(how: str) -> None:
    harness = Harness(page_size=4, max_chunk_tokens=32)
    deadline_s = 5.0 if how == "deadline" else None
    leader = harness.submit(make_submit("leader", range(100), deadline_s=deadline_s))
    follower = harness.submit(make_submit("follower", range(100)))
    harness.step()
    assert _live(harness, "follower").memo.leader is _live(harness, "leader")
    if how == "abort":
        harness.abort(leader)
    elif how == "deadline":
        harness.now = 6.0
    else:
        harness.state.residency.retract(_live(harness, "leader"))
        harness.state.roster.retract(_live(harness, "leader"))
    harness.run()
    assert follower.output == harness.expected(follower.submit)
    # What the leader had cached is not computed again.
    assert harness.loop.counters.prefilled_tokens <= 100 + 4
    harness.assert_idle_and_whole()


def test_an_overdue_request_waits_for_nobodys_prefix() -> None:
    harness = Harness(page_size=4, max_chunk_tokens=32, ageing_s=10.0)
    harness.submit(make_submit("leader", range(100)))
    harness.submit(make_submit("follower", [*range(99), 60]))
    harness.step()
    harness.now = 11.0
    harness.step()
    assert _live(harness, "leader").num_kv == 64  # The chunk is spent; but ...
    for _ in range(2):
        harness.step()
    assert "follower" in _running(harness)
    harness.run()
    harness.assert_all_served()


# Priority.


def test_priority_decides_who_starts() -> None:
    harness = Harness(max_slots=1, policy=SchedulePolicy.PRIORITY, is_preemptive=False)
    attempts = {
        name: harness.submit(make_submit(name, [1, 2], priority=priority, max_new_tokens=3))
        for name, priority in (("low", -1), ("high", 5), ("high2", 5), ("middle", 0))
    }
    assert _order_of_ends(harness, attempts) == ["high", "high2", "middle", "low"]
    assert harness.loop.counters.preemptions == 0


def test_priority_means_nothing_to_another_policy() -> None:
    harness = Harness(max_slots=1)
    attempts = {
        name: harness.submit(make_submit(name, [1, 2], priority=priority, max_new_tokens=3))
        for name, priority in (("low", -1), ("high", 5))
    }
    assert _order_of_ends(harness, attempts) == ["low", "high"]


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
    assert sorted(_running(harness)) == ["p0-0", "p1-0", "urgent"]
    assert _live(harness, "p0-1").num_output == 4
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
    assert "urgent" in _running(harness)
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
        assert _live(harness, "urgent").num_kv == num_done
    # What the urgent one left of its last chunk went to the other.
    assert _live(harness, "long").num_kv == 64 + 40
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
        assert _live(harness, "long").num_kv == num_done
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
    assert _running(harness) == ["old"]
    harness.run()
    harness.assert_all_served()
    assert harness.loop.counters.preemptions == 0


def test_an_urgent_newcomer_takes_the_place_of_the_last_in_a_full_line() -> None:
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


def test_a_request_that_was_served_already_keeps_its_place_in_a_full_line() -> None:
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


# Fairness.


@pytest.mark.parametrize("policy", SchedulePolicy)
def test_a_stream_of_preferred_requests_starves_nobody(policy: SchedulePolicy) -> None:
    """Two newcomers a second that every policy prefers; the disliked one ends all the same."""
    harness = Harness(max_slots=1, policy=policy, ageing_s=20.0)
    _warm(harness, [9, *range(40)])
    harness.submit(make_submit("first", [9, 1], priority=9, max_new_tokens=5, ignore_eos=True))
    harness.step()
    disliked = harness.submit(make_submit("disliked", [3], max_new_tokens=4, priority=-5))
    for number in range(100):
        harness.now += 0.5
        harness.submit(
            make_submit(
                f"r{number}", [9, *range(39)], max_new_tokens=5, priority=9, ignore_eos=True
            )
        )
        for _ in range(4):
            harness.step()
        if disliked.terminals:
            break
    assert disliked.output == harness.expected(disliked.submit)
    assert harness.now <= 20.0 + 20.0


def _play(policy: SchedulePolicy, seed: int) -> Harness:
    """Play a random workload; each request must end within a bound of steps."""
    dice = random.Random(seed)
    page_size = dice.choice((1, 4, 16))
    harness = Harness(
        page_size=page_size,
        num_pages=-(-dice.randint(140, 260) // page_size),
        max_slots=dice.randint(1, 6),
        max_chunk_tokens=dice.choice((16, 32, 64)),
        policy=policy,
        ageing_s=dice.choice((0.0, 5.0, 40.0)),
        delays=dice.choice((None, seed)),
    )
    heads = [[], list(range(1, 60)), list(range(1, 30)) * 2, [9] * 40]
    work = 0
    for number in range(30):
        submit = make_submit(
            f"r{number}",
            dice.choice(heads) + dice.choices(range(3), k=dice.randint(1, 20)),
            max_new_tokens=dice.choice((2, 3, 5, 60)),
            temperature=dice.choice((0.0, 1.0)),
            seed=dice.randrange(4),
            priority=dice.choice((0, 0, 1, 2, -3)),
            deadline_s=dice.choice((None, None, None, 30.0)),
        )
        attempt = harness.submit(submit)
        work += len(submit.prompt_ids) + submit.sampling.max_new_tokens
        for _ in range(dice.choice((0, 1, 4, 10))):
            harness.now += 0.5
            harness.step()
        if dice.random() < 0.1:
            harness.abort(attempt)
    for _ in range(4 * work):  # One request at a time, each chunk one token, with reserve.
        harness.now += 0.5
        harness.step()
        if all(attempt.terminals for attempt in harness.attempts.values()):
            break
    return harness


def _play_all(seeds: range) -> dict[SchedulePolicy, int]:
    preemptions = dict.fromkeys(SchedulePolicy, 0)
    for policy in SchedulePolicy:
        for seed in seeds:
            harness = _play(policy, seed)
            for attempt in harness.attempts.values():
                expected = harness.expected(attempt.submit)
                kind = attempt.finished.reason.kind
                if kind in (FinishKind.ABORT, FinishKind.DEADLINE):
                    assert attempt.output == expected[: len(attempt.output)]
                else:
                    assert attempt.output == expected
            preemptions[policy] += harness.loop.counters.preemptions
            harness.assert_idle_and_whole()
    return preemptions


@pytest.mark.timeout(600)
def test_random_workloads_end_under_every_policy() -> None:
    preemptions = _play_all(range(count(check=4, full=40)))
    assert preemptions.pop(SchedulePolicy.PRIORITY) > 0
    assert not any(preemptions.values())
