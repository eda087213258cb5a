"""Real graphs on a GPU: tiny models of every family, graphs on and off, overlap, all tails.

In float32, so that tokens can be compared with transformers' and with each other. Each model is
loaded once with graphs and once without, for each page size.
"""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.gpu.test_launch import busy_device, without_waiting
from tests.worker.model_executor.runner_driver import Driven, RunnerDriver, greedy
from tests.worker.model_executor.tiny_llama import random_prompt
from tests.worker.model_executor.tiny_models import Tiny, save_tiny

from mizzen_worker.contracts.batch import (
    NO_TOKEN,
    DecodeRows,
    PrefixGroup,
    Runner,
    ScheduleBatch,
)
from mizzen_worker.contracts.request import LogprobParams, SamplingParams
from mizzen_worker.model_executor.factory import load_runner
from mizzen_worker.model_executor.runner_options import ComputeType, RunnerOptions

pytestmark = pytest.mark.gpu

FAMILIES = ("llama3-biases", "mistral-window", "qwen2", "qwen3", "qwen3-moe", "mixtral")
CASES = [*((family, 16) for family in FAMILIES), ("qwen3", 1)]
SAMPLINGS = {
    "temperature": {"temperature": 0.8},
    "filtered": {"temperature": 0.9, "top_k": 20, "top_p": 0.9, "min_p": 0.01},
    "penalised": {"temperature": 0.7, "frequency_penalty": 0.4, "repetition_penalty": 1.2},
    "biased": {"temperature": 0.0, "logit_bias": ((5, 2.0), (9, -3.0))},
    "scored": {"temperature": 0.0, "logprobs": LogprobParams(num_top=3)},
    "held back": {
        "temperature": 0.0,
        "min_new_tokens": 5,
        "stop_token_ids": tuple(range(0, 160, 12)),
    },
    "too many stops": {"temperature": 0.0, "stop_token_ids": tuple(range(0, 40, 2))},
}


class Loaded:
    """One checkpoint, and its runners."""

    def __init__(self, folder: Path, family: str, page_size: int, max_slots: int = 7) -> None:
        self.tiny = Tiny(folder, save_tiny(folder, family))
        self.captured, self.eager = (
            load_runner(
                RunnerOptions(
                    model=folder,
                    kv_tokens=4096,
                    page_size=page_size,
                    max_slots=max_slots,
                    device="cuda",
                    compute_type=ComputeType.FLOAT32,
                    max_chunk_tokens=512,
                    uses_graphs=uses_graphs,
                ),
                lambda done, total: None,
            ).runner
            for uses_graphs in (True, False)
        )


def _case(family: str, page_size: int) -> object:
    """Tests of one case are of one process (``--dist loadgroup``), which loads it once."""
    name = f"{family}-{page_size}"
    return pytest.param((family, page_size), id=name, marks=pytest.mark.xdist_group(name))


@pytest.fixture(scope="module", params=[_case(*case) for case in CASES])
def loaded(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Loaded]:
    family, page_size = request.param
    yield Loaded(tmp_path_factory.mktemp(family), family, page_size)
    torch.cuda.empty_cache()


def requests(sampling: SamplingParams) -> list[Driven]:
    return [Driven(slot, random_prompt(slot, 3 + 11 * slot), sampling) for slot in (1, 3, 4, 6, 7)]


def run(runner: Runner, driven: list[Driven]) -> None:
    """Prompts whole, in chunks and beside decode rows; then all of them decode."""
    driver = RunnerDriver(runner)
    for request in driven:
        driver.start(request)
    lengths = [len(request.prompt) for request in driven]
    driver.run([(driven[0], lengths[0]), (driven[1], 10)])
    driver.run([(driven[1], lengths[1] - 10), (driven[2], lengths[2]), (driven[0], 0)])
    driver.run([(request, len(request.prompt)) for request in driven[3:]])
    driver.finish(driven)


def test_greedy_tokens_are_those_of_transformers(loaded: Loaded) -> None:
    for runner in (loaded.captured, loaded.eager):
        for count in (1, 2, 5):
            driven = requests(greedy(8))[:count]
            if count < 3:
                driver = RunnerDriver(runner)
                for request in driven:
                    driver.start(request)
                    driver.prefill(request, chunk=9)
                driver.finish(driven)
            else:
                run(runner, driven)
            for request in driven:
                assert request.output == loaded.tiny.reference(request.prompt, 8).ids


