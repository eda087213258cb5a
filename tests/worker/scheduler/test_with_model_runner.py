"""The scheduler on the real runner and a tiny random model gives transformers' greedy tokens."""

from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from tests.worker.model_executor.tiny_llama import (
    random_prompt,
    reference_greedy,
    save_tiny_llama,
)
from tests.worker.model_executor.tiny_models import EVERY_DEVICE
from tests.worker.recording_endpoint import RecordingEndpoint
from tests.worker.scheduler.harness import IDENTITY, PEER, make_submit

from mizzen_worker.contracts.batch import Runner
from mizzen_worker.contracts.ids import Generation, InstanceId, RequestId
from mizzen_worker.contracts.messages import (
    WIRE_VERSION,
    Abort,
    Attach,
    Finished,
    TokenEvents,
    TokenLogprob,
    ToTokenizer,
)
from mizzen_worker.contracts.request import FinishKind, LogprobParams
from mizzen_worker.model_executor.factory import load_runner
from mizzen_worker.model_executor.runner_options import ComputeType, RunnerOptions
from mizzen_worker.scheduler.loop import SchedulerLoop
from mizzen_worker.scheduler.settings import SchedulerSettings

NUM_NEW = 10


@pytest.fixture(scope="module")
def prompts_and_outputs(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("tiny")
    model = save_tiny_llama(folder)
    shared = random_prompt(0, 40)
    prompts = [shared + random_prompt(seed, 5 + 9 * seed) for seed in range(1, 5)]
    prompts += [random_prompt(7, 3), shared[:32], random_prompt(8, 61)]
    return folder, [(prompt, reference_greedy(model, prompt, NUM_NEW)) for prompt in prompts]


def _load(folder: Path, page_size: int, kv_tokens: int, device: str) -> Runner:
    options = RunnerOptions(
        model=folder,
        page_size=page_size,
        kv_tokens=kv_tokens,
        max_slots=4,
        compute_type=ComputeType.FLOAT32,
        num_threads=1,
        device=device,
    )
    return load_runner(options, lambda done, total: None).runner


@dataclass
class Answer:
    """What a client has of one request."""

    tokens: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob] = field(default_factory=list)
    kind: FinishKind | None = None
    message: str | None = None


class Served:
    """A loop on the real runner, and its client."""

    def __init__(
        self, runner: Runner, *, is_overlapped: bool, eos_token_ids: tuple[int, ...] = ()
    ) -> None:
        self.endpoint = RecordingEndpoint()
        self.loop = SchedulerLoop(
            runner=runner,
            endpoint=self.endpoint,
            clock=lambda: 0.0,
            settings=SchedulerSettings(
                instance_id=InstanceId("here"),
                identity=IDENTITY,
                eos_token_ids=eos_token_ids,
                max_running=4,
                max_queued=100,
                max_chunk_tokens=32,
                is_overlapped=is_overlapped,
                is_audited=True,
            ),
        )
        attach = Attach(wire_version=WIRE_VERSION, instance_id=InstanceId("front"), credit=0)
        self.endpoint.inbox.append((PEER, attach))
        self._num_served = 0

    def serve(self, prompts: list[list[int]], **sampling: object) -> list[list[int]]:
        """Greedy tokens of some prompts that arrive together."""
        merged = {"max_new_tokens": NUM_NEW, **sampling}
        answers = self.answer([(prompt, merged) for prompt in prompts])
        return [answer.tokens for answer in answers]

    def answer(self, wanted: list[tuple[list[int], dict[str, object]]]) -> list[Answer]:
        answers: dict[str, Answer] = {}
        for prompt, sampling in wanted:
            self._num_served += 1
            named = make_submit(f"r{self._num_served}", [], **sampling)
            submit = msgspec.structs.replace(named, prompt_ids=tuple(prompt))
            answers[submit.request_id] = Answer()
            self.endpoint.inbox.append((PEER, submit))
        while any(answer.kind is None for answer in answers.values()):
            self.loop.run_once()
            for _, message in self.endpoint.sent:
                _read(message, answers)
            self.endpoint.sent.clear()
        return list(answers.values())

    def flush(self) -> None:
        """Have nothing cached."""
        while self.loop.run_once():
            pass
        cache = self.loop._state.residency.cache
        cache.flush()
        assert cache.num_cached == 0


