"""When decode rows share a step with prompts, are passed over, or have a step to themselves."""

import random
from dataclasses import dataclass, field
from itertools import pairwise

import pytest
from tests.scale import count
from tests.worker.scheduler.harness import Harness, make_submit

from mizzen_worker.contracts.batch import ScheduleBatch
from mizzen_worker.contracts.errors import ConfigError
from mizzen_worker.contracts.schedule_policy import SchedulePolicy
from mizzen_worker.scheduler.req import ReqState
from mizzen_worker.scheduler.step_mix import MixRule

FOR_EVER = MixRule(patience_s=1e6, max_riding_tokens=0)


def _shape(batch: ScheduleBatch) -> tuple[int, int]:
    """(prompt tokens, decode rows)."""
    return sum(row.num_new for row in batch.extends), len(batch.decodes.slots)


def _shapes(harness: Harness) -> list[tuple[int, int]]:
    return [_shape(batch) for batch in harness.runner.batches]


def _steps_in_flight(harness: Harness) -> list[int]:
    """At each launch to come: the steps that have not settled."""
    in_flight: list[int] = []
    launch = harness.runner.launch

    def watched(batch: ScheduleBatch):
        in_flight.append(len(harness.runner.unsettled))
        return launch(batch)

    harness.runner.launch = watched
    return in_flight


def _submit_many(harness: Harness, number_of: int, *, num_prompt: int, num_new: int) -> None:
    for number in range(number_of):
        prompt = [number, *range(num_prompt - 1)]
        name = f"{len(harness.attempts)}"
        harness.submit(make_submit(name, prompt, max_new_tokens=num_new, ignore_eos=True))


def test_no_patience_mixes_always() -> None:
    rule = MixRule()
    assert rule.is_mixed(1_000_000)
    assert not rule.is_decode_turn(1_000_000.0)


def test_patience_mixes_few_tokens_and_ends() -> None:
    rule = MixRule(patience_s=0.5, max_riding_tokens=256)
    assert rule.is_mixed(0)
    assert rule.is_mixed(256)
    assert not rule.is_mixed(257)
    assert [rule.is_decode_turn(wait_s) for wait_s in (0.0, 0.49, 0.5, 3.0)] == [
        *(False, False),
        *(True, True),
    ]


@pytest.mark.parametrize("patience_s", [-1.0, float("inf"), float("nan")])
def test_what_is_no_time_is_refused(patience_s: float) -> None:
    with pytest.raises(ConfigError, match=r"decode patience .* give 0 seconds or more"):
        MixRule(patience_s=patience_s)


@pytest.mark.parametrize("delays", [None, 1])
def test_prompts_fill_whole_chunks_and_then_decode_together(delays: int | None) -> None:
    harness = Harness(max_slots=24, max_chunk_tokens=64, delays=delays, mix=FOR_EVER)
    _submit_many(harness, 24, num_prompt=8, num_new=4)
    harness.run()
    assert _shapes(harness) == [(64, 0)] * 3 + [(0, 24)] * 3
    harness.assert_all_served()


def test_without_patience_they_start_one_chunk_after_the_other() -> None:
    harness = Harness(max_slots=24, max_chunk_tokens=64)
    _submit_many(harness, 24, num_prompt=8, num_new=4)
    harness.run()
    assert _shapes(harness) == [(64, 0), (64, 8), (64, 16), (0, 24), (0, 16), (0, 8)]


@pytest.mark.parametrize("delays", [None, 1])
def test_few_prompt_tokens_take_decode_rows_along(delays: int | None) -> None:
    rule = MixRule(patience_s=1e6, max_riding_tokens=8)
    harness = Harness(max_chunk_tokens=64, delays=delays, mix=rule)
    _submit_many(harness, 9, num_prompt=8, num_new=4)
    harness.run()
    assert _shapes(harness) == [(64, 0), (8, 8), (0, 9), (0, 9), (0, 1)]


