"""A request under which workers die is not handed to one worker after the other for ever."""

import asyncio

import pytest

from mizzen_worker.contracts.errors import InterruptedRequestError
from mizzen_worker.contracts.ids import Generation, InstanceId, TokenId
from mizzen_worker.contracts.messages import (
    Capacity,
    HandBack,
    HandBackCause,
    Hello,
    Load,
    ModelIdentity,
    Submit,
    TokenEvent,
    TokenEvents,
    ToWorker,
)
from mizzen_worker.contracts.request import SamplingParams
from mizzen_worker.contracts.text_messages import ToDetokenizer
from mizzen_worker.observability.recorder import Recorder
from mizzen_worker.tokenizer.manager import TokenizerManager
from mizzen_worker.tokenizer.manager_settings import ManagerSettings
from mizzen_worker.tokenizer.request_state import GenerateInput, RequestState
from mizzen_worker.tokenizer.workers import Workers

WORKER = "memory://a"
HELLO = Hello(
    wire_version=1,
    instance_id=InstanceId("a"),
    identity=ModelIdentity(served_name="m", fingerprint="f", tokenizer="t", resume_identity="r"),
    capacity=Capacity(
        max_running_requests=4, max_queued_requests=4, kv_tokens=64, context_length=64
    ),
    load=Load(running_requests=0, queued_requests=0, kv_tokens_used=0, is_draining=False),
)
WANTED = GenerateInput(prompt_ids=(TokenId(1),), sampling=SamplingParams(max_new_tokens=9, seed=0))


class _NoTexts:
    def send(self, _message: ToDetokenizer) -> bool:
        return True


class _Front:
    """A manager, one worker that can die, and what was submitted to it."""

    def __init__(self) -> None:
        self.submits: list[Submit] = []
        self.manager = TokenizerManager(
            workers=Workers(tokenizer_fingerprint="t"),
            send=self._send,
            texts=_NoTexts(),
            recorder=Recorder("front"),
            clock=lambda: 0.0,
            settings=ManagerSettings(),
        )

    def _send(self, _address: str, message: ToWorker) -> bool:
        if isinstance(message, Submit):
            self.submits.append(message)
        return True

    def lose(self, state: RequestState) -> None:
        self.manager.on_lost(WORKER, "the connection ended")

    def restart(self, state: RequestState) -> None:
        message = HandBack(
            request_id=state.request_id,
            generation=state.generation,
            cause=HandBackCause.RESTARTING,
        )
        self.manager.on_message(WORKER, message)
        self.manager.on_lost(WORKER, "the connection ended")

    def token(self, state: RequestState) -> None:
        event = TokenEvent(
            request_id=state.request_id,
            generation=Generation(state.generation),
            start=len(state.output_ids),
            token_ids=(TokenId(5),),
        )
        self.manager.on_message(WORKER, TokenEvents(events=(event,)))


@pytest.mark.parametrize("death", [_Front.lose, _Front.restart])
def test_three_workers_dead_under_a_request_are_enough(death) -> None:
    async def scenario() -> None:
        front = _Front()
        front.manager.on_attached(WORKER, HELLO)
        state = front.manager.submit("id", WANTED)
        for _ in range(3):
            death(front, state)
            front.manager.on_attached(WORKER, HELLO)
            front.manager.tick()
        assert len(front.submits) == 3
        assert front.manager.num_live == 0
        with pytest.raises(InterruptedRequestError, match="3 workers died one after the other"):
            state.take()

    asyncio.run(scenario())


def test_a_token_shows_that_the_request_is_not_to_blame() -> None:
    async def scenario() -> None:
        front = _Front()
        front.manager.on_attached(WORKER, HELLO)
        state = front.manager.submit("id", WANTED)
        for _ in range(8):
            front.token(state)
            front.lose(state)
            front.manager.on_attached(WORKER, HELLO)
            front.manager.tick()
        assert front.manager.num_live == 1
        assert front.submits[-1].generated_ids == (TokenId(5),) * 8

    asyncio.run(scenario())
