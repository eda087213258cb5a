"""Owns an engine in this process that benchmarks drive: scheduler loop over the real runner.

No HTTP, no tokenizer, no wire: what is timed is planning, the model and the return of token ids, as
through another engine's offline interface. Each run gets a scheduler, and so a prefix cache, of its
own; the runner, its weights and graphs stay.
"""

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from mizzen_worker.bench.device_use import DeviceMeter, DeviceUse
from mizzen_worker.bench.progress import Progress
from mizzen_worker.bench.workloads import HIGHEST_ID, BenchRequest
from mizzen_worker.contracts.batch import Runner
from mizzen_worker.contracts.ids import Generation, InstanceId, PeerId, RequestId
from mizzen_worker.contracts.messages import (
    WIRE_VERSION,
    Attach,
    Finished,
    ModelIdentity,
    Submit,
    ToTokenizer,
    ToWorker,
)
from mizzen_worker.contracts.request import FinishKind, SamplingParams
from mizzen_worker.layers.gpu.expert_tally import ExpertTally
from mizzen_worker.scheduler.loop import SchedulerLoop
from mizzen_worker.scheduler.settings import SchedulerSettings
from mizzen_worker.scheduler.step_mix import MixRule

_PEER = PeerId(b"bench")
_IDENTITY = ModelIdentity(served_name="bench", fingerprint="", tokenizer="", resume_identity="")


class BenchFailedError(Exception):
    """A request of a benchmark did not end as it should; the numbers would mean nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """Sizes of the scheduler; see ``SchedulerSettings``."""

    max_running: int
    max_chunk_tokens: int
    is_overlapped: bool
    decode_patience_s: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RunResult:
    """One workload, from the submission of all requests to the last answer."""

    wall_s: float
    num_prompt: int
    num_cached: int
    """Prompt tokens found in the prefix cache."""
    num_generated: int
    num_steps: int
    num_retractions: int
    use: DeviceUse


class _Inbox:
    """A worker's endpoint without a wire; implements ``WorkerEndpoint``."""

    def __init__(self) -> None:
        self.waiting: deque[tuple[PeerId, ToWorker]] = deque()
        self.sent: list[ToTokenizer] = []

    def receive(self, max_messages: int, timeout_s: float) -> Sequence[tuple[PeerId, ToWorker]]:
        """See ``WorkerEndpoint``; ``timeout_s`` is never waited for: nothing else arrives."""
        del timeout_s
        count = min(max_messages, len(self.waiting))
        return [self.waiting.popleft() for _ in range(count)]

    def send(self, peer: PeerId, message: ToTokenizer) -> None:
        """See ``WorkerEndpoint``."""
        del peer
        self.sent.append(message)

    def lost_peers(self) -> Sequence[PeerId]:
        """See ``WorkerEndpoint``."""
        return ()


class BenchEngine:
    """Runs workloads, one after the other."""

    def __init__(
        self, runner: Runner, limits: EngineLimits, meter: DeviceMeter | None = None
    ) -> None:
        self._runner = runner
        self._limits = limits
        self._meter = meter or DeviceMeter(ExpertTally(), None)

    def run(
        self, requests: Sequence[BenchRequest], *, temperature: float = 0.0, title: str = ""
    ) -> RunResult:
        """Submit all and wait for all; raises ``BenchFailedError``. Progress goes to stderr."""
        self._require_room(requests)
        inbox = _Inbox()
        loop = SchedulerLoop(
            runner=self._runner,
            endpoint=inbox,
            clock=time.monotonic,
            settings=self._settings(len(requests)),
        )
        attach = Attach(wire_version=WIRE_VERSION, instance_id=InstanceId("bench"), credit=10**9)
        inbox.waiting.append((_PEER, attach))
        submits = [_submit(index, request, temperature) for index, request in enumerate(requests)]
        self._meter.begin()
        started = time.perf_counter()
        inbox.waiting.extend((_PEER, submit) for submit in submits)
        num_done, progress = 0, Progress(title, len(requests))
        while num_done < len(requests):
            loop.run_once()
            num_finished = _count_finished(inbox.sent)
            inbox.sent.clear()
            num_done += num_finished
            progress.count(num_finished)
        wall_s = time.perf_counter() - started
        use = self._meter.end()
        counters = loop.counters
        expected = sum(request.num_new for request in requests)
        if counters.generated_tokens != expected:
            message = f"{counters.generated_tokens} tokens came instead of {expected}"
            raise BenchFailedError(message)
        return RunResult(
            wall_s=wall_s,
            num_prompt=counters.prompt_tokens,
            num_cached=counters.cached_tokens,
            num_generated=counters.generated_tokens,
            num_steps=counters.steps,
            num_retractions=counters.retractions,
            use=use,
        )

    def _require_room(self, requests: Sequence[BenchRequest]) -> None:
        limits = self._runner.limits
        kv_positions = limits.num_pages * limits.page_size
        most = min(limits.context_length, kv_positions)
        for request in requests:
            num_prompt = len(request.prompt_ids)
            if num_prompt + request.num_new > most:
                message = (
                    f"{num_prompt} prompt ids and {request.num_new} new tokens are more than "
                    f"{most} positions (context {limits.context_length}, KV memory "
                    f"{kv_positions}); ask for fewer, or raise --kv-tokens"
                )
                raise BenchFailedError(message)
            if max(request.prompt_ids) >= limits.vocab_size:
                message = (
                    f"prompts are ids of up to {HIGHEST_ID} and the model has {limits.vocab_size} "
                    "tokens; time a model with a larger vocabulary"
                )
                raise BenchFailedError(message)

    def _settings(self, num_requests: int) -> SchedulerSettings:
        return SchedulerSettings(
            instance_id=InstanceId("bench"),
            identity=_IDENTITY,
            eos_token_ids=(),
            max_running=self._limits.max_running,
            max_queued=max(1, num_requests),
            max_chunk_tokens=self._limits.max_chunk_tokens,
            is_overlapped=self._limits.is_overlapped,
            mix=MixRule(patience_s=self._limits.decode_patience_s),
        )


def _submit(index: int, request: BenchRequest, temperature: float) -> Submit:
    return Submit(
        request_id=RequestId(str(index)),
        generation=Generation(0),
        prompt_ids=request.prompt_ids,
        sampling=SamplingParams(
            max_new_tokens=request.num_new,
            seed=index + 1,
            temperature=temperature,
            ignore_eos=True,
        ),
    )


def _count_finished(sent: Sequence[ToTokenizer]) -> int:
    finished = [message for message in sent if isinstance(message, Finished)]
    for message in finished:
        if message.reason.kind is not FinishKind.LENGTH:
            reason = message.reason.message or message.reason.kind.value
            text = f"request {message.request_id} ended early: {reason}"
            raise BenchFailedError(text)
    return len(finished)
