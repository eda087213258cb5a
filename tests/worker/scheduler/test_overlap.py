"""What changes, and what must not, when a step is planned while the one before it runs."""

import dataclasses

import numpy as np
import pytest
from tests.worker.scheduler.harness import (
    EOS,
    PEER,
    Harness,
    make_submit,
    submit_more_than_predicted,
)

from mizzen_worker.contracts.batch import ScheduleBatch
from mizzen_worker.contracts.errors import DeviceError, InvariantError, StepError
from mizzen_worker.contracts.messages import Control, ControlVerb, HandBack, HandBackCause
from mizzen_worker.contracts.request import FinishKind, LogprobParams


def _rows_of(batch: ScheduleBatch, slot: int) -> int:
    return sum(row.slot == slot for row in batch.extends) + int((batch.decodes.slots == slot).sum())


def _prompt_with_eos_after(num_output: int) -> list[int]:
    """A prompt whose greedy answer ends with EOS as token number ``num_output``."""
    harness = Harness()
    for first in range(61):
        for second in range(61):
            submit = make_submit("x", [first, second, 3], max_new_tokens=num_output + 5)
            output = harness.expected(submit)
            if len(output) == num_output and output[-1] == EOS:
                return [first, second, 3]
    raise AssertionError("no such prompt")


@pytest.mark.parametrize(("delays", "most"), [(None, 1), (1, 2)])
def test_a_step_is_launched_before_the_one_before_it_has_settled(
    delays: int | None, most: int
) -> None:
    harness = Harness(delays=delays)
    harness.submit(make_submit("a", [1, 2], ignore_eos=True))
    harness.run()
    assert harness.runner.max_in_flight == most
    harness.assert_all_served()


def test_an_end_by_length_is_known_in_advance() -> None:
    harness = Harness(delays=1)
    harness.submit(make_submit("a", [1, 2], ignore_eos=True, max_new_tokens=9))
    harness.run()
    assert len(harness.runner.batches) == 9
    assert harness.runner.num_masked == 0
    assert harness.loop._pipeline.num_in_flight == 0


def test_a_request_that_ended_on_the_device_is_launched_once_more_and_that_is_dropped() -> None:
    harness = Harness(delays=1)
    attempt = harness.submit(make_submit("a", _prompt_with_eos_after(6), max_new_tokens=50))
    harness.run()
    assert attempt.finished.reason.matched == EOS
    assert len(harness.runner.batches) == 7
    assert harness.runner.num_masked == 1
    assert harness.loop.counters.generated_tokens == 6
    harness.assert_all_served()
    harness.assert_idle_and_whole()


@pytest.mark.parametrize("num_output", [1, 5, 6])
def test_no_page_with_a_surplus_position_is_cached(num_output: int) -> None:
    """Prompt 3 + 5 output tokens fill two pages of 4, but the last one has no KV."""
    prompt = _prompt_with_eos_after(num_output)
    harness = Harness(page_size=4, delays=1)
    first = harness.submit(make_submit("one", prompt, max_new_tokens=50))
    harness.run()
    turn = [*prompt, *first.output, 7, 8]
    second = harness.submit(make_submit("two", turn, max_new_tokens=5))
    harness.run()
    harness.assert_all_served()
    assert second.finished.usage.cached_tokens == (3 + num_output - 1) // 4 * 4


def test_what_an_aborted_row_may_write_stays_until_its_step_has_settled() -> None:
    harness = Harness(max_slots=1, page_size=4, delays=1)
    aborted = harness.submit(make_submit("a", range(20), ignore_eos=True, max_new_tokens=50))
    harness.step()
    residency = harness.state.residency
    slot, lease = harness.state.roster.live()[0].held()
    harness.abort(aborted)
    follower = harness.submit(make_submit("b", range(30, 50), ignore_eos=True))
    num_steps = len(harness.runner.batches)
    harness.loop._reception.receive()
    assert [departure.slot for departure in residency.departures] == [slot]
    assert lease.is_open
    assert residency.table.num_free == 0
    harness.step()
    assert not residency.departures
    assert not lease.is_open
    assert len(harness.runner.batches) == num_steps, "the only slot was still in flight"
    harness.run()
    assert aborted.finished.reason.kind is FinishKind.ABORT
    assert aborted.output == []
    assert follower.output == harness.expected(follower.submit)
    harness.assert_idle_and_whole()