@pytest.mark.parametrize("name", sorted(SAMPLINGS))
def test_captured_steps_sample_what_eager_ones_do(loaded: Loaded, name: str) -> None:
    found = []
    for runner in (loaded.captured, loaded.eager):
        driven = requests(SamplingParams(max_new_tokens=12, seed=5, **SAMPLINGS[name]))
        run(runner, driven)
        found.append(driven)
    for first, second in zip(*found, strict=True):
        assert first.output == second.output
        np.testing.assert_allclose(first.logprobs, second.logprobs, rtol=1e-3, atol=1e-3)


def test_two_steps_in_flight_give_the_same_tokens(loaded: Loaded) -> None:
    """Each step is launched before the one before it is settled; one request ends on the way."""
    for runner in (loaded.captured, loaded.eager):
        driver = RunnerDriver(runner)
        first, second = requests(greedy(12))[:2]
        stop = loaded.tiny.reference(second.prompt, 12).ids[4]
        second = replace(second, eos=(stop,))
        for request in (first, second):
            driver.start(request)
            driver.prefill(request)
            driver._cover(request, len(request.prompt) + 12)
        pending, outputs = [], [list(first.output), list(second.output)]
        for number in range(11):
            pending.append(runner.launch(decode(driver, [first, second], number)))
            if number:
                take(pending.pop(0).settle().sampled_ids, outputs)
        take(pending.pop().settle().sampled_ids, outputs)
        expected = loaded.tiny.reference(second.prompt, 12).ids
        assert outputs[0] == loaded.tiny.reference(first.prompt, 12).ids
        assert outputs[1] == expected[: expected.index(stop) + 1]


def decode(driver: RunnerDriver, driven: list[Driven], number: int) -> ScheduleBatch:
    driver.step += 1
    writes, driver._pending_writes = tuple(driver._pending_writes), []
    return ScheduleBatch(
        step=driver.step,
        extends=(),
        decodes=DecodeRows(
            slots=np.array([request.slot for request in driven], np.int32),
            starts=np.array([len(request.prompt) + number for request in driven], np.int32),
        ),
        slot_inits=(),
        page_writes=writes,
    )


def take(sampled: np.ndarray, outputs: list[list[int]]) -> None:
    for token, output in zip(sampled.tolist(), outputs, strict=True):
        assert token >= 0 or token == NO_TOKEN
        if token >= 0:
            output.append(token)


@pytest.mark.parametrize("name", ["temperature", "penalised"])
def test_launches_wait_for_nothing(loaded: Loaded, name: str) -> None:
    sampling = SamplingParams(max_new_tokens=40, seed=5, **SAMPLINGS[name])
    driven = requests(sampling)[:3]
    driver = RunnerDriver(loaded.captured)
    for request in driven:
        driver.start(request)
        driver.prefill(request)
        driver._cover(request, len(request.prompt) + 20)
    loaded.captured.launch(decode(driver, driven, 0)).settle()
    for number in (1, 2):
        done = busy_device()
        with without_waiting():
            pending = loaded.captured.launch(decode(driver, driven, number))
        assert not done.query(), f"launch {number} waited for the device"
        pending.settle()


def test_prefixes_that_rows_share_are_read_once_for_them(tmp_path: Path) -> None:
    loaded = Loaded(tmp_path, "qwen3", 16, max_slots=20)
    shared = random_prompt(5, 64)
    for runner in (loaded.captured, loaded.eager):
        driver = RunnerDriver(runner)
        owner = Driven(20, [*shared, 7], greedy(2))
        driver.generate(owner)
        driven = [Driven(slot, [*shared, 3 + slot, 9], greedy(6)) for slot in range(1, 19)]
        for request in driven:
            driver.start(request, owner.pages[:4])
        driver.run([(request, 2) for request in driven])
        for request in driven:
            driver._cover(request, 72)
        for number in range(5):
            batch = decode(driver, driven, number)
            groups = (
                PrefixGroup(first=0, count=7, num_tokens=64),
                PrefixGroup(first=8, count=10, num_tokens=48),
            )
            batch = replace(batch, decodes=replace(batch.decodes, groups=groups))
            sampled = runner.launch(batch).settle().sampled_ids.tolist()
            for request, token in zip(driven, sampled, strict=True):
                request.output.append(token)
        for request in driven:
            assert request.output == loaded.tiny.reference(request.prompt, 6).ids