@pytest.mark.parametrize("delays", [None, 1])
def test_who_has_waited_long_has_one_step_and_prompts_go_on_after_it(delays: int | None) -> None:
    rule = MixRule(patience_s=0.25, max_riding_tokens=0)
    harness = Harness(page_size=4, max_chunk_tokens=16, delays=delays, mix=rule)
    harness.submit(make_submit("first", [7, 8, 9], max_new_tokens=30, ignore_eos=True))
    harness.step()
    harness.submit(make_submit("long", range(16 * 9), max_new_tokens=2, ignore_eos=True))
    while harness.running_ids():
        harness.now += 0.1
        harness.step()
    shapes = _shapes(harness)
    # Launched at 0.0; passed over at 0.1 and 0.2, its turn at 0.3.
    assert shapes[:9] == [(3, 0), *[(16, 0)] * 2, (0, 1), *[(16, 0)] * 2, (0, 1), *[(16, 0)] * 2]
    harness.assert_all_served()


def test_patience_shorter_than_a_step_alternates() -> None:
    rule = MixRule(patience_s=0.001, max_riding_tokens=0)
    harness = Harness(page_size=4, max_chunk_tokens=16, mix=rule)
    harness.submit(make_submit("first", [7, 8, 9], max_new_tokens=30, ignore_eos=True))
    harness.step()
    harness.submit(make_submit("long", range(16 * 4), max_new_tokens=2, ignore_eos=True))
    for _ in range(8):
        harness.now += 0.1
        harness.step()
    assert _shapes(harness)[1:9] == [(16, 0), (0, 1)] * 3 + [(16, 0), (0, 2)]


def test_a_turn_of_decode_rows_does_not_wait_for_the_step_in_flight() -> None:
    rule = MixRule(patience_s=0.25, max_riding_tokens=0)
    harness = Harness(page_size=4, max_chunk_tokens=16, delays=2, mix=rule)
    in_flight = _steps_in_flight(harness)
    harness.submit(make_submit("first", [7, 8, 9], max_new_tokens=30, ignore_eos=True))
    harness.submit(make_submit("long", range(16 * 9), max_new_tokens=30, ignore_eos=True))
    for _ in range(15):
        harness.now += 0.1
        harness.step()
    assert (0, 1) in _shapes(harness)
    assert in_flight == [0] + [1] * 14


@pytest.mark.parametrize("delays", [None, 1])
def test_an_urgent_request_takes_its_place_after_a_turn_of_decode_rows(delays: int | None) -> None:
    rule = MixRule(patience_s=0.25, max_riding_tokens=0)
    harness = Harness(
        page_size=4, max_slots=2, max_chunk_tokens=16, delays=delays, mix=rule,
        policy=SchedulePolicy.PRIORITY,
    )  # fmt: skip
    in_flight = _steps_in_flight(harness)
    first = make_submit("first", [7, 8, 9], max_new_tokens=30, ignore_eos=True, priority=1)
    harness.submit(first)
    harness.submit(make_submit("long", range(16 * 9), max_new_tokens=2, ignore_eos=True))
    harness.step()
    for _ in range(2):
        harness.now += 0.1
        harness.step()
    urgent = make_submit("urgent", [1, 2], max_new_tokens=2, ignore_eos=True, priority=9)
    harness.submit(urgent)
    harness.now += 0.1
    harness.step()
    assert _shape(harness.runner.batches[-1]) == (0, 1)
    assert harness.loop.counters.preemptions == 0
    assert in_flight == [0] + [int(delays is not None)] * 3
    harness.step()
    assert harness.loop.counters.preemptions == 1
    assert "urgent" in harness.running_ids()
    harness.run()
    harness.assert_all_served()


def test_groups_are_told_again_after_a_step_without_decode_rows() -> None:
    harness = Harness(page_size=4, max_chunk_tokens=64, mix=FOR_EVER)
    head = list(range(1, 25))
    harness.warm(head)
    for number in range(4):
        prompt = [*head, number]
        harness.submit(make_submit(f"s{number}", prompt, max_new_tokens=30, ignore_eos=True))
    harness.steps(4)
    groups = harness.runner.batches[-1].decodes.groups
    assert [(group.count, group.num_tokens) for group in groups] == [(4, 24)]
    harness.submit(make_submit("other", range(30, 60), max_new_tokens=1, ignore_eos=True))
    harness.steps(2)
    assert not len(harness.runner.batches[-2].decodes.slots)
    assert harness.runner.batches[-1].decodes.groups == groups
    harness.run()
    harness.assert_all_served()


