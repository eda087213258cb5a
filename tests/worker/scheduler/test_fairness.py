"""That nobody waits for ever, whatever the policy; random workloads under each."""

import random

import pytest
from tests.scale import count
from tests.worker.scheduler.harness import Harness, make_submit

from mizzen_worker.contracts.request import FinishKind
from mizzen_worker.contracts.schedule_policy import SchedulePolicy


@pytest.mark.parametrize("policy", SchedulePolicy)
def test_a_stream_of_preferred_requests_starves_nobody(policy: SchedulePolicy) -> None:
    """Two newcomers a second that every policy prefers; the disliked one ends all the same."""
    harness = Harness(max_slots=1, policy=policy, ageing_s=20.0)
    harness.warm([9, *range(40)])
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
