"""A scheduler on a fake runner, and a client that checks the protocol of every answer."""

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.worker.fake_model import Expected, Scored, expected
from tests.worker.fake_runner import FakeRunner
from tests.worker.recording_endpoint import RecordingEndpoint

from mizzen_worker.contracts.batch import Int32Array, RunnerLimits
from mizzen_worker.contracts.cache_eviction import CacheEviction
from mizzen_worker.contracts.ids import Generation, InstanceId, PeerId, RequestId
from mizzen_worker.contracts.messages import (
    WIRE_VERSION,
    Abort,
    Attach,
    Control,
    Finished,
    HandBack,
    ModelIdentity,
    Submit,
    TokenEvents,
    ToTokenizer,
)
from mizzen_worker.contracts.request import SamplingParams
from mizzen_worker.contracts.schedule_policy import SchedulePolicy
from mizzen_worker.scheduler.loop import SchedulerLoop
from mizzen_worker.scheduler.prefix_groups import GroupRule
from mizzen_worker.scheduler.req import Req
from mizzen_worker.scheduler.settings import SchedulerSettings
from mizzen_worker.scheduler.step_mix import MixRule

EOS = 0
VOCAB = 61
PEER = PeerId(b"front-1")
OTHER_PEER = PeerId(b"front-2")
IDENTITY = ModelIdentity(
    served_name="fake", fingerprint="f" * 8, tokenizer="t" * 8, resume_identity="r" * 8
)


@dataclass
class Attempt:
    """What the client knows of one submitted request."""

    submit: Submit
    peer: PeerId
    output: list[int]
    scores: list[Scored] = field(default_factory=list)
    prompt_scores: list[Scored] = field(default_factory=list)
    terminals: list[Finished | HandBack] = field(default_factory=list)

    @property
    def finished(self) -> Finished:
        assert len(self.terminals) == 1, self.terminals
        assert isinstance(self.terminals[0], Finished)
        return self.terminals[0]


