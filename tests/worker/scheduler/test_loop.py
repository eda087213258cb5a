"""What a scheduler does with requests, seen from its clients."""

import msgspec
import pytest
from tests.worker.scheduler.harness import (
    EOS,
    OTHER_PEER,
    PEER,
    Harness,
    make_submit,
    submit_more_than_predicted,
)

from mizzen_worker.contracts.errors import DeviceError, InvariantError, StepError
from mizzen_worker.contracts.ids import Generation, RequestId
from mizzen_worker.contracts.messages import Abort, Finished, HandBack, HandBackCause
from mizzen_worker.contracts.request import FinishKind


def test_one_request_gets_the_reference_tokens() -> None:
    harness = Harness()
    attempt = harness.submit(make_submit("a", range(1, 12), ignore_eos=True))
    harness.run()
    harness.assert_all_served()
    assert len(attempt.output) == 20
    assert attempt.finished.reason.kind is FinishKind.LENGTH
    usage = attempt.finished.usage
    assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (11, 20, 0)
    harness.assert_idle_and_whole()


def test_eos_ends_a_request_and_is_its_last_token() -> None:
    harness = Harness()
    attempts = [
        harness.submit(make_submit(f"r{number}", [number, 5, 9], max_new_tokens=400))
        for number in range(8)
    ]
    harness.run()
    harness.assert_all_served()
    stopped = [a for a in attempts if a.finished.reason.kind is FinishKind.STOP]
    assert stopped
    for attempt in stopped:
        assert attempt.output[-1] == EOS == attempt.finished.reason.matched
        assert EOS not in attempt.output[:-1]


def test_stop_tokens_and_min_new_tokens() -> None:
    harness = Harness()
    free = make_submit("free", [3, 4], max_new_tokens=30, ignore_eos=True)
    stop = harness.expected(free)[6]
    stopped = harness.submit(
        make_submit("s", [3, 4], max_new_tokens=30, ignore_eos=True, stop_token_ids=(stop,))
    )
    held = harness.submit(
        make_submit("h", [3, 4], max_new_tokens=30, stop_token_ids=(stop,), min_new_tokens=25)
    )
    harness.run()
    harness.assert_all_served()
    assert stopped.finished.reason.matched == stop
    assert len(held.output) > 25


def test_the_context_length_ends_a_request() -> None:
    harness = Harness(context_length=30)
    attempt = harness.submit(make_submit("a", range(20), max_new_tokens=500, ignore_eos=True))
    harness.run()
    assert attempt.finished.reason.kind is FinishKind.LENGTH
    assert len(attempt.output) == 10
    harness.assert_all_served()


def test_a_warm_cache_is_used_and_counted() -> None:
    harness = Harness(page_size=4)
    harness.submit(make_submit("cold", range(40), ignore_eos=True))
    harness.run()
    warm = harness.submit(make_submit("warm", range(40), ignore_eos=True))
    branch = harness.submit(make_submit("branch", [*range(22), 50, 51, 52], ignore_eos=True))
    harness.run()
    harness.assert_all_served()
    assert warm.finished.usage.cached_tokens == 36
    assert branch.finished.usage.cached_tokens == 20
    counters = harness.loop.counters
    assert (counters.prompt_tokens, counters.cached_tokens) == (40 + 40 + 25, 56)
    assert counters.prefilled_tokens == 40 + 4 + 5


def test_a_salt_shares_nothing() -> None:
    harness = Harness()
    harness.submit(make_submit("mine", range(40)))
    harness.run()
    other = harness.submit(make_submit("other", range(40), cache_salt="tenant"))
    harness.run()
    assert other.finished.usage.cached_tokens == 0
    harness.assert_all_served()


def test_the_answer_of_one_turn_is_cached_for_the_next() -> None:
    harness = Harness(page_size=4)
    first = harness.submit(make_submit("one", range(20), ignore_eos=True))
    harness.run()
    turn = [*range(20), *first.output, 7, 8, 9]
    second = harness.submit(make_submit("two", turn))
    harness.run()
    harness.assert_all_served()
    assert second.finished.usage.cached_tokens == 36  # 39 positions have KV: 9 whole pages


