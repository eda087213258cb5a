"""A request under which workers die is not handed to one worker after the other for ever."""

import asyncio

import pytest
from tests.worker.tokenizer.manager_driver import Front, wanted

from mizzen_worker.contracts.errors import InterruptedRequestError
from mizzen_worker.contracts.ids import TokenId


@pytest.mark.parametrize("death", [Front.lose, Front.restart])
def test_three_workers_dead_under_a_request_are_enough(death) -> None:
    async def scenario() -> None:
        front = Front()
        state = front.manager.submit("id", wanted())
        for _ in range(3):
            death(front, state)
            front.attach()
            front.manager.tick()
        assert len(front.submits) == 3
        assert front.manager.num_live == 0
        with pytest.raises(InterruptedRequestError, match="3 attempts in a row gave nothing"):
            state.take()

    asyncio.run(scenario())


def test_a_gap_is_asked_for_again_and_not_for_ever() -> None:
    async def scenario() -> None:
        front = Front()
        state = front.manager.submit("id", wanted())
        front.tokens(state, 0, 7)
        for _ in range(3):
            front.tokens(state, 2, 9)
            front.manager.tick()
        assert [submit.generated_ids for submit in front.submits] == [(), (7,), (7,)]
        assert len(front.aborts) == 3
        assert state.take().token_ids == (7,)
        with pytest.raises(InterruptedRequestError, match="left something out"):
            state.take()

    asyncio.run(scenario())


def test_a_token_shows_that_the_request_is_not_to_blame() -> None:
    async def scenario() -> None:
        front = Front()
        state = front.manager.submit("id", wanted())
        for place in range(8):
            front.tokens(state, place, 5)
            front.lose()
            front.attach()
            front.manager.tick()
        assert front.manager.num_live == 1
        assert front.submits[-1].generated_ids == (TokenId(5),) * 8

    asyncio.run(scenario())
