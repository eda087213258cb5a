"""Whole tiny models on the GPU's kernels equal transformers; interpreted where there is no GPU.

Here a captured step is run again by hand: tests of real graphs are in ``tests/gpu``.
"""

from pathlib import Path

import pytest
import torch
from tests.worker.model_executor.rerun_graphs import RerunGraphs
from tests.worker.model_executor.runner_driver import Driven, RunnerDriver, greedy
from tests.worker.model_executor.tiny_llama import random_prompt, reference_logits
from tests.worker.model_executor.tiny_models import Tiny, save_tiny

from mizzen_worker.contracts.batch import RunnerLimits
from mizzen_worker.contracts.request import LogprobParams, SamplingParams
from mizzen_worker.layers.gpu.weights import GpuWeightPreparer
from mizzen_worker.memory.device_pool import DevicePool
from mizzen_worker.model_executor.gpu_model import (
    load_gpu_model,
    reason_against_kernels,
    step_capture,
)
from mizzen_worker.model_executor.model_runner import ModelRunner
from mizzen_worker.model_executor.runner_parts import pool_shape
from mizzen_worker.model_executor.weights.checkpoint import open_checkpoint

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def runner_of(folder: Path, page_size: int, *, is_captured: bool) -> ModelRunner:
    checkpoint = open_checkpoint(folder)
    limits = RunnerLimits(
        max_slots=3,
        num_pages=512 // page_size,
        page_size=page_size,
        context_length=80,
        vocab_size=checkpoint.facts.shape.vocab_size,
    )
    assert reason_against_kernels(checkpoint.facts) is None
    model = load_gpu_model(
        checkpoint,
        GpuWeightPreparer(torch.float32, DEVICE),
        limits.context_length,
        lambda done, total: None,
    )
    forward = model.forward(DevicePool(pool_shape(checkpoint.facts, limits), torch.float32, DEVICE))
    capture = step_capture(forward, limits, RerunGraphs) if is_captured else None
    runner = ModelRunner(forward, limits, DEVICE, None, capture)
    runner.warm_up(lambda done, total: None)
    return runner


@pytest.mark.parametrize("variant", ["llama", "qwen3", "qwen3-moe"])
@pytest.mark.parametrize("is_captured", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_greedy_equals_transformers(tmp_path: Path, variant: str, *, is_captured: bool) -> None:
    tiny = Tiny(tmp_path, save_tiny(tmp_path, variant, num_hidden_layers=2))
    driver = RunnerDriver(runner_of(tmp_path, 16, is_captured=is_captured))
    driven = [Driven(slot, random_prompt(slot, 6 * slot), greedy(3)) for slot in (1, 2, 3)]
    for request in driven:
        driver.start(request)
    driver.run([(driven[0], 6), (driven[1], 12)])
    driver.run([(driven[2], 18), (driven[0], 0)])
    driver.finish(driven)
    for request in driven:
        assert request.output == tiny.reference(request.prompt, 3).ids


def test_scores_of_a_prompt_are_those_of_its_positions(tmp_path: Path) -> None:
    """As many logits as tokens are wanted, but not in the order of the tokens."""
    tiny = Tiny(tmp_path, save_tiny(tmp_path, "llama", num_hidden_layers=2))
    sampling = SamplingParams(
        max_new_tokens=1, seed=1, temperature=0.0, logprobs=LogprobParams(num_top=0, prompt_start=1)
    )
    request = Driven(1, random_prompt(3, 5), sampling)
    RunnerDriver(runner_of(tmp_path, 16, is_captured=False)).generate(request)
    scores = reference_logits(tiny.model, request.prompt).log_softmax(-1)
    expected = [float(scores[i, token]) for i, token in enumerate(request.prompt[1:])]
    assert request.prompt_logprobs == pytest.approx(expected, abs=1e-3)
    assert request.output == tiny.reference(request.prompt, 1).ids


@pytest.mark.parametrize(
    ("variant", "changes", "reason"),
    [
        ("qwen3-biases", {}, "head size 48 is none of 16, 32, 64, 128"),
        ("llama", {"intermediate_size": 100}, "intermediate size 100 is not a multiple of 16"),
        ("mixtral", {}, None),
        ("mixtral", {"intermediate_size": 40}, "intermediate size 40 is not a multiple of 16"),
        ("mistral-window", {}, None),
    ],
)
def test_what_the_kernels_do_not_serve_is_said(
    tmp_path: Path, variant: str, changes: dict[str, object], reason: str | None
) -> None:
    save_tiny(tmp_path, variant, **changes)
    assert reason_against_kernels(open_checkpoint(tmp_path).facts) == reason