def test_chunks_are_cached_while_the_prefill_goes_on() -> None:
    harness = Harness(page_size=4, max_chunk_tokens=16)
    harness.submit(make_submit("long", range(60)))
    harness.step()
    harness.step()
    late = harness.submit(make_submit("late", range(60)))
    harness.run()
    harness.assert_all_served()
    assert late.finished.usage.cached_tokens >= 16


def test_decodes_go_on_beside_a_long_prefill() -> None:
    harness = Harness(max_chunk_tokens=8)
    first = harness.submit(make_submit("first", [1, 2], ignore_eos=True, max_new_tokens=50))
    harness.step()
    harness.submit(make_submit("long", range(80)))
    before = len(first.output)
    for _ in range(5):
        harness.step()
    assert len(first.output) == before + 5
    harness.run()
    harness.assert_all_served()


def test_several_prefills_share_a_step() -> None:
    harness = Harness(max_chunk_tokens=64, page_size=4)
    for name, length in (("a", 30), ("b", 30), ("c", 30)):
        harness.submit(make_submit(name, [len(name), *range(length)][:length], cache_salt=name))
    harness.step()
    assert [row.num_new for row in harness.runner.batches[0].extends] == [30, 30, 4]
    harness.run()
    harness.assert_all_served()


def test_a_small_pool_serves_fifty_requests_by_retraction() -> None:
    harness = Harness(page_size=4, num_pages=24, max_slots=8, max_chunk_tokens=16)
    submit_more_than_predicted(harness)
    harness.run()
    harness.assert_all_served()
    assert harness.loop.counters.retractions >= 5
    harness.assert_idle_and_whole()


def test_a_prefill_waits_for_pages_that_a_decode_took_against_the_prediction() -> None:
    harness = Harness(page_size=1, num_pages=100, max_slots=2, max_chunk_tokens=1)
    for number in range(4):
        harness.submit(make_submit(f"short{number}", [number], max_new_tokens=2, ignore_eos=True))
    harness.run()
    harness.submit(make_submit("grows", range(10), max_new_tokens=85, ignore_eos=True))
    harness.submit(make_submit("long", range(30, 90), ignore_eos=True))
    harness.run()
    harness.assert_all_served()
    assert harness.loop.counters.retractions == 1
    widths = [batch.num_rows for batch in harness.runner.batches]
    assert 2 in widths


def test_a_plan_without_rows_while_requests_run_is_an_error_not_a_hang() -> None:
    """Whole prompts are reserved at admission, so this needs pages that vanish."""
    harness = Harness(page_size=4, num_pages=25, max_chunk_tokens=16, is_audited=False)
    harness.submit(make_submit("a", range(40)))
    harness.step()
    allocator = harness.state.residency.cache._allocator
    allocator.take(allocator.num_free)
    with pytest.raises(InvariantError, match="1 requests run and no row can be planned"):
        harness.step()


def test_a_request_as_large_as_the_pool_is_served_and_a_larger_one_refused() -> None:
    harness = Harness(page_size=4, num_pages=8, max_chunk_tokens=8)
    fits = harness.submit(make_submit("fits", range(31), ignore_eos=True, max_new_tokens=9))
    refused = harness.submit(make_submit("large", range(32)))
    harness.run()
    assert fits.output == harness.expected(fits.submit)
    assert refused.finished.reason.kind is FinishKind.ERROR
    assert "KV memory 32" in (refused.finished.reason.message or "")


@pytest.mark.parametrize(
    ("submit", "words"),
    [
        (make_submit("a", []), "prompt_ids: empty"),
        (make_submit("a", [1], max_new_tokens=0), "max_new_tokens: 0"),
        (make_submit("a", [1], generated=[61]), "token 61 is outside the vocabulary of 61"),
        (make_submit("a", range(9000)), "prompt_ids: 9000 tokens leave no room"),
    ],
)
def test_a_bad_request_ends_alone_with_one_sentence(submit, words: str) -> None:
    harness = Harness()
    good = harness.submit(make_submit("good", [1, 2, 3]))
    bad = harness.submit(submit)
    harness.run()
    assert bad.finished.reason.kind is FinishKind.ERROR
    assert words in (bad.finished.reason.message or "")
    assert good.output == harness.expected(good.submit)


