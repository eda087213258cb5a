"""A TokenizerManager, workers and a detokenizer, all synchronous: a test says what happens next.

Messages pass the real codecs and wait in queues until the test delivers them; a worker that is
killed takes its queue with it. ``ModelWorker`` does what the contract says of any worker, its
tokens depend on everything a resume has to carry over; ``SchedulerWorker`` is the real scheduler
over the fake runner.
"""

import asyncio
import hashlib
import secrets
from array import array
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from tests.worker.byte_vocabulary import EOS_ID, VOCAB_SIZE, byte_tokenizer
from tests.worker.fake_runner import FakeRunner
from tests.worker.recording_endpoint import RecordingEndpoint

from mizzen_worker.contracts.batch import RunnerLimits
from mizzen_worker.contracts.drain import DrainMode
from mizzen_worker.contracts.errors import WorkerError
from mizzen_worker.contracts.ids import InstanceId, PeerId, TokenId
from mizzen_worker.contracts.messages import (
    WIRE_VERSION,
    Abort,
    Attach,
    Capacity,
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
    ToTokenizer,
    ToWorker,
)
from mizzen_worker.contracts.request import FinishKind, FinishReason, SamplingParams, Usage
from mizzen_worker.contracts.text_messages import FromDetokenizer, ToDetokenizer
from mizzen_worker.detokenizer.text import Texts
from mizzen_worker.ipc.codec import to_tokenizer_codec, to_worker_codec
from mizzen_worker.observability.recorder import Recorder
from mizzen_worker.routing.workers import Workers
from mizzen_worker.scheduler.control import DrainOrder
from mizzen_worker.scheduler.loop import SchedulerLoop
from mizzen_worker.scheduler.settings import SchedulerSettings
from mizzen_worker.tokenizer.manager import TokenizerManager
from mizzen_worker.tokenizer.manager_settings import ManagerSettings
from mizzen_worker.tokenizer.request_state import FinalOutput, GenerateInput, RequestState
from mizzen_worker.vocabulary.token_bytes import token_bytes_of

TOKENIZER = byte_tokenizer()
TABLE = token_bytes_of(TOKENIZER.to_str())
IDENTITY = ModelIdentity(served_name="m", fingerprint="f", tokenizer="t", resume_identity="r")
PEER = PeerId(b"front")


def model_token(
    tokens: Sequence[int], num_prompt: int, sampling: SamplingParams
) -> tuple[TokenId, TokenLogprob]:
    """Give the token behind others and its score; both depend on all that decides sampling."""
    output = tokens[num_prompt:]
    counted = sum(output.count(token) * token for token in set(output))
    penalty = repr((counted, sampling.frequency_penalty)) if sampling.frequency_penalty else ""
    seeded = (sampling.seed, len(tokens)) if sampling.temperature else ()
    digest = hashlib.blake2b(
        array("l", tokens).tobytes() + repr((seeded, penalty)).encode(), digest_size=8
    ).digest()
    drawn = int.from_bytes(digest, "big")
    token = drawn % 97 + 97 if drawn % 7 else drawn % VOCAB_SIZE
    ends = {*sampling.stop_token_ids, *(() if sampling.ignore_eos else (EOS_ID,))}
    while token in ends and len(output) < sampling.min_new_tokens:
        token = (token + 1) % VOCAB_SIZE
    return TokenId(token), _score(drawn, sampling)


def _score(drawn: int, sampling: SamplingParams) -> TokenLogprob:
    num_top = sampling.logprobs.num_top if sampling.logprobs is not None else 0
    top = tuple((TokenId((drawn >> place) % VOCAB_SIZE), -float(place)) for place in range(num_top))
    return TokenLogprob(-(drawn % 1024) / 64, top)


def prompt_score(prompt: Sequence[int], place: int, sampling: SamplingParams) -> TokenLogprob:
    digest = hashlib.blake2b(array("l", prompt[: place + 1]).tobytes(), digest_size=8).digest()
    return _score(int.from_bytes(digest, "big"), sampling)


def model_output(wanted: GenerateInput) -> tuple[list[int], list[TokenLogprob], FinishKind]:
    """Say the whole output of a request that nothing disturbs and no text ends."""
    sampling = wanted.sampling
    tokens, scores = list(wanted.prompt_ids), []
    num_prompt = len(tokens)
    ends = {*sampling.stop_token_ids, *(() if sampling.ignore_eos else (EOS_ID,))}
    while len(scores) < sampling.max_new_tokens:
        token, score = model_token(tokens, num_prompt, sampling)
        tokens.append(token)
        scores.append(score)
        if token in ends:
            return tokens[num_prompt:], scores, FinishKind.STOP
    return tokens[num_prompt:], scores, FinishKind.LENGTH


class FleetWorker(Protocol):
    """One life of a worker."""

    def take(self, message: ToWorker) -> None: ...

    def step(self) -> list[ToTokenizer]: ...

    def hand_back(self, cause: HandBackCause) -> list[ToTokenizer]: ...


