"""What is recorded beside tokens, deadlines, an administrator's abort and control."""

import asyncio

from tests.worker.tokenizer.manager_driver import HELLO, WORKER, Front, wanted

from mizzen_worker.contracts.ids import Generation, TokenId
from mizzen_worker.contracts.messages import (
    ControlVerb,
    HandBackCause,
    Reply,
    TokenEvent,
    TokenEvents,
    TokenLogprob,
)
from mizzen_worker.contracts.request import FinishKind, LogprobParams
from mizzen_worker.contracts.text_messages import MAX_FEED_PATTERN_TOKENS, MAX_FEED_TOKENS

PROMPT = tuple(map(TokenId, range(6)))


def _scored(prompt_start: int | None):
    logprobs = LogprobParams(num_top=0, prompt_start=prompt_start)
    return wanted(prompt_ids=PROMPT, sampling={"logprobs": logprobs})


def _scores(*values: float) -> tuple[TokenLogprob, ...]:
    return tuple(map(TokenLogprob, values))


def test_scores_stay_beside_their_tokens_and_the_rest_is_asked_of_the_next_worker() -> None:
    async def scenario() -> None:
        front = Front()
        state = front.manager.submit("id", _scored(0))
        assert front.submits[0].sampling.logprobs.prompt_start == 1
        front.prompt_scores(state, 1, -0.1, -0.2)
        front.lose()
        front.attach()
        assert front.submits[1].sampling.logprobs.prompt_start == 3
        front.prompt_scores(state, 3, -0.3, -0.4, -0.5)
        front.tokens(state, 0, 7, 8, is_scored=True)
        front.lose()
        front.attach()
        assert front.submits[2].sampling.logprobs == LogprobParams(num_top=0)
        assert front.submits[2].generated_ids == (7, 8)
        front.tokens(state, 1, 8, 9, is_scored=True)
        output = state.take()
        assert output.token_ids == (7, 8, 9)
        assert output.logprobs == _scores(-7, -8, -9)
        assert output.prompt_logprobs == _scores(-0.1, -0.2, -0.3, -0.4, -0.5)
        front.tokens(state, 3, 4, is_scored=True)
        front.finish(state)
        last = state.take()
        assert (last.token_ids, last.logprobs, last.prompt_logprobs) == ((4,), _scores(-4), ())
        assert last.final.usage.completion_tokens == 4

    asyncio.run(scenario())


def test_tokens_without_the_scores_asked_for_are_a_gap() -> None:
    async def scenario() -> None:
        front = Front()
        state = front.manager.submit("id", _scored(None))
        front.tokens(state, 0, 7)
        front.manager.tick()
        assert len(front.submits) == 2
        assert state.num_output == 0

    asyncio.run(scenario())


def test_words_of_an_earlier_attempt_or_another_worker_count_for_nothing() -> None:
    async def scenario() -> None:
        front = Front()
        state = front.manager.submit("id", wanted())
        front.tokens(state, 0, 7)
        front.tokens(state, 5, 9)
        front.manager.tick()
        stale = TokenEvent(state.request_id, Generation(0), 1, (TokenId(8),))
        front.manager.on_message(WORKER, TokenEvents(events=(stale,)))
        foreign = TokenEvent(state.request_id, state.generation, 1, (TokenId(8),))
        front.manager.on_message("memory://b", TokenEvents(events=(foreign,)))
        assert state.output_ids() == (7,)

    asyncio.run(scenario())


def test_each_attempt_gets_the_time_that_is_left() -> None:
    async def scenario() -> None:
        front = Front()
        state = front.manager.submit("id", wanted(deadline_s=10.0, priority=3))
        front.now_s += 4
        front.lose(state)
        front.attach()
        assert [submit.deadline_s for submit in front.submits] == [10.0, 6.0]
        assert [submit.priority for submit in front.submits] == [3, 3]

    asyncio.run(scenario())


def test_a_deadline_that_passes_while_waiting_for_a_worker_ends_the_request_as_it_is() -> None:
    async def scenario() -> None:
        front = Front()
        state = front.manager.submit("id", wanted(deadline_s=10.0))
        front.tokens(state, 0, 7)
        front.lose()
        front.now_s += 11
        front.manager.tick()
        front.make_texts()
        output = state.take()
        assert (output.text, output.final.kind) == ("7 ", FinishKind.DEADLINE)
        assert front.manager.num_live == 0
        front.attach()
        assert len(front.submits) == 1

    asyncio.run(scenario())


def test_a_worker_that_forgets_a_deadline_is_stopped_a_little_later() -> None:
    async def scenario() -> None:
        front = Front()
        state = front.manager.submit("id", wanted(deadline_s=10.0))
        front.tokens(state, 0, 7)
        front.now_s += 10.5
        front.manager.tick()
        assert front.aborts == []
        front.now_s += 1
        front.manager.tick()
        front.make_texts()
        assert len(front.aborts) == 1
        assert state.take().final.kind is FinishKind.DEADLINE

    asyncio.run(scenario())