def test_abort_in_every_state() -> None:
    harness = Harness(max_slots=2, max_chunk_tokens=8, page_size=4)
    decoding = harness.submit(make_submit("d", [1, 2], ignore_eos=True, max_new_tokens=90))
    prefilling = harness.submit(make_submit("p", range(60), max_new_tokens=90))
    waiting = harness.submit(make_submit("w", [5, 6]))
    harness.step()
    harness.step()
    states = [harness.state.roster.get(name).state.value for name in ("d", "p", "w")]
    assert states == ["decoding", "prefilling", "waiting"]
    for attempt in (decoding, prefilling, waiting):
        harness.abort(attempt)
    harness.run()
    for attempt in (decoding, prefilling, waiting):
        assert attempt.finished.reason.kind is FinishKind.ABORT
    assert decoding.output == harness.expected(decoding.submit)[: len(decoding.output)]
    harness.abort(decoding)
    harness.run()
    assert len(decoding.terminals) == 1
    harness.assert_idle_and_whole()


def test_nobody_aborts_another_peers_request_or_generation() -> None:
    harness = Harness()
    attempt = harness.submit(make_submit("a", [1, 2], generation=1))
    harness.step()
    harness.abort(attempt, peer=OTHER_PEER)
    stale = Abort(request_id=RequestId("a"), generation=Generation(0))
    harness.endpoint.inbox.append((PEER, stale))
    harness.run()
    harness.assert_all_served()


def test_a_deadline_ends_running_and_waiting_requests() -> None:
    harness = Harness(max_slots=1)
    running = harness.submit(
        make_submit("r", [1, 2], ignore_eos=True, max_new_tokens=500, deadline_s=5.0)
    )
    waiting = harness.submit(make_submit("w", [1, 2], deadline_s=3.0))
    free = harness.submit(make_submit("f", [1, 2]))
    harness.step()
    harness.now = 4.0
    harness.step()
    assert waiting.finished.reason.kind is FinishKind.DEADLINE
    assert "deadline" in (waiting.finished.reason.message or "")
    assert not running.terminals
    harness.now = 5.0
    harness.run()
    assert running.finished.reason.kind is FinishKind.DEADLINE
    assert free.output == harness.expected(free.submit)


def test_a_full_queue_hands_back_and_never_drops() -> None:
    harness = Harness(max_slots=2, max_queued=3)
    attempts = [harness.submit(make_submit(f"r{i}", [i, 1])) for i in range(9)]
    harness.run()
    served = [a for a in attempts if isinstance(a.terminals[0], Finished)]
    back = [a for a in attempts if isinstance(a.terminals[0], HandBack)]
    assert len(served) == 5
    assert {a.terminals[0].cause for a in back} == {HandBackCause.QUEUE_FULL}
    assert all(1.0 <= a.terminals[0].retry_after_s <= 60.0 for a in back)
    assert all(a.output == harness.expected(a.submit) for a in served)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_request_resumes_from_what_another_worker_produced(temperature: float) -> None:
    prompt = list(range(30))
    whole = make_submit("whole", prompt, max_new_tokens=40, temperature=temperature, seed=5)
    expected = Harness().expected(whole)
    for cut in (1, 7, len(expected) - 1):
        harness = Harness()
        attempt = harness.submit(
            make_submit(
                "again",
                prompt,
                max_new_tokens=40,
                generated=expected[:cut],
                generation=3,
                temperature=temperature,
                seed=5,
            )
        )
        harness.run()
        assert attempt.output == expected
        assert attempt.finished.usage.completion_tokens == len(expected)


def test_a_resumed_request_that_had_ended_ends_at_once() -> None:
    harness = Harness()
    stopped = harness.submit(make_submit("s", [1, 2], generated=[4, EOS]))
    full = harness.submit(make_submit("f", [1, 2], generated=[4, 5], max_new_tokens=2))
    harness.run()
    assert stopped.finished.reason.matched == EOS
    assert full.finished.reason.kind is FinishKind.LENGTH
    assert harness.runner.batches == []


