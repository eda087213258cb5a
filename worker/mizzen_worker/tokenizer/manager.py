"""Owns every live request of a tokenizer process: dispatch, ids, text, resume, end.

Owns no sockets, no HTTP and no text: workers are reached through ``Send``, texts are made behind a
``TextChannel``. Everything runs in one event loop; no method waits except a request's ``changed``.

Invariants: a message counts only for the request's present generation and worker; tokens are
recorded before their text is asked for; at most one ``Feed`` of a request is unanswered; a request
that was accepted ends with exactly one final output or error.
"""

import asyncio
import logging
from collections.abc import Callable

from mizzen_worker.contracts.errors import (
    OverloadedError,
    RequestError,
    UnavailableError,
    WorkerError,
)
from mizzen_worker.contracts.ids import Generation, RequestId
from mizzen_worker.contracts.messages import (
    Abort,
    Finished,
    HandBack,
    HandBackCause,
    Heartbeat,
    Hello,
    Submit,
    TokenEvent,
    TokenEvents,
    ToTokenizer,
    ToWorker,
)
from mizzen_worker.contracts.request import FinishKind
from mizzen_worker.contracts.text_messages import FromDetokenizer, TextChunk
from mizzen_worker.observability.recorder import Recorder
from mizzen_worker.tokenizer.manager_settings import ManagerSettings
from mizzen_worker.tokenizer.refusals import interruption_of, refusal_of
from mizzen_worker.tokenizer.request_metrics import RequestMetrics
from mizzen_worker.tokenizer.request_state import (
    FinalOutput,
    GenerateInput,
    Phase,
    RequestState,
    finish_of_complete,
)
from mizzen_worker.tokenizer.text_channel import TextChannel
from mizzen_worker.tokenizer.text_feed import TextFeed
from mizzen_worker.tokenizer.worker_choice import choose_worker, prefix_key
from mizzen_worker.tokenizer.workers import Workers

logger = logging.getLogger(__name__)

Send = Callable[[str, ToWorker], bool]
"""Queues a message for the worker at an address; False when it cannot take it now."""

