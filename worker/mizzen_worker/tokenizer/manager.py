"""Owns every live request of a tokenizer process: what each message means for it.

Owns no sockets, no HTTP and no text: workers are reached through ``Send``, texts are made behind a
``TextChannel``. Everything runs in one event loop; no method waits except a request's ``changed``
and ``control``.

Invariants: a message counts only for the request's present generation and worker; tokens are
recorded before their text is asked for; at most one ``Feed`` of a request is unanswered; a request
that was accepted ends with exactly one final output or error.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Mapping

from mizzen_worker.contracts.errors import OverloadedError, UnavailableError
from mizzen_worker.contracts.ids import Generation, RequestId
from mizzen_worker.contracts.messages import (
    ControlVerb,
    Finished,
    HandBack,
    HandBackCause,
    Heartbeat,
    Hello,
    PromptLogprobs,
    Reply,
    TokenEvent,
    TokenEvents,
    ToTokenizer,
)
from mizzen_worker.contracts.request import FinishKind, FinishReason
from mizzen_worker.contracts.text_messages import FromDetokenizer, TextChunk
from mizzen_worker.observability.recorder import Recorder
from mizzen_worker.routing.prefix_memory import prompt_prefix
from mizzen_worker.routing.workers import Workers
from mizzen_worker.tokenizer.attempts import Attempts, Send
from mizzen_worker.tokenizer.endings import Endings
from mizzen_worker.tokenizer.manager_settings import ManagerSettings
from mizzen_worker.tokenizer.pace import Pace
from mizzen_worker.tokenizer.refusals import interruption_of, refusal_of
from mizzen_worker.tokenizer.request_metrics import RequestMetrics
from mizzen_worker.tokenizer.request_state import (
    GenerateInput,
    Phase,
    RequestState,
    finish_of_complete,
)
from mizzen_worker.tokenizer.text_channel import TextChannel
from mizzen_worker.tokenizer.text_feed import TextFeed
from mizzen_worker.tokenizer.worker_control import WorkerControl

logger = logging.getLogger(__name__)

TICK_S = 0.2
_DEADLINE_GRACE_S = 1.0
"""A worker ends a request whose deadline passed; so much later it is ended without its word."""
_OVERDUE = FinishReason(kind=FinishKind.DEADLINE, message="the request's deadline passed")


class TokenizerManager:
    """Implements ``ConnectionListener`` and ``TextListener``."""

    def __init__(
        self,
        *,
        workers: Workers,
        send: Send,
        texts: TextChannel,
        recorder: Recorder,
        clock: Callable[[], float],
        settings: ManagerSettings,
    ) -> None:
        self._workers = workers
        self._texts = TextFeed(texts)
        self._metrics = RequestMetrics(recorder)
        self._clock = clock
        self._settings = settings
        self._pace = Pace()
        self._control = WorkerControl(send=send)
        self._attempts = Attempts(workers=workers, send=send, clock=clock, settings=settings)
        self._endings = Endings(
            texts=self._texts, metrics=self._metrics, clock=clock, forget=self._forget
        )
        self._states: dict[RequestId, RequestState] = {}
        self._is_leaving = self._has_ended = False

    @property
    def workers(self) -> Workers:
        """What is known about workers; read only."""
        return self._workers

    @property
    def num_live(self) -> int:
        """Requests accepted and not ended."""
        return len(self._states)

    @property
    def is_accepting(self) -> bool:
        """Whether clients should send requests; one that leaves takes them, but does not ask."""
        return not self._is_leaving and self._workers.is_any_accepting

    @property
    def retry_after_s(self) -> float:
        """When a client that is refused for lack of room should come again."""
        return self._pace.retry_after_s(self._workers.num_queued, self._clock())

    def leave(self) -> None:
        """Say no longer that requests are taken: clients go elsewhere, and who comes is served."""
        self._is_leaving = True

    def end_all(self) -> None:
        """End every live request with an error, and take no more: this process has no time left."""
        self._has_ended = True
        message = "this server had to end before the answer was whole; ask again"
        for state in list(self._states.values()):
            if state.stopped_by is not None:
                self._endings.finish(state)  # Only the worker's count is missing.
                continue
            self._attempts.stop(state)
            self._endings.fail(state, UnavailableError(message))

    def submit(self, request_id: RequestId, wanted: GenerateInput) -> RequestState:
        """Accept a request; raises ``OverloadedError`` when it cannot be taken now."""
        if self._has_ended:
            msg = "this server is shutting down"
            raise UnavailableError(msg)
        if self.num_live >= self._settings.max_live_requests:
            msg = f"{self.num_live} requests are live, which is the limit"
            raise OverloadedError(msg, retry_after_s=self.retry_after_s)
        now_s = self._clock()
        state = RequestState(
            request_id=request_id,
            wanted=wanted,
            prefix=prompt_prefix(wanted.prompt_ids, salt=wanted.cache_salt),
            submitted_s=now_s,
            deadline_at_s=math.inf if wanted.deadline_s is None else now_s + wanted.deadline_s,
        )
        if not self._attempts.begin(state):
            msg = "no worker takes requests at the moment"
            raise UnavailableError(msg)
        self._states[request_id] = state
        self._metrics.note_live(self.num_live)
        return state

    def abort(self, state: RequestState, message: str | None = None) -> None:
        """End a request, as when its client is gone; nothing is left of it on either side."""
        if state.phase is not Phase.FINISHED:
            self._attempts.stop(state)
            self._endings.abort(state, message)

    def abort_by_id(self, request_id: RequestId) -> bool:
        """End a live request on an administrator's word; False when none has that id."""
        state = self._states.get(request_id)
        if state is not None:
            self.abort(state, "an administrator ended the request")
        return state is not None

    async def control(
        self,
        verb: ControlVerb,
        *,
        arguments: Mapping[str, str] | None = None,
        address: str | None = None,
    ) -> dict[str, Reply]:
        """Ask every attached worker, or the one at an address; replies by address.

        A worker that does not answer in time, is lost or is not attached has a reply that is not
        ok and says so.
        """
        addresses = self._workers.addresses() if address is None else (address,)
        replies = await asyncio.gather(
            *(self._control.ask(one, verb, arguments) for one in addresses)
        )
        if verb is ControlVerb.FLUSH_CACHE:
            for one in addresses:
                self._workers.memory.forget(one)
        return dict(zip(addresses, replies, strict=True))

    # What workers say.

    def on_attached(self, address: str, hello: Hello) -> None:
        """See ``ConnectionListener``."""
        is_usable = self._workers.attach(address, hello)
        self._metrics.note_workers(self._workers.num_attached)
        if is_usable:
            logger.info("worker attached", extra={"worker": address})
            self._retry_waiting()
        else:
            logger.error(
                "worker refused: its vocabulary differs; give both the same model",
                extra={"worker": address, "model": hello.identity.served_name},
            )

    def on_lost(self, address: str, reason: str) -> None:
        """See ``ConnectionListener``."""
        self._workers.drop(address)
        self._control.note_lost(address)
        self._metrics.note_workers(self._workers.num_attached)
        now_s = self._clock()
        for state in [state for state in self._states.values() if state.worker == address]:
            state.move(Phase.WAITING, now_s)
            state.num_lost += 1
            state.tried.clear()
            logger.info(
                "request waits for another worker",
                extra={**state.log_fields, "worker": address, "reason": reason},
            )
        self._retry_waiting()

    def on_message(self, address: str, message: ToTokenizer) -> None:
        """See ``ConnectionListener``."""
        match message:
            case TokenEvents():
                for scores in message.prompt_logprobs:
                    self._on_prompt_scores(address, scores)
                for event in message.events:
                    self._on_tokens(address, event)
            case Finished():
                self._on_finished(address, message)
            case HandBack():
                self._on_hand_back(address, message)
            case Reply():
                self._control.take(address, message)
            case Heartbeat(load=load) if load is not None:
                self._workers.update(address, load)

    def _current(
        self, address: str, request_id: RequestId, generation: Generation
    ) -> RequestState | None:
        state = self._states.get(request_id)
        if state is None or state.generation != generation or state.worker != address:
            return None
        return state

    def _on_prompt_scores(self, address: str, scores: PromptLogprobs) -> None:
        state = self._current(address, scores.request_id, scores.generation)
        if state is not None and not state.record_prompt(scores):
            self._restart(state, "prompt scores")

    def _on_tokens(self, address: str, event: TokenEvent) -> None:
        state = self._current(address, event.request_id, event.generation)
        if state is None:
            return
        num_new = state.record(event)
        if num_new is None:
            self._restart(state, "tokens or their scores")
        elif num_new:
            self._metrics.note_tokens(state, num_new, self._clock())
            state.num_lost = 0
            state.tried.clear()
            self._texts.feed(state)

    def _restart(self, state: RequestState, missing: str) -> None:
        """Go on from what is recorded: a message was lost or malformed on the way."""
        logger.error(
            "a worker's answer has a gap; the request is submitted again",
            extra={**state.log_fields, "worker": state.worker, "missing": missing},
        )
        self._attempts.stop(state)
        state.move(Phase.WAITING, self._clock())
        state.num_lost += 1

    def _on_finished(self, address: str, message: Finished) -> None:
        state = self._states.get(message.request_id)
        if state is None or state.generation != message.generation:
            return
        state.cached_tokens = min(message.usage.cached_tokens, len(state.wanted.prompt_ids))
        if state.phase is Phase.ENDING and state.stopped_by is not None:
            self._endings.finish(state)
        elif state.worker == address:
            self._attempts.note_departure(state)
            self._endings.begin(state, message.reason)

    def _on_hand_back(self, address: str, message: HandBack) -> None:
        if message.cause is not HandBackCause.QUEUE_FULL:
            self._workers.note_draining(address)
        state = self._current(address, message.request_id, message.generation)
        if state is None:
            return
        self._attempts.note_departure(state)
        state.move(Phase.WAITING, self._clock())
        state.tried.add(address)
        state.num_lost += message.cause is HandBackCause.RESTARTING
        has_begun = state.num_output > 0 or state.generation > 0
        if self._begin(state) or has_begun or message.cause is HandBackCause.RESTARTING:
            return
        retry_after_s = message.retry_after_s or self.retry_after_s
        self._endings.fail(state, refusal_of(message.cause, retry_after_s=retry_after_s))

    # Waiting for a worker.

    def _begin(self, state: RequestState) -> bool:
        """Hand a request to a worker again, or end it where there is nothing left to do."""
        finish = finish_of_complete(state, self._settings.end_ids)
        if finish is None and self._clock() >= state.deadline_at_s:
            finish = _OVERDUE
        if finish is not None:
            self._endings.begin(state, finish)
            return True
        if not self._attempts.begin(state):
            return False
        self._metrics.note_resumed()
        logger.info(
            "request goes on",
            extra={
                **state.log_fields,
                "worker": state.worker,
                "attempt": state.generation,
                "output_tokens": state.num_output,
            },
        )
        return True

    def _retry_waiting(self) -> None:
        now_s = self._clock()
        for state in list(self._states.values()):
            if state.phase is Phase.WAITING and not self._begin(state):
                error = interruption_of(state, self._settings, now_s=now_s)
                if error is not None:
                    self._endings.fail(state, error)

    # Text.

    def on_text(self, message: FromDetokenizer) -> None:
        """See ``TextListener``."""
        state = self._states.get(message.request_id)
        if state is None:
            return
        if not isinstance(message, TextChunk):
            self._texts.reopen(state)
            return
        if not state.is_feed_outstanding:
            return
        state.is_feed_outstanding = False
        state.add_text(message.text, message.num_tokens)
        if message.stopped_by is not None:
            self._on_stop(state, message.stopped_by)
        elif message.is_last:
            self._endings.finish(state)
        else:
            self._texts.feed(state)

    def on_texts_lost(self) -> None:
        """See ``TextListener``."""
        for state in list(self._states.values()):
            self._texts.reopen(state)

    def _on_stop(self, state: RequestState, stopped_by: str) -> None:
        state.stopped_by = stopped_by
        state.truncate(state.num_texted)
        if state.worker is None:
            self._endings.finish(state)
            return
        self._attempts.stop(state)
        state.move(Phase.ENDING, self._clock())

    def _forget(self, state: RequestState, kind: FinishKind) -> None:
        self._states.pop(state.request_id, None)
        self._pace.note_end(self._clock())
        self._metrics.note_finished(kind, self.num_live)

    # Time.

    async def run(self) -> None:
        """Do what time asks for, until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            self.tick()

    def tick(self) -> None:
        """Try waiting requests again, end what waited too long, feed what was not taken."""
        now_s = self._clock()
        for state in list(self._states.values()):
            if state.phase is Phase.WAITING:
                state.tried.clear()
            elif self._endings.is_count_overdue(state, now_s):
                self._endings.finish(state)
                continue
            elif state.phase is Phase.RUNNING and now_s > state.deadline_at_s + _DEADLINE_GRACE_S:
                self._attempts.stop(state)
                self._endings.begin(state, _OVERDUE)
                continue
            self._texts.feed(state)
        self._retry_waiting()