def _read(message: ToTokenizer, answers: dict[str, Answer]) -> None:
    if isinstance(message, TokenEvents):
        for stretch in message.prompt_logprobs:
            answers[stretch.request_id].prompt_logprobs.extend(stretch.logprobs)
        for event in message.events:
            answers[event.request_id].tokens.extend(event.token_ids)
            answers[event.request_id].logprobs.extend(event.logprobs)
    elif isinstance(message, Finished):
        answers[message.request_id].kind = message.reason.kind
        answers[message.request_id].message = message.reason.message


def _best(entry: TokenLogprob) -> list[int]:
    return [token for token, _ in entry.top[:1]]


def _require_equal_scores(one: list[TokenLogprob], other: list[TokenLogprob]) -> None:
    assert len(one) == len(other)
    # Another batch around a row may round its last bits differently.
    assert [entry.logprob for entry in one] == pytest.approx(
        [entry.logprob for entry in other], abs=1e-4
    )
    assert [_best(entry) for entry in one] == [_best(entry) for entry in other]


@EVERY_DEVICE
@pytest.mark.parametrize("is_overlapped", [False, True])
@pytest.mark.parametrize(("page_size", "kv_tokens"), [(1, 170), (16, 176)])
def test_tokens_equal_transformers(
    prompts_and_outputs, page_size: int, kv_tokens: int, device: str, *, is_overlapped: bool
) -> None:
    folder, pairs = prompts_and_outputs
    served = Served(_load(folder, page_size, kv_tokens, device), is_overlapped=is_overlapped)
    prompts = [prompt for prompt, _ in pairs]
    expected = [output for _, output in pairs]
    for prompt, output in pairs[:2]:
        assert served.serve([prompt]) == [output], "alone and cold"
    assert served.serve(prompts) == expected, "together"
    assert served.serve(prompts[::-1]) == expected[::-1], "together and warm"
    assert served.loop.counters.cached_tokens > 0


@EVERY_DEVICE
def test_overlap_changes_no_answer(prompts_and_outputs, device: str) -> None:
    """Also not with everything that lives on the device: ends, penalties, seeds, scores."""
    folder, pairs = prompts_and_outputs
    eos = pairs[0][1][4]
    kinds: list[dict[str, object]] = [
        {},
        {"temperature": 0.8, "seed": 3, "top_k": 20},
        {"repetition_penalty": 1.3, "frequency_penalty": 0.5, "presence_penalty": 0.2},
        {"temperature": 1.0, "seed": 4, "min_new_tokens": 8, "stop_token_ids": (eos,)},
        {"logprobs": LogprobParams(num_top=2, prompt_start=0), "logit_bias": ((eos, 3.0),)},
    ]
    wanted = [
        (prompt, {"max_new_tokens": 24, **kinds[(number + shift) % len(kinds)]})
        for shift in range(3)
        for number, (prompt, _) in enumerate(pairs)
    ]
    answers = []
    for is_overlapped in (False, True):
        runner = _load(folder, 16, 160, device)
        served = Served(runner, is_overlapped=is_overlapped, eos_token_ids=(eos,))
        for _ in range(64):
            served.loop._state.prediction.observe(1)  # Too low, so that pages run out.
        answers.append(served.answer(wanted))
        assert served.loop.counters.retractions > 0
    for plain, overlapped in zip(*answers, strict=True):
        assert plain.tokens == overlapped.tokens
        assert plain.kind is overlapped.kind
        for name in ("logprobs", "prompt_logprobs"):
            _require_equal_scores(getattr(plain, name), getattr(overlapped, name))
    kinds_of_end = {answer.kind for answer in answers[1]}
    assert kinds_of_end == {FinishKind.STOP, FinishKind.LENGTH}
    assert any(answer.prompt_logprobs for answer in answers[1])