def test_a_lost_peer_and_a_superseded_attempt_in_flight_leave_nothing() -> None:
    harness = Harness(delays=3)
    lost = harness.submit(make_submit("l", range(9), ignore_eos=True, max_new_tokens=50))
    for _ in range(3):
        harness.step()
    harness.endpoint.newly_lost.append(PEER)
    harness.run()
    assert lost.terminals == []
    old = harness.submit(make_submit("a", range(9), ignore_eos=True, max_new_tokens=50))
    for _ in range(3):
        harness.step()
    again = harness.submit(make_submit("a", range(9), ignore_eos=True, generation=1))
    harness.run()
    assert old.finished.reason.kind is FinishKind.ABORT
    assert again.output == harness.expected(again.submit)
    harness.assert_idle_and_whole()


def test_a_row_that_needs_its_token_on_the_cpu_is_never_planned_while_it_is_in_flight() -> None:
    harness = Harness(delays=1, needs_cpu_token=lambda submit: submit.request_id == "grammar")
    runner = harness.runner
    launch = runner.launch
    overlapped: list[bool] = []

    def watched(batch: ScheduleBatch):
        req = harness.state.roster.get("grammar")
        if req is not None and req.slot is not None and _rows_of(batch, req.slot):
            assert not any(_rows_of(step, req.slot) for step in runner.unsettled)
        overlapped.append(bool(runner.unsettled))
        return launch(batch)

    runner.launch = watched
    harness.submit(make_submit("free", [1, 2], ignore_eos=True, max_new_tokens=30))
    harness.submit(make_submit("grammar", [3, 4], ignore_eos=True, max_new_tokens=8))
    harness.run()
    harness.assert_all_served()
    # The others overlap again as soon as it is gone.
    assert overlapped[:8] == [False] * 8
    assert all(overlapped[9:])


def test_a_retraction_waits_for_the_tokens_in_flight() -> None:
    harness = Harness(page_size=4, num_pages=24, max_slots=8, max_chunk_tokens=16, delays=5)
    submit_more_than_predicted(harness)
    harness.run()
    harness.assert_all_served()
    assert harness.loop.counters.retractions >= 5
    # Every token was computed once: a retracted request lost none that was in flight.
    assert harness.loop.counters.generated_tokens == 25 * 3 + 25 * 60
    harness.assert_idle_and_whole()


def test_a_drain_hands_back_with_the_tokens_in_flight() -> None:
    harness = Harness(delays=1)
    attempt = harness.submit(make_submit("a", [1, 2], ignore_eos=True, max_new_tokens=50))
    for _ in range(4):
        harness.step()
    assert len(attempt.output) == 3
    harness.control(Control(control_id=1, verb=ControlVerb.DRAIN))
    harness.step()
    (terminal,) = attempt.terminals
    assert isinstance(terminal, HandBack)
    assert attempt.output == harness.expected(attempt.submit)[:4]
    assert harness.loop.is_drained
    harness.assert_idle_and_whole()


def test_a_flush_reaches_what_an_ended_request_left_behind() -> None:
    harness = Harness(delays=1, page_size=4)
    harness.submit(make_submit("a", range(20), ignore_eos=True, max_new_tokens=3))
    harness.run()
    running = harness.submit(make_submit("b", range(20), ignore_eos=True, max_new_tokens=50))
    for _ in range(3):
        harness.step()
    harness.abort(running)
    harness.control(Control(control_id=1, verb=ControlVerb.FLUSH_CACHE))
    harness.step()
    assert harness.state.residency.cache.num_cached == 0
    harness.assert_idle_and_whole()


def test_a_step_error_ends_its_batch_after_the_step_in_flight() -> None:
    harness = Harness(delays=1, max_slots=3)
    ending = harness.submit(make_submit("e", _prompt_with_eos_after(3), max_new_tokens=50))
    going = harness.submit(make_submit("g", [7, 8], ignore_eos=True, max_new_tokens=50))
    waiting = [harness.submit(make_submit(f"w{i}", [i, 9])) for i in range(4)]
    for _ in range(3):
        harness.step()
    harness.runner.launch_failure = StepError("no room for the batch")
    harness.step()
    assert ending.finished.reason.kind is FinishKind.STOP, "it had ended before"
    assert going.finished.reason.kind is FinishKind.ERROR
    assert going.output == harness.expected(going.submit)[:3]
    harness.run()
    served = [
        attempt for attempt in waiting if attempt.finished.reason.kind is not FinishKind.ERROR
    ]
    assert len(served) == 3
    assert all(attempt.output == harness.expected(attempt.submit) for attempt in served)
    harness.assert_idle_and_whole()