TICK_S = 0.2
_COUNT_WAIT_S = 2.0
"""After a stop string, how long to wait for the worker's own count of cached tokens."""


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
        self._send = send
        self._texts = TextFeed(texts)
        self._metrics = RequestMetrics(recorder)
        self._clock = clock
        self._settings = settings
        self._states: dict[RequestId, RequestState] = {}
        self._is_draining = False

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
        """Whether a new request would be taken."""
        return not self._is_draining and self._workers.is_any_accepting

    def drain(self) -> None:
        """Take no new request from now on; live ones go on."""
        self._is_draining = True

    def submit(self, request_id: RequestId, wanted: GenerateInput) -> RequestState:
        """Accept a request; raises ``OverloadedError`` when it cannot be taken now."""
        retry_after_s = self._settings.retry_after_s
        if self._is_draining:
            msg = "this server is shutting down"
            raise UnavailableError(msg, retry_after_s=retry_after_s)
        if self.num_live >= self._settings.max_live_requests:
            msg = f"{self.num_live} requests are live, which is the limit"
            raise OverloadedError(
                msg,
                retry_after_s=retry_after_s,
            )
        state = RequestState(
            request_id=request_id,
            wanted=wanted,
            key=prefix_key(wanted.prompt_ids),
            submitted_s=self._clock(),
        )
        if not self._dispatch(state):
            msg = "no worker takes requests at the moment"
            raise UnavailableError(msg, retry_after_s=retry_after_s)
        self._states[request_id] = state
        self._metrics.note_live(self.num_live)
        return state

    def abort(self, state: RequestState) -> None:
        """End a request whose client is gone; nothing is left of it on either side."""
        if state.phase is Phase.FINISHED:
            return
        self._stop_worker(state)
        self._texts.close(state)
        self._end(state, state.final_of(FinishKind.ABORT))

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
        self._metrics.note_workers(self._workers.num_attached)
        now_s = self._clock()
        for state in [state for state in self._states.values() if state.worker == address]:
            if state.phase is Phase.RUNNING:
                state.move(Phase.WAITING, now_s)
                state.num_lost += 1
                state.tried.clear()
                logger.info(
                    "request waits for another worker",
                    extra={"request_id": state.request_id, "reason": reason},
                )
        self._retry_waiting()

    def on_message(self, address: str, message: ToTokenizer) -> None:
        """See ``ConnectionListener``."""
        match message:
            case TokenEvents():
                for event in message.events:
                    self._on_tokens(address, event)
            case Finished():
                self._on_finished(address, message)
            case HandBack():
                self._on_hand_back(address, message)
            case Heartbeat(load=load) if load is not None:
                self._workers.update(address, load)

    def _current(
        self, address: str, request_id: RequestId, generation: Generation
    ) -> RequestState | None:
        state = self._states.get(request_id)
        if state is None or state.generation != generation or state.worker != address:
            return None
        return state

    def _on_tokens(self, address: str, event: TokenEvent) -> None:
        state = self._current(address, event.request_id, event.generation)
        if state is None:
            return
        num_known = len(state.output_ids)
        if event.start > num_known:
            logger.error("tokens are missing", extra={"request_id": state.request_id})
            self._stop_worker(state)
            state.move(Phase.WAITING, self._clock())
            return
        fresh = event.token_ids[num_known - event.start :]
        if fresh:
            self._metrics.note_tokens(state, len(fresh), self._clock())
            state.output_ids.extend(fresh)
            state.num_lost = 0
            state.tried.clear()
            self._texts.feed(state)

    def _on_finished(self, address: str, message: Finished) -> None:
        state = self._states.get(message.request_id)
        if state is None or state.generation != message.generation:
            return
        state.cached_tokens = min(message.usage.cached_tokens, len(state.wanted.prompt_ids))
        if state.phase is Phase.ENDING:
            self._finish_stopped(state)
        elif state.worker == address:
            self._note_departure(state)
            state.worker_finish = message.reason
            self._begin_ending(state)

    def _on_hand_back(self, address: str, message: HandBack) -> None:
        state = self._current(address, message.request_id, message.generation)
        if state is None:
            return
        if message.cause is not HandBackCause.QUEUE_FULL:
            self._workers.note_draining(address)
        self._note_departure(state)
        state.move(Phase.WAITING, self._clock())
        state.tried.add(address)
        state.num_lost += message.cause is HandBackCause.RESTARTING
        has_begun = bool(state.output_ids) or state.generation > 0
        if self._dispatch(state) or has_begun or message.cause is HandBackCause.RESTARTING:
            return
        self._fail(state, refusal_of(message.cause, retry_after_s=self._settings.retry_after_s))

    # Dispatch and resume.

    def _dispatch(self, state: RequestState) -> bool:
        excluded = set(state.tried)
        while state.num_lost < self._settings.max_lost_workers:
            address = choose_worker(
                self._workers.views(),
                key=state.key,
                resume_identity=state.resume_identity,
                excluded=excluded,
            )
            if address is None:
                return False
            if self._submit_to(address, state):
                return True
            excluded.add(address)
        return False

    def _submit_to(self, address: str, state: RequestState) -> bool:
        wanted = state.wanted
        generation = Generation(state.generation + 1)
        is_sent = self._send(
            address,
            Submit(
                request_id=state.request_id,
                generation=generation,
                prompt_ids=wanted.prompt_ids,
                sampling=wanted.sampling,
                generated_ids=tuple(state.output_ids),
                priority=wanted.priority,
                cache_salt=wanted.cache_salt,
            ),
        )
        if is_sent:
            if generation > 0:
                self._metrics.note_resumed()
            state.generation = generation
            state.resume_identity = self._workers.identity(address).resume_identity
            state.move(Phase.RUNNING, self._clock())
            state.worker = address
            self._workers.note_arrival(address)
        return is_sent

    def _retry_waiting(self) -> None:
        now_s = self._clock()
        for state in list(self._states.values()):
            if state.phase is not Phase.WAITING:
                continue
            finish = finish_of_complete(state, self._settings.end_ids)
            if finish is not None:
                state.worker_finish = finish
                self._begin_ending(state)
            elif not self._dispatch(state):
                error = interruption_of(state, self._settings, now_s=now_s)
                if error is not None:
                    self._fail(state, error)

    def _stop_worker(self, state: RequestState) -> None:
        if state.worker is not None:
            self._send(
                state.worker, Abort(request_id=state.request_id, generation=state.generation)
            )
            self._note_departure(state)

    def _note_departure(self, state: RequestState) -> None:
        if state.worker is not None:
            self._workers.note_departure(state.worker)

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
            self._on_stop_string(state, message.stopped_by)
        elif message.is_last:
            self._finish_by_worker(state)
        else:
            self._texts.feed(state)

    def on_texts_lost(self) -> None:
        """See ``TextListener``."""
        for state in list(self._states.values()):
            self._texts.reopen(state)

    # Ends.

    def _begin_ending(self, state: RequestState) -> None:
        finish = state.worker_finish
        if finish is not None and finish.kind is FinishKind.ERROR:
            self._fail(state, RequestError(finish.message or "the worker refused the request"))
            return
        state.move(Phase.ENDING, self._clock())
        self._texts.feed(state)

    def _on_stop_string(self, state: RequestState, stopped_by: str) -> None:
        state.stopped_by = stopped_by
        del state.output_ids[state.num_texted :]
        if state.worker is None:
            self._finish_stopped(state)
            return
        self._stop_worker(state)
        state.move(Phase.ENDING, self._clock())

    def _finish_stopped(self, state: RequestState) -> None:
        """End after a stop string; the worker's count is here or is not waited for any longer."""
        if state.stopped_by is not None:
            self._end(state, state.final_of(FinishKind.STOP, matched=state.stopped_by))

    def _finish_by_worker(self, state: RequestState) -> None:
        reason = state.worker_finish
        if reason is not None:
            final = state.final_of(reason.kind, matched=reason.matched, message=reason.message)
            self._end(state, final)

    def _end(self, state: RequestState, final: FinalOutput) -> None:
        now_s = self._clock()
        state.finish(final, now_s)
        self._forget(state, final.kind)
        self._metrics.note_end(state, final, now_s)

    def _fail(self, state: RequestState, error: WorkerError) -> None:
        self._texts.close(state)
        state.fail(error, self._clock())
        self._forget(state, FinishKind.ERROR)

    def _forget(self, state: RequestState, kind: FinishKind) -> None:
        self._states.pop(state.request_id, None)
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
            if (
                state.stopped_by is not None
                and state.phase is Phase.ENDING
                and now_s - state.phase_since_s > _COUNT_WAIT_S
            ):
                self._finish_stopped(state)
                continue
            self._texts.feed(state)
        self._retry_waiting()
