"""The arithmetic of the least energy, by hand."""

import pytest
from tests.gpu.workload_energy import (
    Costs,
    Work,
    decode_work,
    layer_values,
    offline_work,
    prefill_work,
)

from mizzen_worker.bench.workloads import BenchRequest
from mizzen_worker.models.model_facts import ModelShape

SHAPE = ModelShape(
    num_layers=2,
    hidden_size=10,
    intermediate_size=30,
    num_heads=4,
    num_kv_heads=2,
    head_dim=5,
    vocab_size=100,
)
"""A layer: 10 * 20 twice, 10 * 10 twice, 10 * 30 three times."""


def test_work_of_a_decoding_batch() -> None:
    assert layer_values(SHAPE) == 400 + 200 + 900
    work = decode_work(SHAPE, [(3, 3), (5, 2)])
    # Two steps read 3,000 + 1,000 numbers; positions 4 + 5 and 6, of 2 * 2 * 2 * 5 numbers.
    assert work.terabytes == pytest.approx(2 * (2 * 4000 + 15 * 40) * 1e-12)
    assert work.teraoperations == pytest.approx((2 * 3 * 4000 + 4 * 15 * 40) * 1e-12)


def test_work_of_prompts_and_of_both() -> None:
    prompts = prefill_work(SHAPE, [3])
    assert prompts.teraoperations == pytest.approx((2 * 3000 * 3 + 4 * 40 * 6 + 2000) * 1e-12)
    both = offline_work(SHAPE, [BenchRequest(prompt_ids=(1, 2, 3), num_new=3)])
    alone = decode_work(SHAPE, [(3, 3)])
    assert both.terabytes == alone.terabytes
    assert both.teraoperations == pytest.approx(prompts.teraoperations + alone.teraoperations)


def test_the_power_limit_bounds_the_time() -> None:
    costs = Costs(
        joules_per_terabyte=100.0, joules_per_teraoperation=0.5, idle_w=100.0, limit_w=700.0
    )
    assert costs.least_seconds(Work(terabytes=3.0, teraoperations=600.0)) == pytest.approx(1.0)