@EVERY_DEVICE
@pytest.mark.parametrize("is_overlapped", [False, True])
@pytest.mark.parametrize("page_size", [1, 16])
def test_prompt_scores_after_a_partial_hit_equal_the_cold_ones(
    prompts_and_outputs, device: str, page_size: int, *, is_overlapped: bool
) -> None:
    """Asked from the middle of what is cached, from its end, behind it, and from the start."""
    folder, pairs = prompts_and_outputs
    runner = _load(folder, page_size, 400, device)
    (first, _), (prompt, _) = pairs[:2]
    num_shared = next(n for n, (a, b) in enumerate(zip(first, prompt, strict=False)) if a != b)
    num_cached = num_shared // page_size * page_size
    assert num_cached < len(prompt) - 2
    for start in (0, 1, num_cached // 2, num_cached, num_cached + 1, len(prompt) - 1):
        wanted = {"max_new_tokens": 2, "logprobs": LogprobParams(num_top=3, prompt_start=start)}
        served = Served(runner, is_overlapped=is_overlapped)
        (cold,) = served.answer([(prompt, wanted)])
        assert served.loop.counters.cached_tokens == 0
        served.flush()
        served.serve([first])
        (warm,) = served.answer([(prompt, wanted)])
        # The token before the first one that is scored is computed again.
        most = min(num_cached, max(start - 1, 0) // page_size * page_size)
        assert served.loop.counters.cached_tokens == most
        assert len(cold.prompt_logprobs) == len(prompt) - max(start, 1)
        _require_equal_scores(cold.prompt_logprobs, warm.prompt_logprobs)
        _require_equal_scores(cold.logprobs, warm.logprobs)
        assert cold.tokens == warm.tokens
        served.flush()


@EVERY_DEVICE
@pytest.mark.parametrize("is_overlapped", [False, True])
def test_aborts_in_flight_hurt_nobody(
    prompts_and_outputs, device: str, *, is_overlapped: bool
) -> None:
    folder, pairs = prompts_and_outputs
    served = Served(_load(folder, 4, 400, device), is_overlapped=is_overlapped)
    for num_steps in range(1, 9):
        names = [f"{num_steps}-{number}" for number in range(len(pairs))]
        tokens: dict[str, Answer] = {name: Answer() for name in names}
        for name, (prompt, _) in zip(names, pairs, strict=True):
            submit = make_submit(name, [], max_new_tokens=NUM_NEW)
            served.endpoint.inbox.append(
                (PEER, msgspec.structs.replace(submit, prompt_ids=tuple(prompt)))
            )
        for step in range(1000):
            if step == num_steps:
                for name in names[::2]:
                    abort = Abort(request_id=RequestId(name), generation=Generation(0))
                    served.endpoint.inbox.append((PEER, abort))
            served.loop.run_once()
            for _, message in served.endpoint.sent:
                _read(message, tokens)
            served.endpoint.sent.clear()
            if all(answer.kind is not None for answer in tokens.values()):
                break
        kinds = [tokens[name].kind for name in names]
        assert kinds == [FinishKind.ABORT, FinishKind.LENGTH] * (len(names) // 2) + [
            FinishKind.ABORT
        ]
        for name, (_, output) in zip(names, pairs, strict=True):
            expected = output if tokens[name].kind is FinishKind.LENGTH else output[:-1]
            assert tokens[name].tokens == expected[: len(tokens[name].tokens)]
            assert tokens[name].kind is FinishKind.ABORT or tokens[name].tokens == output
    while served.loop.run_once():
        pass
    cache = served.loop._state.residency.cache
    assert cache.num_available == cache.num_pages