class _ModelRequest:
    def __init__(self, submit: Submit) -> None:
        self.submit = submit
        self.tokens = [*submit.prompt_ids, *submit.generated_ids]
        self.num_prompt = len(submit.prompt_ids)
        logprobs = submit.sampling.logprobs
        self.next_scored = None if logprobs is None else logprobs.prompt_start

    def step(self) -> list[ToTokenizer]:
        submit, sampling = self.submit, self.submit.sampling
        if self.next_scored is not None and self.next_scored < self.num_prompt:
            return [self._score_prompt(self.next_scored)]
        token, score = model_token(self.tokens, self.num_prompt, sampling)
        self.tokens.append(token)
        start = len(self.tokens) - self.num_prompt - 1
        scores = () if sampling.logprobs is None else (score,)
        event = TokenEvent(submit.request_id, submit.generation, start, (token,), scores)
        sent: list[ToTokenizer] = [TokenEvents(events=(event,))]
        ends = {*sampling.stop_token_ids, *(() if sampling.ignore_eos else (EOS_ID,))}
        if token in ends:
            sent.append(self.finished(FinishReason(kind=FinishKind.STOP, matched=token)))
        elif start + 1 >= sampling.max_new_tokens:
            sent.append(self.finished(FinishReason(kind=FinishKind.LENGTH)))
        return sent

    def _score_prompt(self, start: int) -> ToTokenizer:
        prompt = self.submit.prompt_ids
        end = min(start + 3, self.num_prompt)
        scores = tuple(
            prompt_score(prompt, place, self.submit.sampling) for place in range(max(1, start), end)
        )
        self.next_scored = end
        stretch = PromptLogprobs(
            self.submit.request_id, self.submit.generation, max(1, start), scores
        )
        return TokenEvents(events=(), prompt_logprobs=(stretch,))

    def finished(self, reason: FinishReason) -> Finished:
        usage = Usage(
            prompt_tokens=self.num_prompt,
            completion_tokens=len(self.tokens) - self.num_prompt,
            cached_tokens=1,
        )
        return Finished(
            request_id=self.submit.request_id,
            generation=self.submit.generation,
            reason=reason,
            usage=usage,
        )


class ModelWorker:
    """Implements ``FleetWorker``: one message or token a request and step."""

    def __init__(self) -> None:
        self._requests: dict[str, _ModelRequest] = {}
        self._due: list[ToTokenizer] = []
        self.submits: list[Submit] = []

    def take(self, message: ToWorker) -> None:
        if isinstance(message, Submit):
            self.submits.append(message)
            self._requests[message.request_id] = _ModelRequest(message)
        elif isinstance(message, Abort):
            request = self._requests.get(message.request_id)
            if request is not None and request.submit.generation == message.generation:
                del self._requests[message.request_id]
                self._due.append(request.finished(FinishReason(kind=FinishKind.ABORT)))

    def step(self) -> list[ToTokenizer]:
        sent, self._due = self._due, []
        for request_id, request in list(self._requests.items()):
            messages = request.step()
            sent.extend(messages)
            if isinstance(messages[-1], Finished):
                del self._requests[request_id]
        return sent

    def hand_back(self, cause: HandBackCause) -> list[ToTokenizer]:
        given = [
            HandBack(
                request_id=request.submit.request_id,
                generation=request.submit.generation,
                cause=cause,
            )
            for request in self._requests.values()
        ]
        self._requests.clear()
        return [*given]


class SchedulerWorker:
    """Implements ``FleetWorker`` with the scheduler itself."""

    def __init__(self, *, is_overlapped: bool) -> None:
        self.endpoint = RecordingEndpoint()
        limits = RunnerLimits(
            max_slots=4, num_pages=64, page_size=4, context_length=128, vocab_size=VOCAB_SIZE
        )
        self.loop = SchedulerLoop(
            runner=FakeRunner(limits),
            endpoint=self.endpoint,
            clock=lambda: 0.0,
            settings=SchedulerSettings(
                instance_id=InstanceId("w"),
                identity=IDENTITY,
                eos_token_ids=(TokenId(EOS_ID),),
                max_running=4,
                max_queued=64,
                max_chunk_tokens=8,
                max_idle_wait_s=0.0,
                is_overlapped=is_overlapped,
                is_audited=True,
            ),
        )
        attach = Attach(wire_version=WIRE_VERSION, instance_id=InstanceId("f"), credit=1 << 20)
        self.take(attach)
        self.step()

    def take(self, message: ToWorker) -> None:
        self.endpoint.inbox.append((PEER, message))

    def step(self) -> list[ToTokenizer]:
        self.loop.run_once()
        return self._sent()

    def hand_back(self, cause: HandBackCause) -> list[ToTokenizer]:
        if cause is HandBackCause.RESTARTING:
            self.loop.announce_restart()
        else:
            self.loop.start_drain(DrainOrder(mode=DrainMode.HANDBACK, deadline=None))
        return self._sent()

    def _sent(self) -> list[ToTokenizer]:
        sent = [message for _, message in self.endpoint.sent]
        self.endpoint.sent.clear()
        return [one for one in sent if isinstance(one, TokenEvents | Finished | HandBack)]