def test_a_device_error_hands_everything_back_once() -> None:
    harness = Harness(delays=1)
    running = harness.submit(make_submit("a", [1, 2], ignore_eos=True, max_new_tokens=50))
    aborted = harness.submit(make_submit("b", [3, 4], ignore_eos=True, max_new_tokens=50))
    for _ in range(3):
        harness.step()
    harness.abort(aborted)
    late = harness.submit(make_submit("c", [5]))
    harness.runner.settle_failure = DeviceError("the device is gone")
    with pytest.raises(DeviceError):
        harness.step()
    harness.loop.announce_restart()
    harness._read()
    for attempt in (running, aborted, late):
        (terminal,) = attempt.terminals
        assert isinstance(terminal, HandBack)
        assert terminal.cause is HandBackCause.RESTARTING
    assert running.output == harness.expected(running.submit)[:2]


@pytest.mark.parametrize("token", [-1, 61, 10**6])
def test_a_token_outside_the_vocabulary_ends_its_request_and_is_not_sent(token: int) -> None:
    harness = Harness(delays=1)
    broken = harness.submit(make_submit("a", [1, 2], ignore_eos=True))
    other = harness.submit(make_submit("b", [3, 4], ignore_eos=True))
    for _ in range(3):
        harness.step()
    settle = harness.runner._settle

    def wrong(step: int):
        result = settle(step)
        harness.runner._settle = settle
        ids = np.array([token, *result.sampled_ids[1:]], dtype=np.int32)
        return dataclasses.replace(result, sampled_ids=ids)

    harness.runner._settle = wrong
    harness.run()
    assert broken.finished.reason.kind is FinishKind.ERROR
    assert "outside its vocabulary of 61" in (broken.finished.reason.message or "")
    assert broken.output == harness.expected(broken.submit)[:2]
    assert other.output == harness.expected(other.submit)


def test_a_runner_that_ends_a_request_which_goes_on_is_not_believed() -> None:
    harness = Harness(delays=1, is_audited=False)
    harness.submit(make_submit("a", [1, 2], ignore_eos=True))
    harness.step()
    settle = harness.runner._settle
    harness.runner._settle = lambda step: dataclasses.replace(
        settle(step), is_finished=np.array([True])
    )
    with pytest.raises(InvariantError, match="the runner ended request a, which goes on"):
        harness.step()


@pytest.mark.parametrize("delays", [None, 1])
def test_prompt_scores_over_chunks_cache_hits_and_retraction(delays: int | None) -> None:
    harness = Harness(page_size=4, num_pages=40, max_slots=6, max_chunk_tokens=16, delays=delays)
    for number in range(20):
        harness.submit(make_submit(f"s{number}", [number], max_new_tokens=2, ignore_eos=True))
    harness.run()
    for number, start in enumerate((None, 0, 1, 30, 44, 45, 0, 20)):
        harness.submit(
            make_submit(
                f"r{number}",
                range(45),
                max_new_tokens=40,
                ignore_eos=True,
                temperature=1.0,
                seed=number,
                logprobs=LogprobParams(num_top=number % 3, prompt_start=start),
            )
        )
    harness.run()
    harness.assert_all_served()
    assert harness.loop.counters.retractions > 0
    assert harness.loop.counters.cached_tokens > 0


@pytest.mark.parametrize("delays", [None, 1, 2])
@pytest.mark.parametrize("other_way", ["abort", "deadline", "supersede"])
def test_whatever_meets_a_request_while_it_ends_by_itself_it_ends_once(
    delays: int | None, other_way: str
) -> None:
    """At every step up to and past the one at which it ends on the device."""
    prompt = _prompt_with_eos_after(6)
    kinds = []
    for num_steps in range(1, 13):
        harness = Harness(delays=delays)
        deadline_s = 1.0 if other_way == "deadline" else None
        ending = harness.submit(make_submit("e", prompt, max_new_tokens=50, deadline_s=deadline_s))
        beside = harness.submit(make_submit("b", range(9), ignore_eos=True, max_new_tokens=20))
        harness.steps(num_steps)
        again = None
        if other_way == "abort":
            harness.abort(ending)
            harness.abort(ending)
        elif other_way == "deadline":
            harness.now = 2.0
        else:
            again = harness.submit(make_submit("e", prompt, max_new_tokens=50, generation=1))
        harness.run()
        kind = ending.finished.reason.kind
        kinds.append(kind)
        expected = harness.expected(ending.submit)
        assert ending.output == expected[: len(ending.output)]
        assert (kind is FinishKind.STOP) == (ending.output == expected)
        for attempt in (beside, again):
            assert attempt is None or attempt.output == harness.expected(attempt.submit)
        harness.assert_idle_and_whole()
    num_cut = kinds.index(FinishKind.STOP)
    cut = FinishKind.DEADLINE if other_way == "deadline" else FinishKind.ABORT
    assert kinds == [cut] * num_cut + [FinishKind.STOP] * (12 - num_cut)
    assert num_cut >= 5
