"""Log-probabilities equal transformers' log-softmax: output and prompt, chunked, after a prefix."""

from pathlib import Path

import numpy as np
import pytest
import torch
from tests.worker.model_executor.runner_driver import Driven, RunnerDriver
from tests.worker.model_executor.scripted_forward import scripted_runner
from tests.worker.model_executor.tiny_llama import (
    random_prompt,
    reference_logits,
    save_tiny_llama,
)
from tests.worker.model_executor.tiny_models import EVERY_BACKEND, load_tiny
from transformers import LlamaForCausalLM

from mizzen_worker.contracts.request import LogprobParams, SamplingParams
from mizzen_worker.model_executor import model_runner

TOLERANCE = 2e-3
"""Of a log-probability: float32 sums in another order, seen below 2e-4."""


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, LlamaForCausalLM]:
    folder = tmp_path_factory.mktemp("tiny")
    return folder, save_tiny_llama(folder)


def asking(num_top: int, prompt_start: int | None = None, **changes: object) -> SamplingParams:
    values: dict[str, object] = {"max_new_tokens": 5, "seed": 1, "temperature": 0.0}
    logprobs = LogprobParams(num_top=num_top, prompt_start=prompt_start)
    return SamplingParams(**{**values, **changes}, logprobs=logprobs)


def reference(model: LlamaForCausalLM, ids: list[int]) -> np.ndarray:
    """[len(ids), vocab]: row i is about the token that follows ids[i]."""
    return torch.log_softmax(reference_logits(model, ids), -1).numpy()


def require_equal(
    rows: np.ndarray,
    ids: list[int],
    logprobs: list[float],
    tops: list[dict[int, float]],
    num_top: int,
) -> None:
    assert len(rows) == len(ids) == len(logprobs) == len(tops)
    np.testing.assert_allclose(logprobs, rows[np.arange(len(ids)), ids], atol=TOLERANCE)
    for row, top in zip(rows, tops, strict=True):
        assert list(top) == np.argsort(-row, kind="stable")[:num_top].tolist()
        np.testing.assert_allclose(list(top.values()), row[list(top)], atol=TOLERANCE)


def require_reference(model: LlamaForCausalLM, request: Driven) -> None:
    """Every score that the request has equals transformers'."""
    params = request.sampling.logprobs
    assert params is not None
    rows = reference(model, request.known)
    num_prompt = len(request.prompt)
    output_rows = rows[num_prompt - 1 : len(request.known) - 1]
    scored = (output_rows, request.output, request.logprobs, request.tops)
    require_equal(*scored, params.num_top)
    first = num_prompt if params.prompt_start is None else max(1, params.prompt_start)
    prompt_rows = rows[first - 1 : num_prompt - 1]
    scored = (prompt_rows, request.prompt[first:], request.prompt_logprobs, request.prompt_tops)
    require_equal(*scored, params.num_top)


@EVERY_BACKEND
def test_every_chunk_boundary_gives_the_same_scores(
    tiny: tuple[Path, LlamaForCausalLM], backend: str
) -> None:
    folder, model = tiny
    driver = RunnerDriver(load_tiny(folder, backend, 4))
    prompt = random_prompt(2, 17)
    for chunk in range(1, len(prompt) + 1):
        for prompt_start in (0, 9) if chunk % 4 else (None, 16):
            request = Driven(1, prompt, asking(3, prompt_start))
            driver.generate(request, chunk)
            require_reference(model, request)
            driver.release(request)