def test_an_administrator_ends_a_request_by_its_id() -> None:
    async def scenario() -> None:
        front = Front()
        state = front.manager.submit("id", wanted())
        assert not front.manager.abort_by_id("other")
        assert front.manager.abort_by_id("id")
        assert not front.manager.abort_by_id("id")
        final = state.take().final
        assert final.kind is FinishKind.ABORT
        assert "administrator" in final.message
        assert len(front.aborts) == 1

    asyncio.run(scenario())


def test_every_worker_answers_a_verb_or_it_is_said_why_not() -> None:
    async def scenario() -> None:
        front = Front()
        front.manager.on_attached("memory://b", HELLO)
        prompt = tuple(map(TokenId, range(64)))
        state = front.manager.submit("id", wanted(prompt_ids=prompt))
        memory = front.manager.workers.memory
        assert memory.num_cached(state.worker, state.prefix) == 63
        asked = asyncio.create_task(front.manager.control(ControlVerb.FLUSH_CACHE))
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        (first, control), (second, _) = front.controls
        assert {first, second} == {WORKER, "memory://b"}
        reply = Reply(control_id=control.control_id, is_ok=True, message="flushed")
        front.manager.on_message(first, reply)
        front.manager.on_lost(second, "gone")
        replies = await asked
        assert replies[first] == reply
        assert not replies[second].is_ok
        assert "lost" in replies[second].message
        assert memory.num_cached(WORKER, state.prefix) == 0

    asyncio.run(scenario())


def test_a_verb_for_nobody_is_refused() -> None:
    async def scenario() -> None:
        front = Front()
        front.manager._control.send = lambda _address, _message: False
        replies = await front.manager.control(ControlVerb.DESCRIBE, address="memory://x")
        assert "cannot be reached" in replies["memory://x"].message

    asyncio.run(scenario())


def test_a_full_server_says_when_to_come_again_by_how_fast_requests_end() -> None:
    async def scenario() -> None:
        front = Front()
        assert front.manager.retry_after_s == 1
        load = HELLO.load.__class__(
            running_requests=4, queued_requests=20, kv_tokens_used=0, is_draining=False
        )
        front.manager.workers.update(WORKER, load)
        for place in range(4):
            state = front.manager.submit(str(place), wanted())
            front.now_s += 0.5
            front.finish(state)
        front.now_s += 0.5
        assert front.manager.retry_after_s == 5.0
        state = front.manager.submit("refused", wanted())
        front.hand_back(state, HandBackCause.QUEUE_FULL)
        assert state.error.retry_after_s == 5.0

    asyncio.run(scenario())


def test_what_a_client_does_not_read_is_kept_in_few_pieces_and_read_at_once() -> None:
    async def scenario() -> None:
        front = Front()
        state = front.manager.submit("id", wanted(sampling={"max_new_tokens": 5000}))
        for place in range(3000):
            front.tokens(state, place, place)
        assert len(state._old_text) + len(state._new_text) < 300
        output = state.take()
        assert output.text == "".join(f"{place} " for place in range(3000))
        assert output.token_ids == tuple(range(3000))
        assert state.take() is None

    asyncio.run(scenario())


def test_a_long_text_that_was_lost_is_fed_again_in_parts() -> None:
    async def scenario() -> None:
        front = Front()
        num_tokens = 2 * MAX_FEED_TOKENS + 5
        state = front.manager.submit("id", wanted(sampling={"max_new_tokens": num_tokens}))
        front.tokens(state, 0, *range(num_tokens))
        assert state.take().text.startswith("0 1 2 ")
        front.feeds.clear()
        front.manager.on_texts_lost()
        front.finish(state)
        sizes = [len(feed.token_ids) for feed in front.feeds]
        assert sizes == [MAX_FEED_TOKENS, MAX_FEED_TOKENS, 5]
        assert [feed.is_last for feed in front.feeds] == [False, False, True]
        assert state.take().final.usage.completion_tokens == num_tokens

    asyncio.run(scenario())


def test_a_text_with_patterns_is_fed_in_small_parts() -> None:
    async def scenario() -> None:
        front = Front()
        num_tokens = 2 * MAX_FEED_PATTERN_TOKENS + 1
        sampling = {"max_new_tokens": num_tokens}
        state = front.manager.submit("id", wanted(sampling=sampling, stop_regex=("a",)))
        front.tokens(state, 0, *range(num_tokens))
        front.finish(state)
        sizes = [len(feed.token_ids) for feed in front.feeds]
        assert sizes[:2] == [MAX_FEED_PATTERN_TOKENS] * 2
        assert sum(sizes) == num_tokens
        assert state.take().final.usage.completion_tokens == num_tokens

    asyncio.run(scenario())


def test_a_reader_is_woken_by_news_and_by_the_end_of_its_patience() -> None:
    async def scenario() -> None:
        front = Front()
        state = front.manager.submit("id", wanted())
        assert not await state.changed(0.001)
        waiting = asyncio.create_task(state.changed(60))
        await asyncio.sleep(0)
        front.tokens(state, 0, 7)
        assert await waiting
        assert await state.changed(60)
        state.take()
        assert not await state.changed(0.001)
        waiting = asyncio.create_task(state.changed(60))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        front.manager.abort(state)
        assert await state.changed(60)

    asyncio.run(scenario())