class Harness:
    """One loop, one client side, one clock moved by hand; every step is audited.

    With ``delays`` steps overlap, and each really runs at a random moment up to its settle.
    """

    def __init__(
        self,
        *,
        page_size: int = 4,
        num_pages: int = 256,
        max_slots: int = 16,
        context_length: int = 4096,
        max_chunk_tokens: int = 64,
        max_queued: int = 1000,
        is_audited: bool = True,
        policy: SchedulePolicy = SchedulePolicy.FCFS,
        is_preemptive: bool = True,
        ageing_s: float = 30.0,
        delays: int | None = None,
        needs_cpu_token: Callable[[Submit], bool] = lambda _: False,
        cache_eviction: CacheEviction = CacheEviction.LRU,
        num_kept_cache_events: int = 0,
        group_rule: GroupRule | None = None,
        mix: MixRule | None = None,
    ) -> None:
        self.limits = RunnerLimits(
            max_slots=max_slots,
            num_pages=num_pages,
            page_size=page_size,
            context_length=context_length,
            vocab_size=VOCAB,
        )
        dice = None if delays is None else random.Random(delays)
        self.runner = FakeRunner(self.limits, dice)
        self.endpoint = RecordingEndpoint()
        self.now = 0.0
        self.settings = SchedulerSettings(
            instance_id=InstanceId("here"),
            identity=IDENTITY,
            eos_token_ids=(EOS,),
            max_running=max_slots,
            max_queued=max_queued,
            max_chunk_tokens=max(max_chunk_tokens, page_size),
            is_audited=is_audited,
            policy=policy,
            is_preemptive=is_preemptive,
            ageing_s=ageing_s,
            is_overlapped=delays is not None,
            needs_cpu_token=needs_cpu_token,
            cache_eviction=cache_eviction,
            num_kept_cache_events=num_kept_cache_events,
            group_rule=group_rule or GroupRule(min_rows=2, min_tokens=1),
            mix=mix or MixRule(),
        )
        self.loop = SchedulerLoop(
            runner=self.runner,
            endpoint=self.endpoint,
            clock=lambda: self.now,
            settings=self.settings,
        )
        self.state = self.loop._state
        """What the loop works on: tests look at it, and change it only where they say so."""
        self.attempts: dict[tuple[str, int], Attempt] = {}
        self.others: list[tuple[PeerId, ToTokenizer]] = []
        self._num_read = 0
        attach = Attach(wire_version=WIRE_VERSION, instance_id=InstanceId("front"), credit=10**6)
        for peer in (PEER, OTHER_PEER):
            self.endpoint.inbox.append((peer, attach))

    @property
    def max_tokens(self) -> int:
        return min(self.limits.context_length, self.limits.num_pages * self.limits.page_size)

    def submit(self, submit: Submit, peer: PeerId = PEER) -> Attempt:
        attempt = Attempt(submit=submit, peer=peer, output=list(submit.generated_ids))
        self.attempts[submit.request_id, submit.generation] = attempt
        self.endpoint.inbox.append((peer, submit))
        return attempt

    def abort(self, attempt: Attempt, peer: PeerId | None = None) -> None:
        message = Abort(request_id=attempt.submit.request_id, generation=attempt.submit.generation)
        self.endpoint.inbox.append((peer or attempt.peer, message))

    def control(self, control: Control) -> None:
        self.endpoint.inbox.append((PEER, control))

    def step(self) -> bool:
        """Run one iteration, spoil what is free, read the answers."""
        did_run = self.loop.run_once()
        self.runner.poison(self.free_pages())
        self._read()
        return did_run

    def steps(self, number_of: int) -> None:
        for _ in range(number_of):
            self.step()

    def live(self, name: str) -> Req:
        req = self.state.roster.get(RequestId(name))
        assert req is not None
        return req

    def running_ids(self) -> list[str]:
        return [req.request_id for req in self.state.roster.running]

    def order_of_ends(self, attempts: dict[str, Attempt]) -> list[str]:
        """Step until all have ended; say in which order they did."""
        ends: list[str] = []
        for _ in range(5000):
            self.step()
            ends += [n for n, attempt in attempts.items() if attempt.terminals and n not in ends]
            if len(ends) == len(attempts):
                return ends
        raise AssertionError(f"only {ends} ended")

    def warm(self, prompt: list[int]) -> None:
        """Have a prompt cached."""
        self.submit(make_submit(f"warm{len(self.attempts)}", prompt, max_new_tokens=1))
        self.run()

    def run(self, max_steps: int = 20_000) -> None:
        """Run until nothing is left to do."""
        for _ in range(max_steps):
            did_run = self.step()
            if not did_run and not self.endpoint.inbox and len(self.state.roster) == 0:
                return
        raise AssertionError(f"not idle after {max_steps} steps")

    def expected(self, submit: Submit) -> list[int]:
        return self.answer(submit).output

    def answer(self, submit: Submit) -> Expected:
        return expected(
            submit.prompt_ids,
            submit.sampling,
            vocab_size=VOCAB,
            eos_token_ids=(EOS,),
            max_tokens=self.max_tokens,
        )

    def assert_all_served(self) -> None:
        """Every attempt ended by itself with the tokens of the reference."""
        for attempt in self.attempts.values():
            assert attempt.finished.reason.kind.value in ("stop", "length")
            answer = self.answer(attempt.submit)
            assert attempt.output == answer.output
            num_before = len(attempt.submit.generated_ids)
            assert attempt.scores == answer.scores[num_before:]
            if not num_before:
                assert attempt.prompt_scores == answer.prompt_scores

    def assert_idle_and_whole(self) -> None:
        """Nothing is held, and after a flush everything is free."""
        cache = self.state.residency.cache
        assert cache.num_available == cache.num_pages
        cache.flush()
        assert cache.num_cached == 0
        assert len(self.free_pages()) == cache.num_pages

    def free_pages(self) -> Int32Array:
        return self.state.residency.cache._allocator.free_pages()

    def _read(self) -> None:
        for peer, message in self.endpoint.sent[self._num_read :]:
            if isinstance(message, TokenEvents):
                for event in message.events:
                    attempt = self.attempts[event.request_id, event.generation]
                    assert attempt.peer == peer
                    assert not attempt.terminals, "tokens after the terminal event"
                    assert event.start == len(attempt.output), "a gap or a repetition"
                    attempt.output.extend(event.token_ids)
                    is_scored = attempt.submit.sampling.logprobs is not None
                    assert len(event.logprobs) == (len(event.token_ids) if is_scored else 0)
                    attempt.scores.extend((one.logprob, one.top) for one in event.logprobs)
                self._read_prompt_scores(message)
            elif isinstance(message, Finished | HandBack):
                attempt = self.attempts[message.request_id, message.generation]
                assert attempt.peer == peer
                assert not attempt.terminals, "two terminal events"
                attempt.terminals.append(message)
            else:
                self.others.append((peer, message))
        self._num_read = len(self.endpoint.sent)

    def _read_prompt_scores(self, message: TokenEvents) -> None:
        for stretch in message.prompt_logprobs:
            attempt = self.attempts[stretch.request_id, stretch.generation]
            wanted = attempt.submit.sampling.logprobs
            assert wanted is not None
            assert wanted.prompt_start is not None
            first = max(wanted.prompt_start, 1)
            assert stretch.start == first + len(attempt.prompt_scores), "a gap or a repetition"
            assert len(attempt.output) <= 1, "prompt scores after the first token"
            attempt.prompt_scores.extend((one.logprob, one.top) for one in stretch.logprobs)


def submit_more_than_predicted(harness: Harness) -> None:
    """Submit fifty requests, short ones first: the prediction learns what the others won't keep."""
    for number in range(50):
        harness.submit(
            make_submit(
                f"r{number}",
                [number, *range(number % 17)],
                max_new_tokens=3 if number < 25 else 60,
                ignore_eos=True,
            )
        )


def make_submit(
    name: str,
    prompt: list[int] | range,
    *,
    max_new_tokens: int = 20,
    generated: list[int] | None = None,
    generation: int = 0,
    deadline_s: float | None = None,
    cache_salt: str = "",
    priority: int = 0,
    **sampling: object,
) -> Submit:
    """Build a request with greedy sampling unless told."""
    merged = {"temperature": 0.0, "seed": 1, **sampling}
    return Submit(
        request_id=RequestId(name),
        generation=Generation(generation),
        prompt_ids=tuple(token % VOCAB for token in prompt),
        sampling=SamplingParams(max_new_tokens=max_new_tokens, **merged),
        generated_ids=tuple(generated or ()),
        deadline_s=deadline_s,
        cache_salt=cache_salt,
        priority=priority,
    )