class Reader:
    """What one client read."""

    def __init__(self, state: RequestState) -> None:
        self.state = state
        self.text = ""
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprob] = []
        self.prompt_logprobs: list[TokenLogprob] = []
        self.final: FinalOutput | None = None
        self.error: WorkerError | None = None

    @property
    def has_ended(self) -> bool:
        return self.final is not None or self.error is not None

    def read(self) -> None:
        while not self.has_ended:
            try:
                output = self.state.take()
            except WorkerError as error:
                self.error = error
                return
            if output is None:
                return
            self.text += output.text
            self.token_ids.extend(output.token_ids)
            self.logprobs.extend(output.logprobs)
            self.prompt_logprobs.extend(output.prompt_logprobs)
            self.final = output.final


class Fleet:
    """The whole front side; nothing happens but what a test asks for."""

    def __init__(
        self,
        make_worker: Callable[[], FleetWorker],
        names: Sequence[str] = ("a", "b"),
        settings: ManagerSettings | None = None,
    ) -> None:
        self._make_worker = make_worker
        self.names = tuple(names)
        self.now_s = 0.0
        self.workers: dict[str, FleetWorker] = {}
        self.draining: set[str] = set()
        self.readers: list[Reader] = []
        self._outgoing: dict[str, deque[bytes]] = {}
        self._texts = Texts(TABLE)
        self._answers: deque[FromDetokenizer] = deque()
        self.manager = TokenizerManager(
            workers=Workers(tokenizer_fingerprint="t"),
            send=self._send,
            texts=self,
            recorder=Recorder("front"),
            clock=lambda: self.now_s,
            settings=settings
            or ManagerSettings(end_ids=frozenset({TokenId(EOS_ID)}), max_lost_workers=10_000),
        )
        self._to_worker, self._to_tokenizer = to_worker_codec(), to_tokenizer_codec()
        for name in self.names:
            self.start(name)

    def _send(self, address: str, message: ToWorker) -> bool:
        worker = self.workers.get(address)
        if worker is not None:
            worker.take(self._to_worker.decode(self._to_worker.encode(message)))
        return worker is not None

    def send(self, message: ToDetokenizer) -> bool:
        """See ``TextChannel``."""
        answer = self._texts.take(message)
        if answer is not None:
            self._answers.append(answer)
        return True

    def submit(self, wanted: GenerateInput) -> Reader:
        reader = Reader(self.manager.submit(secrets.token_hex(8), wanted))
        self.readers.append(reader)
        return reader

    def start(self, name: str) -> None:
        if name in self.workers:
            return
        self.workers[name] = self._make_worker()
        self.draining.discard(name)
        self._outgoing[name] = deque()
        load = Load(running_requests=0, queued_requests=0, kv_tokens_used=0, is_draining=False)
        capacity = Capacity(
            max_running_requests=4, max_queued_requests=64, kv_tokens=256, context_length=128
        )
        hello = Hello(
            wire_version=WIRE_VERSION,
            instance_id=InstanceId(name),
            identity=IDENTITY,
            capacity=capacity,
            load=load,
        )
        self.manager.on_attached(name, hello)

    def kill(self, name: str) -> None:
        if self.workers.pop(name, None) is not None:
            del self._outgoing[name]
            self.manager.on_lost(name, "killed")

    def step(self, name: str) -> None:
        worker = self.workers.get(name)
        if worker is not None:
            self._post(name, worker.step())

    def hand_back(self, name: str, cause: HandBackCause) -> None:
        worker = self.workers.get(name)
        if worker is not None and name not in self.draining:
            self.draining.add(name)
            self._post(name, worker.hand_back(cause))

    def _post(self, name: str, messages: Sequence[ToTokenizer]) -> None:
        self._outgoing[name].extend(map(self._to_tokenizer.encode, messages))

    def deliver(self, name: str, most: int = 1 << 30) -> None:
        for _ in range(most):
            queue = self._outgoing.get(name)
            if not queue:
                return
            self.manager.on_message(name, self._to_tokenizer.decode(queue.popleft()))

    def deliver_texts(self, most: int = 1 << 30) -> None:
        while self._answers and most:
            most -= 1
            self.manager.on_text(self._answers.popleft())

    def lose_texts(self) -> None:
        self._texts = Texts(TABLE)
        self._answers.clear()
        self.manager.on_texts_lost()

    def tick(self) -> None:
        self.now_s += 0.3
        self.manager.tick()

    def turn(self) -> None:
        """Everybody does a step and everything arrives."""
        for name in self.names:
            self.step(name)
            self.deliver(name)
        self.deliver_texts()
        for reader in self.readers:
            reader.read()

    def run_to_end(self, limit: int = 2_000) -> None:
        """Start whoever is missing and go on until every reader has its end."""
        for name in self.names:
            if name in self.draining:
                self.kill(name)
            self.start(name)
        for _ in range(limit):
            if all(reader.has_ended for reader in self.readers) and self.manager.num_live == 0:
                return
            self.turn()
            self.tick()
        raise AssertionError("a request does not end")


def in_loop(scenario: Callable[[], None]) -> None:
    """Run a synchronous scenario where asyncio's events can be made."""

    async def run() -> None:
        scenario()

    asyncio.run(run())
