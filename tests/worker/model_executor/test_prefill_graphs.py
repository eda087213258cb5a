"""Captured prefills: which steps they take, and padding that changes no row and no page but 0."""

import pytest
from tests.worker.model_executor.rerun_graphs import RerunGraphs
from tests.worker.model_executor.runner_driver import Driven, RunnerDriver, greedy
from tests.worker.model_executor.scripted_forward import scripted_runner

from mizzen_worker.contracts.request import LogprobParams, SamplingParams

NUM_PREFILLS = 7
"""Up to 256 tokens: (256, 256), (256, 64), (256, 16), (128, 64), (128, 16), (64, 64), (64, 16)."""


def used(graphs: RerunGraphs) -> list[int]:
    """Which prefills ran since the last call."""
    found = [i for i, graph in enumerate(graphs.graphs[:NUM_PREFILLS]) if graph.num_replays]
    for graph in graphs.graphs:
        graph.num_replays = 0
    return found


@pytest.mark.parametrize(
    ("lengths", "expected"),
    [
        ([2], [6]),
        ([63, 1], [6]),
        ([64, 1], [4]),
        ([100, 60], [2]),
        ([129, 128], []),
        ([1, 1], []),
        ([3] * 15, [6]),
        ([2] * 16, [5]),
    ],
)
def test_a_step_takes_the_smallest_bucket(lengths: list[int], expected: list[int]) -> None:
    graphs = RerunGraphs()
    captured, forward = scripted_runner(max_slots=20, graphs=graphs)
    eager, _ = scripted_runner(max_slots=20)
    outputs = []
    for runner in (captured, eager):
        driver = RunnerDriver(runner)
        driven = [
            Driven(slot + 1, [(slot + 7 * i) % 50 for i in range(length)], greedy(2))
            for slot, length in enumerate(lengths)
        ]
        for request in driven:
            driver.start(request)
        driver.run([(request, len(request.prompt)) for request in driven])
        outputs.append([request.output for request in driven])
    assert outputs[0] == outputs[1]
    assert used(graphs) == expected
    if expected:
        batch = forward.batches[-1]
        num_tokens = sum(lengths)
        assert (batch.kv_locations[num_tokens:] < 4).all(), "padding writes into the sink"
        assert batch.device_row_starts[len(lengths) + 1 :].unique().tolist() == [batch.num_tokens]
        assert batch.row_slots[len(lengths)] == 0
        assert batch.device_row_lengths[len(lengths)] == batch.num_tokens - num_tokens
        assert (batch.positions < 256).all()


def test_scores_of_prompts_and_mixed_steps_are_those_of_eager_ones() -> None:
    graphs = RerunGraphs()
    outputs = []
    for runner in (scripted_runner(graphs=graphs)[0], scripted_runner()[0]):
        driver = RunnerDriver(runner)
        scored = SamplingParams(
            max_new_tokens=4,
            seed=2,
            temperature=0.9,
            presence_penalty=0.3,
            logprobs=LogprobParams(num_top=3, prompt_start=1),
        )
        first = Driven(1, list(range(20)), scored)
        second = Driven(2, list(range(5, 45)), greedy(4))
        for request in (first, second):
            driver.start(request)
        driver.run([(first, 20), (second, 11)])
        driver.run([(second, 29), (first, 0)])
        driver.finish([first, second])
        outputs.append([(r.output, r.logprobs, r.tops, r.prompt_logprobs) for r in (first, second)])
    assert outputs[0] == outputs[1]
    assert used(graphs) == [5, 6]
