"""Whole starts of tiny models, and requests after them, stay inside every tensor.

Trial steps, capture and warm-up run what tests of single kernels do not: rows and tokens that only
fill a step up, and buffers that nobody has written yet. What is checked, and that memory begins
without numbers, is ``tests/worker/kernels/gpu/bounds_check.py``'s, for every test here.
"""

from pathlib import Path

import pytest
from tests.scale import slow_case
from tests.worker.model_executor.interpreted_start import cpu_as_gpu, start_interpreted
from tests.worker.model_executor.runner_driver import Driven, RunnerDriver, greedy
from tests.worker.model_executor.tiny_llama import random_prompt
from tests.worker.model_executor.tiny_models import Tiny, save_tiny

from mizzen_worker.contracts.request import SamplingParams
from mizzen_worker.kernels.gpu.launching import IS_INTERPRETED

pytestmark = pytest.mark.skipif(
    not IS_INTERPRETED, reason="missing: the interpreter (tests/gpu does this on a GPU)"
)


@pytest.mark.parametrize(
    ("variant", "page_size", "context_length", "steps"),
    [
        ("qwen3", 16, 64, "captured"),
        slow_case("qwen3-moe", 16, 64, "captured"),
        slow_case("qwen3-moe", 16, 288, "eager"),
        slow_case("llama3-biases", 16, 64, "captured"),
        slow_case("mistral-window", 1, 128, "captured"),
        slow_case("qwen2", 16, 64, "captured"),
        slow_case("qwen3", 1, 288, "eager"),
        slow_case("mixtral", 16, 64, "captured"),
    ],
)
def test_a_start_and_requests_touch_nothing_else(
    tmp_path: Path, variant: str, page_size: int, context_length: int, steps: str
) -> None:
    tiny = Tiny(tmp_path, save_tiny(tmp_path, variant, num_hidden_layers=2))
    drawn = SamplingParams(max_new_tokens=4, seed=5, temperature=0.9, top_p=0.9)
    penalised = SamplingParams(max_new_tokens=4, seed=5, temperature=0.0, frequency_penalty=0.4)
    with cpu_as_gpu():
        runner = start_interpreted(
            tmp_path,
            page_size=page_size,
            max_slots=3,
            context_length=context_length,
            uses_graphs=steps == "captured",
        )
        driver = RunnerDriver(runner)
        samplings = (greedy(4), drawn, penalised)
        driven = [
            Driven(slot, random_prompt(slot, 6 * slot), sampling)
            for slot, sampling in enumerate(samplings, start=1)
        ]
        for request in driven:
            driver.start(request)
        driver.run([(driven[0], 6), (driven[1], 5)])
        driver.run([(driven[1], 7), (driven[2], 18), (driven[0], 0)])
        driver.finish(driven)
    assert driven[0].output == tiny.reference(driven[0].prompt, 4).ids
    assert not any(request.error_tokens for request in driven)