@EVERY_BACKEND
def test_scores_are_right_among_strangers_and_where_logits_are_cut(
    tiny: tuple[Path, LlamaForCausalLM],
    backend: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    folder, model = tiny
    monkeypatch.setattr(model_runner, "_MAX_SCORED_POSITIONS", 7)
    driver = RunnerDriver(load_tiny(folder, backend, 4))
    asked = [
        asking(0, 0),
        asking(5, 3),
        SamplingParams(max_new_tokens=5, seed=2, temperature=0.0),
        asking(2),
        asking(4, 20, temperature=0.8, top_p=0.9, repetition_penalty=1.2, logit_bias=((5, 3.0),)),
    ]
    requests = [
        Driven(slot, random_prompt(slot, 4 + 7 * slot), sampling)
        for slot, sampling in enumerate(asked, 1)
    ]
    for request in requests:
        driver.start(request)
    driver.run([(requests[0], 11), (requests[1], 5), (requests[2], 25)])
    driver.run([(requests[1], 13), (requests[3], 32), (requests[4], 30), (requests[0], 0)])
    driver.run([(requests[4], 9), (requests[0], 0), (requests[2], 0)])
    driver.finish(requests)
    for request in requests:
        if request.sampling.logprobs is not None:
            require_reference(model, request)
    assert len(requests[2].output) == 5
    assert not requests[2].logprobs


@EVERY_BACKEND
def test_scores_after_a_cached_prefix_and_after_a_resume(
    tiny: tuple[Path, LlamaForCausalLM], backend: str
) -> None:
    folder, model = tiny
    driver = RunnerDriver(load_tiny(folder, backend, 4))
    shared = random_prompt(5, 24)
    owner = Driven(1, [*shared, 7, 8], asking(1))
    driver.generate(owner)
    # Position 23 is computed again where token 24 is scored: its logits were not kept.
    guest = Driven(2, [*shared, 50, 60, 70], asking(3, 21))
    driver.start(guest, owner.pages[:5])
    driver.prefill(guest, 2)
    driver.finish([guest])
    require_reference(model, guest)
    resumed = Driven(3, guest.prompt, guest.sampling, output=guest.output[:2])
    driver.generate(resumed, 3)
    assert resumed.output == guest.output
    np.testing.assert_allclose(resumed.logprobs, guest.logprobs[2:], atol=TOLERANCE)
    np.testing.assert_allclose(resumed.prompt_logprobs, guest.prompt_logprobs, atol=TOLERANCE)


def test_scores_are_of_the_models_own_distribution() -> None:
    runner, forward = scripted_runner()
    sampling = asking(
        2,
        0,
        temperature=1.4,
        top_k=3,
        presence_penalty=2.0,
        logit_bias=((4, 6.0),),
        stop_token_ids=(1, 2),
        min_new_tokens=4,
    )
    request = Driven(4, [3, 9, 9, 4], sampling)
    RunnerDriver(runner).generate(request)
    logits = np.stack(
        [forward.expected(token, position) for position, token in enumerate(request.known[:-1])]
    )
    rows = torch.log_softmax(torch.from_numpy(logits), -1).numpy()
    require_equal(rows[3:], request.output, request.logprobs, request.tops, 2)
    require_equal(rows[:3], request.prompt[1:], request.prompt_logprobs, request.prompt_tops, 2)


def test_a_long_scored_prompt_asks_for_few_logits_at_a_time() -> None:
    runner, forward = scripted_runner(context_length=1100)
    request = Driven(1, random_prompt(3, 1000, 50), asking(1, 0, max_new_tokens=2))
    RunnerDriver(runner).generate(request)
    assert len(request.prompt_logprobs) == 999
    assert max(forward.num_logits) <= 257
    assert [len(batch.token_ids) for batch in forward.batches] == [256, 256, 256, 232, 1]


def test_equal_alternatives_stand_in_the_order_of_their_ids() -> None:
    runner, forward = scripted_runner()
    forward._by_token[:] = 0
    forward._by_position[:] = 0
    request = Driven(1, [3, 4], asking(6))
    RunnerDriver(runner).generate(request)
    assert [list(top) for top in request.tops] == [[0, 1, 2, 3, 4, 5]] * 5
    assert request.output == [0] * 5


def test_more_alternatives_than_the_vocabulary_has_are_all_of_it() -> None:
    runner, _ = scripted_runner(vocab_size=6)
    request = Driven(1, [3, 4], asking(20))
    RunnerDriver(runner).generate(request)
    assert all(len(top) == 6 for top in request.tops)
