"""Who starts when: the orders of the policies, and prefixes that are computed once."""

import pytest
from tests.worker.scheduler.harness import Harness, make_submit

from mizzen_worker.cache.page_key import PageKey
from mizzen_worker.cache.results import Match
from mizzen_worker.contracts.schedule_policy import SchedulePolicy
from mizzen_worker.scheduler.admitter import MAX_EXAMINED
from mizzen_worker.scheduler.prefix_sharing import WORTH_TOKENS

# Orders.


def test_lpm_starts_what_is_cached_longest() -> None:
    harness = Harness(max_slots=1, policy=SchedulePolicy.LPM)
    harness.warm([9, *range(40)])
    wanted = {"none": [8, 8, 8], "short": [9, *range(20), 7], "long": [9, *range(38), 7]}
    attempts = {
        name: harness.submit(make_submit(name, prompt, max_new_tokens=2, ignore_eos=True))
        for name, prompt in wanted.items()
    }
    assert harness.order_of_ends(attempts) == ["long", "short", "none"]
    harness.assert_idle_and_whole()


def test_dfs_weight_lets_siblings_run_together() -> None:
    harness = Harness(max_slots=1, policy=SchedulePolicy.DFS_WEIGHT)
    harness.warm([1] * 33)
    harness.warm([2] * 33)
    wanted = {"a1": [1] * 33, "b1": [2] * 33, "none": [5] * 5, "b2": [2] * 34, "b3": [2] * 35}
    attempts = {
        name: harness.submit(make_submit(name, prompt, max_new_tokens=2, ignore_eos=True))
        for name, prompt in wanted.items()
    }
    assert harness.order_of_ends(attempts) == ["b1", "b2", "b3", "a1", "none"]
    harness.assert_idle_and_whole()


def test_lof_starts_the_longest_output() -> None:
    harness = Harness(max_slots=1, policy=SchedulePolicy.LOF)
    attempts = {
        str(length): harness.submit(
            make_submit(str(length), [length], max_new_tokens=length, ignore_eos=True)
        )
        for length in (3, 9, 6)
    }
    assert harness.order_of_ends(attempts) == ["9", "6", "3"]


def test_a_long_queue_is_first_come_first_served_behind_what_is_examined() -> None:
    harness = Harness(max_slots=1, policy=SchedulePolicy.LPM)
    harness.warm([9, *range(40)])
    attempts = {
        f"r{number}": harness.submit(make_submit(f"r{number}", [number % 50], max_new_tokens=1))
        for number in range(MAX_EXAMINED)
    }
    attempts["cached"] = harness.submit(make_submit("cached", [9, *range(38)], max_new_tokens=1))
    ends = harness.order_of_ends(attempts)
    assert ends[:2] == ["r0", "cached"]
    assert ends[2:] == [f"r{number}" for number in range(1, MAX_EXAMINED)]


@pytest.mark.parametrize("policy", SchedulePolicy)
def test_a_step_matches_a_bounded_part_of_a_long_queue_and_only_what_is_new(
    policy: SchedulePolicy,
) -> None:
    harness = Harness(page_size=4, num_pages=64, max_slots=4, policy=policy, is_audited=False)
    harness.submit(make_submit("runs", range(20), max_new_tokens=200, ignore_eos=True))
    harness.steps(2)
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
    harness.steps(5)
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
    assert harness.running_ids() == ["leader", "stranger", "salted"]
    harness.step()
    assert "follower" in harness.running_ids()
    harness.run()
    harness.assert_all_served()


def test_a_short_common_prefix_is_not_worth_waiting_for() -> None:
    harness = Harness(page_size=4, max_chunk_tokens=64)
    harness.submit(make_submit("a", [*range(20), 1]))
    harness.submit(make_submit("b", [*range(20), 2]))
    harness.step()
    assert harness.running_ids() == ["a", "b"]
    harness.run()
    harness.assert_all_served()


def test_a_follower_goes_on_as_soon_as_the_shared_part_is_cached() -> None:
    harness = Harness(page_size=4, max_chunk_tokens=32)
    harness.submit(make_submit("leader", [*range(40), *([55] * 80)]))
    harness.submit(make_submit("follower", [*range(40), 56]))
    harness.step()
    assert harness.live("leader").num_kv == 32
    harness.step()
    assert harness.running_ids() == ["leader"]
    harness.step()
    assert harness.live("leader").num_kv == 96
    harness.step()
    assert "follower" in harness.running_ids()
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
    assert harness.live("follower").memo.leader is harness.live("leader")
    if how == "abort":
        harness.abort(leader)
    elif how == "deadline":
        harness.now = 6.0
    else:
        harness.state.residency.retract(harness.live("leader"))
        harness.state.roster.retract(harness.live("leader"))
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
    assert harness.live("leader").num_kv == 64  # The chunk is spent; but ...
    for _ in range(2):
        harness.step()
    assert "follower" in harness.running_ids()
    harness.run()
    harness.assert_all_served()
