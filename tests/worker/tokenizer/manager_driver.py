"""A TokenizerManager whose workers and clock are played by a test."""

from mizzen_worker.contracts.ids import InstanceId, TokenId
from mizzen_worker.contracts.messages import (
    Abort,
    Capacity,
    Control,
    Finished,
    HandBack,
    HandBackCause,
    Hello,
    Load,
    ModelIdentity,
    PromptLogprobs,
    Submit,
    TokenEvent,
    TokenEvents,
    TokenLogprob,
    ToWorker,
)
from mizzen_worker.contracts.request import FinishKind, FinishReason, SamplingParams, Usage
from mizzen_worker.contracts.text_messages import Feed, TextChunk, ToDetokenizer
from mizzen_worker.observability.recorder import Recorder
from mizzen_worker.routing.workers import Workers
from mizzen_worker.tokenizer.manager import TokenizerManager
from mizzen_worker.tokenizer.manager_settings import ManagerSettings
from mizzen_worker.tokenizer.request_state import GenerateInput, RequestState

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


def wanted(**changes: object) -> GenerateInput:
    sampling = SamplingParams(**{"max_new_tokens": 9, "seed": 0, **changes.pop("sampling", {})})
    return GenerateInput(**{"prompt_ids": (TokenId(1),), "sampling": sampling, **changes})


class Front:
    """A manager, what it sent, and one worker's side of the conversation.

    A text is the ids of its tokens between spaces, made at once.
    """

    def __init__(self) -> None:
        self.submits: list[Submit] = []
        self.aborts: list[Abort] = []
        self.controls: list[tuple[str, Control]] = []
        self.feeds: list[Feed] = []
        self.now_s = 100.0
        self.manager = TokenizerManager(
            workers=Workers(tokenizer_fingerprint="t"),
            send=self._send,
            texts=self,
            recorder=Recorder("front"),
            clock=lambda: self.now_s,
            settings=ManagerSettings(),
        )
        self._due: list[TextChunk] = []
        self.manager.on_attached(WORKER, HELLO)

    def _send(self, address: str, message: ToWorker) -> bool:
        match message:
            case Submit():
                self.submits.append(message)
            case Abort():
                self.aborts.append(message)
            case Control():
                self.controls.append((address, message))
        return True

    def send(self, message: ToDetokenizer) -> bool:
        """See ``TextChannel``."""
        if isinstance(message, Feed):
            self.feeds.append(message)
            chunk = TextChunk(
                request_id=message.request_id,
                text="".join(f"{token} " for token in message.token_ids),
                num_tokens=message.start + len(message.token_ids),
                is_last=message.is_last,
            )
            self._due.append(chunk)
        return True

    def make_texts(self) -> None:
        while self._due:
            self.manager.on_text(self._due.pop(0))

    def lose(self, _state: RequestState | None = None) -> None:
        self.manager.on_lost(WORKER, "the connection ended")

    def attach(self) -> None:
        self.manager.on_attached(WORKER, HELLO)

    def restart(self, state: RequestState) -> None:
        self.hand_back(state, HandBackCause.RESTARTING)
        self.lose()

    def hand_back(self, state: RequestState, cause: HandBackCause) -> None:
        message = HandBack(request_id=state.request_id, generation=state.generation, cause=cause)
        self.manager.on_message(WORKER, message)

    def tokens(self, state: RequestState, start: int, *ids: int, is_scored: bool = False) -> None:
        scores = tuple(TokenLogprob(-float(token)) for token in ids) if is_scored else ()
        event = TokenEvent(
            state.request_id, state.generation, start, tuple(map(TokenId, ids)), scores
        )
        self.manager.on_message(WORKER, TokenEvents(events=(event,)))
        self.make_texts()

    def prompt_scores(self, state: RequestState, start: int, *scores: float) -> None:
        stretch = PromptLogprobs(
            state.request_id, state.generation, start, tuple(map(TokenLogprob, scores))
        )
        self.manager.on_message(WORKER, TokenEvents(events=(), prompt_logprobs=(stretch,)))

    def finish(self, state: RequestState, kind: FinishKind = FinishKind.LENGTH) -> None:
        message = Finished(
            request_id=state.request_id,
            generation=state.generation,
            reason=FinishReason(kind=kind),
            usage=Usage(prompt_tokens=1, completion_tokens=0, cached_tokens=0),
        )
        self.manager.on_message(WORKER, message)
        self.make_texts()
