"""Sampled requests over the scheduler and the real sampler give what each gives alone.

Overlapped or not, in a pool so small that requests are retracted, with penalties, bias, filters,
stop ids and seeds. The forward is scripted, so every difference is the sampler's or the slots'.
"""

import numpy as np
import pytest
from tests.scale import count
from tests.worker.model_executor.runner_driver import Driven, RunnerDriver
from tests.worker.model_executor.scripted_forward import scripted_runner
from tests.worker.scheduler.test_with_model_runner import Served

from mizzen_worker.contracts.request import FinishKind, SamplingParams

VOCAB_SIZE = 50
EOS = (7,)

Wanted = tuple[list[int], dict[str, object]]


def random_request(rng: np.random.Generator, max_new_tokens: int = 24) -> Wanted:
    """A prompt and parameters of which about half are out of the ordinary."""

    def one_of(*choices: object) -> object:
        return choices[int(rng.integers(len(choices)))]

    def ids(most: int) -> list[int]:
        return rng.integers(0, VOCAB_SIZE, rng.integers(0, most + 1)).tolist()

    sampling = {
        "max_new_tokens": max_new_tokens,
        "seed": int(rng.integers(0, 2**63)),
        "temperature": one_of(0.0, 0.8, 1.5),
        "top_k": one_of(0, 0, 4),
        "top_p": one_of(1.0, 0.9),
        "min_p": one_of(0.0, 0.05),
        "repetition_penalty": one_of(1.0, 1.0, 1.4),
        "frequency_penalty": one_of(0.0, 0.0, 0.7),
        "presence_penalty": one_of(0.0, 0.0, -0.4),
        "stop_token_ids": tuple(ids(3)),
        "min_new_tokens": one_of(0, 3),
        "logit_bias": tuple((token, 2.5) for token in sorted(set(ids(2)))),
        "ignore_eos": bool(rng.integers(2)),
    }
    return [1, *ids(20)], sampling


def alone(prompt: list[int], sampling: dict[str, object]) -> list[int]:
    runner, _ = scripted_runner(VOCAB_SIZE)
    eos = () if sampling["ignore_eos"] else EOS
    params = SamplingParams(**sampling)
    return RunnerDriver(runner).generate(Driven(1, prompt, params, eos))


@pytest.mark.parametrize("is_overlapped", [False, True])
def test_sampled_tokens_equal_those_of_each_request_alone(*, is_overlapped: bool) -> None:
    rng = np.random.default_rng(21)
    runner, _ = scripted_runner(VOCAB_SIZE, max_slots=4, num_pages=15)
    served = Served(runner, is_overlapped=is_overlapped, eos_token_ids=EOS)
    for _ in range(count(check=2, full=20)):
        # Short at first and long later, so that the prediction of lengths is wrong: retractions.
        lengths = [*rng.integers(1, 4, 12).tolist(), *rng.integers(12, 25, 12).tolist()]
        wanted = [random_request(rng, length) for length in lengths]
        answers = served.answer(wanted)
        assert [answer.tokens for answer in answers] == [alone(*request) for request in wanted]
    assert served.loop.counters.retractions > 0


@pytest.mark.parametrize("is_overlapped", [False, True])
def test_a_request_without_finite_logits_ends_with_an_error_and_alone(
    *, is_overlapped: bool
) -> None:
    rng = np.random.default_rng(4)
    runner, forward = scripted_runner(VOCAB_SIZE, max_slots=4)
    forward.spoiling_tokens = {49}
    served = Served(runner, is_overlapped=is_overlapped, eos_token_ids=EOS)
    wanted = [random_request(rng) for _ in range(6)]
    for _, sampling in wanted:
        sampling["logit_bias"] = ((49, -100.0),)  # nobody else comes by it
    wanted[2] = ([3, 4, 49], {"max_new_tokens": 9})
    answers = served.answer(wanted)
    bad = answers.pop(2)
    assert bad.kind is FinishKind.ERROR
    assert bad.message == "the model gave no finite logits for this request"
    assert bad.tokens == []
    expected = [alone(*request) for index, request in enumerate(wanted) if index != 2]
    assert [answer.tokens for answer in answers] == expected
