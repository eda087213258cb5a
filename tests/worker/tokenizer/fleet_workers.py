"""Workers for a fleet under test, all synchronous: what each says is the test's to deliver.

``ModelWorker`` does what the contract says of any worker, its tokens depend on everything a resume
has to carry over; ``SchedulerWorker`` is the real scheduler over the fake runner.
"""

import hashlib
from array import array
from collections.abc import Sequence
from typing import Protocol

from tests.worker.byte_vocabulary import EOS_ID, VOCAB_SIZE
from tests.worker.fake_runner import FakeRunner
from tests.worker.recording_endpoint import RecordingEndpoint

from mizzen_worker.contracts.batch import RunnerLimits
from mizzen_worker.contracts.drain import DrainMode
from mizzen_worker.contracts.ids import InstanceId, PeerId, TokenId
from mizzen_worker.contracts.messages import (
    WIRE_VERSION,
    Abort,
    Attach,
    Finished,
    HandBack,
    HandBackCause,
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
from mizzen_worker.scheduler.control import DrainOrder
from mizzen_worker.scheduler.loop import SchedulerLoop
from mizzen_worker.scheduler.settings import SchedulerSettings
from mizzen_worker.tokenizer.request_state import GenerateInput

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