def test_a_later_attempt_supersedes_an_earlier_one() -> None:
    harness = Harness()
    old = harness.submit(make_submit("a", [1, 2], ignore_eos=True, max_new_tokens=30))
    harness.step()
    again = harness.submit(make_submit("a", [1, 2], ignore_eos=True, generation=1))
    foreign = make_submit("a", [1, 2], generation=2)
    taken = harness.submit(foreign, peer=OTHER_PEER)
    harness.run()
    assert old.finished.reason.kind is FinishKind.ABORT
    assert again.output == harness.expected(again.submit)
    assert "in use" in (taken.finished.reason.message or "")


@pytest.mark.parametrize("num_steps", [0, 1, 5])
def test_the_same_submit_given_twice_is_answered_once(num_steps: int) -> None:
    harness = Harness(max_slots=2)
    attempt = harness.submit(make_submit("a", [1, 2], ignore_eos=True, max_new_tokens=30))
    harness.steps(num_steps)
    harness.endpoint.inbox.append((PEER, attempt.submit))
    older = msgspec.structs.replace(attempt.submit, generation=Generation(-1))
    harness.endpoint.inbox.append((PEER, older))
    harness.run()
    assert attempt.output == harness.expected(attempt.submit)
    harness.assert_all_served()
    harness.assert_idle_and_whole()


def test_a_lost_peers_requests_end_and_free_everything() -> None:
    harness = Harness()
    lost = harness.submit(make_submit("l", range(30), ignore_eos=True, max_new_tokens=500))
    kept = harness.submit(make_submit("k", range(30)), peer=OTHER_PEER)
    harness.step()
    harness.endpoint.newly_lost.append(PEER)
    harness.run()
    assert lost.terminals == []
    assert kept.output == harness.expected(kept.submit)
    harness.assert_idle_and_whole()


def test_a_step_error_ends_the_batch_and_nobody_else() -> None:
    harness = Harness(max_slots=2)
    batch = [harness.submit(make_submit(f"b{i}", [i, 1, 2], ignore_eos=True)) for i in range(2)]
    waiting = harness.submit(make_submit("w", [9, 9]))
    harness.step()
    harness.runner.launch_failure = StepError("no room for the batch")
    harness.step()
    for attempt in batch:
        assert attempt.finished.reason.kind is FinishKind.ERROR
        assert "no room for the batch" in (attempt.finished.reason.message or "")
    harness.run()
    assert waiting.output == harness.expected(waiting.submit)
    harness.assert_idle_and_whole()


def test_a_device_error_leaves_the_loop_and_the_requests_can_go_elsewhere() -> None:
    harness = Harness()
    attempt = harness.submit(make_submit("a", [1, 2], ignore_eos=True))
    ended = harness.submit(make_submit("b", [1, 2], max_new_tokens=1))
    harness.step()
    harness.step()
    harness.runner.settle_failure = DeviceError("the device is gone")
    with pytest.raises(DeviceError):
        harness.step()
    harness.loop.announce_restart()
    harness._read()
    assert attempt.terminals[0].cause is HandBackCause.RESTARTING
    assert attempt.output == harness.expected(attempt.submit)[:2]
    assert ended.finished.reason.kind is FinishKind.LENGTH


def test_deadlines_of_ended_requests_are_forgotten() -> None:
    harness = Harness()
    for number in range(300):
        harness.submit(make_submit(f"r{number}", [1], max_new_tokens=1, deadline_s=1e6))
        harness.step()
    assert len(harness.state.roster._deadlines) < 100
    harness.assert_all_served()


@pytest.mark.parametrize(("num_pages", "num_ahead"), [(400, 16), (60, 1)])
def test_small_pages_come_several_at_once_where_there_are_plenty(
    num_pages: int, num_ahead: int
) -> None:
    harness = Harness(page_size=1, num_pages=num_pages)
    harness.submit(make_submit("a", range(10), ignore_eos=True, max_new_tokens=20))
    harness.step()
    (req,) = harness.state.roster.running
    harness.step()
    assert req.held()[1].num_pages == 10 + num_ahead
    while req.is_running:
        assert req.held()[1].num_pages <= 30
        harness.step()
    harness.assert_all_served()
    harness.assert_idle_and_whole()