@dataclass
class _Watch:
    """What each decode row waits for, from the batches alone; judges every launch."""

    harness: Harness
    num_passed_over: int = 0
    num_turns: int = 0
    longest_s: float = 0.0
    times: list[float] = field(default_factory=list)
    had_prompts: list[bool] = field(default_factory=list)
    could_prompt: list[bool] = field(default_factory=list)
    launched: dict[int, int] = field(default_factory=dict)
    """By slot: index of its last step."""

    def __post_init__(self) -> None:
        self._launch = self.harness.runner.launch
        self.harness.runner.launch = self.launch

    def launch(self, batch: ScheduleBatch):
        index, now = len(self.times), self.harness.now
        self.times.append(now)
        self.had_prompts.append(bool(batch.extends))
        running = self.harness.state.roster.running
        self.could_prompt.append(any(req.state is ReqState.PREFILLING for req in running))
        there = set(batch.decodes.slots.tolist())
        for slot in self.harness.state.residency.book.due().tolist():
            last = self.launched[slot]
            waited_s = now - self.times[last]
            if slot in there:
                self.longest_s = max(self.longest_s, waited_s)
            else:
                self.num_passed_over += 1
                patience_s = self.harness.settings.mix.patience_s
                assert waited_s < patience_s or last == index - 1, "passed over for too long"
        self.num_turns += self.could_prompt[-1] and not batch.extends
        self.launched.update(dict.fromkeys([*there, *(row.slot for row in batch.extends)], index))
        return self._launch(batch)

    def judge(self) -> None:
        """Nobody waited longer than the bound, and prompts always got on."""
        longest_step_s = max(second - first for first, second in pairwise(self.times))
        patience_s = self.harness.settings.mix.patience_s
        assert self.longest_s <= max(patience_s, longest_step_s) + longest_step_s + 1e-9
        for first, second in pairwise(range(len(self.times))):
            is_stuck = self.could_prompt[first] and self.could_prompt[second]
            assert not is_stuck or self.had_prompts[first] or self.had_prompts[second]


@pytest.mark.parametrize("part", range(count(check=1, full=20)))
def test_no_row_is_passed_over_for_longer_than_its_patience_and_a_step(part: int) -> None:
    """Steps cost time by what they compute; requests come all the time, in bursts too."""
    num_passed_over = num_turns = 0
    num_seeds = count(check=4, full=12)
    for seed in range(part * num_seeds, (part + 1) * num_seeds):
        dice = random.Random(seed)
        patience_s = dice.choice((0.001, 0.05, 0.5))
        harness = Harness(
            page_size=4,
            # Memory for all: nobody is sent back, so whoever starts is always served on.
            num_pages=400,
            max_slots=dice.randint(2, 12),
            max_chunk_tokens=dice.choice((16, 64)),
            policy=dice.choice(tuple(SchedulePolicy)),
            is_preemptive=False,
            delays=dice.choice((None, seed)),
            needs_cpu_token=lambda submit: submit.sampling.seed == 3,
            mix=MixRule(patience_s=patience_s, max_riding_tokens=dice.choice((0, 5))),
        )
        watch = _Watch(harness)
        token_s = dice.choice((0.0001, 0.002, 0.02))
        for number in range(120):
            if number < 80:
                for _ in range(dice.choice((0, 0, 1, 1, 6))):
                    harness.submit(
                        make_submit(
                            f"r{len(harness.attempts)}",
                            [dice.randrange(9) for _ in range(dice.randint(1, 90))],
                            max_new_tokens=dice.randint(1, 12),
                            ignore_eos=dice.random() < 0.5,
                            seed=dice.randrange(4),
                            temperature=dice.choice((0.0, 1.0)),
                        )
                    )
            num_before = len(harness.runner.batches)
            harness.step()
            for batch in harness.runner.batches[num_before:]:
                harness.now += 0.004 + token_s * sum(_shape(batch))
        harness.run()
        harness.assert_all_served()
        harness.assert_idle_and_whole()
        watch.judge()
        num_passed_over += watch.num_passed_over
        num_turns += watch.num_turns
    assert num_passed_over > 16 * num_seeds
    assert num_turns > num_seeds
