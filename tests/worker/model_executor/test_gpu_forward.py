"""The forward over GPU weights equals transformers, eager and captured, whatever the regime."""

from pathlib import Path

import pytest
import torch
from tests.worker.model_executor.gpu_stand_in import DeviceRowsAttention, regimes
from tests.worker.model_executor.rerun_graphs import RerunGraphs, choose_in_torch
from tests.worker.model_executor.runner_driver import Driven, RunnerDriver, greedy
from tests.worker.model_executor.tiny_llama import random_prompt
from tests.worker.model_executor.tiny_models import VARIANTS, Tiny, save_tiny

from mizzen_worker.contracts.batch import RunnerLimits
from mizzen_worker.contracts.request import SamplingParams
from mizzen_worker.layers.gpu.step import GpuSettings
from mizzen_worker.layers.gpu.weights import GpuWeightPreparer
from mizzen_worker.layers.rotary import rotary_table
from mizzen_worker.memory.device_pool import DevicePool
from mizzen_worker.model_executor.decode_graphs import Capture, DecodeGraphs
from mizzen_worker.model_executor.gpu_forward import GpuForward
from mizzen_worker.model_executor.model_runner import ModelRunner
from mizzen_worker.model_executor.prefill_graphs import PrefillGraphs
from mizzen_worker.model_executor.runner_parts import pool_shape
from mizzen_worker.model_executor.step_graphs import StepGraphs
from mizzen_worker.model_executor.weights.checkpoint import open_checkpoint
from mizzen_worker.models.registry import build_model

CPU = torch.device("cpu")


def runner_of(
    folder: Path, page_size: int, asked: list[tuple[str, int]], *, is_captured: bool
) -> ModelRunner:
    checkpoint = open_checkpoint(folder, is_dummy=False)
    shape, facts = checkpoint.facts.shape, checkpoint.facts
    limits = RunnerLimits(
        max_slots=6,
        num_pages=1024 // page_size,
        page_size=page_size,
        context_length=128,
        vocab_size=shape.vocab_size,
    )
    pool = DevicePool(pool_shape(facts, limits), torch.float32, CPU)
    weights = checkpoint.open_weights(lambda done, total: None)
    model = build_model(facts, weights.source, GpuWeightPreparer(torch.float32, CPU))
    settings = GpuSettings(
        num_heads=shape.num_heads,
        num_kv_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        eps=facts.rms_norm_eps,
        table=rotary_table(facts.rotary, limits.context_length),
    )
    forward = GpuForward(model, pool, DeviceRowsAttention(pool), settings, regimes(asked))
    maker = RerunGraphs()
    capture = Capture(forward=forward, graphs=maker, choose=choose_in_torch)
    runner = ModelRunner(
        forward,
        limits,
        CPU,
        make_captured=(
            lambda slots, table: StepGraphs(
                DecodeGraphs(slots, table, limits, capture),
                PrefillGraphs(forward, slots, limits, maker),
            )
        )
        if is_captured
        else None,
    )
    runner.warm_up(lambda done, total: None)
    return runner


@pytest.fixture(scope="module", params=sorted(VARIANTS))
def tiny(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    folder = tmp_path_factory.mktemp(request.param)
    return Tiny(folder, save_tiny(folder, request.param))


@pytest.mark.parametrize("is_captured", [False, True])
def test_greedy_equals_transformers(tiny: Tiny, *, is_captured: bool) -> None:
    for page_size in (1, 16) if is_captured else (16,):
        asked: list[tuple[str, int]] = []
        driver = RunnerDriver(runner_of(tiny.folder, page_size, asked, is_captured=is_captured))
        driven = [Driven(slot, random_prompt(slot, 4 * slot), greedy(5)) for slot in (1, 2, 5)]
        driven[0].prompt = driven[0].prompt[:1]
        asked.clear()
        for request in driven:
            driver.start(request)
            driver.prefill(request, chunk=17)
        driver.run([(request, 0) for request in driven])
        driver.finish(driven)
        for request in driven:
            assert request.output == tiny.reference(request.prompt, 5).ids
        sizes = (64, 64, 64, 4) if is_captured else (8, 17, 3, 3)
        names = ("large", "large", "large" if is_captured else "skinny", "skinny")
        assert asked[:5] == [("one", 1), *zip(names, sizes, strict=True)]


def test_draws_are_those_of_eager_steps(tiny: Tiny) -> None:
    sampling = SamplingParams(max_new_tokens=6, seed=8, temperature=0.9, top_k=20)
    outputs = [
        RunnerDriver(runner_of(tiny.folder, 16, [], is_captured=is_captured)).generate(
            Driven(3, random_prompt(7, 9), sampling)
        )
        for is_captured in (False, True)
    ]
    assert outputs[0] == outputs[1]
