"""Captured decode steps give what eager ones give: any mix of requests, slots, sizes, overlap."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.scale import count
from tests.worker.model_executor.rerun_graphs import RerunGraphs, captured_again
from tests.worker.model_executor.runner_driver import Driven, RunnerDriver, greedy
from tests.worker.model_executor.scripted_forward import ScriptedForward, scripted_runner
from tests.worker.model_executor.test_slot_state import requests

from mizzen_worker.contracts.batch import (
    INVALID_TOKEN,
    NO_TOKEN,
    DecodeRows,
    PageWrite,
    PrefixGroup,
    RunnerLimits,
    ScheduleBatch,
)
from mizzen_worker.contracts.errors import StepError
from mizzen_worker.contracts.request import LogprobParams, SamplingParams
from mizzen_worker.model_executor.model_runner import ModelRunner
from mizzen_worker.model_executor.slot_table import MAX_STOP_IDS


def sampling_of(**changes: object) -> SamplingParams:
    values: dict[str, object] = {"max_new_tokens": 6, "seed": 4, "temperature": 0.0}
    return SamplingParams(**{**values, **changes})


def runners() -> tuple[ModelRunner, ModelRunner, RerunGraphs]:
    """A captured one, an eager one, and the graphs of the first."""
    graphs = RerunGraphs()
    return scripted_runner(graphs=graphs)[0], scripted_runner()[0], graphs


CAPTURED, EAGER, GRAPHS = runners()
"""Capturing takes half a second under the interpreter; slots are entered anew by each test."""


NUM_DECODES = 12
"""Sizes 8, 4, 2, 1, three tails each; they are captured last."""


def replays() -> list[int]:
    return [graph.num_replays for graph in GRAPHS.graphs[-NUM_DECODES:]]


def changed_since(before: list[int]) -> list[int]:
    return [index for index, count in enumerate(replays()) if count != before[index]]


@settings(max_examples=count(check=12, full=100), deadline=None)
@given(
    given_requests=st.lists(requests(), min_size=1, max_size=7),
    joins=st.lists(st.integers(0, 4), min_size=7, max_size=7),
    slots=st.permutations(range(1, 9)),
)
def test_any_requests_get_the_tokens_of_eager_steps(
    given_requests: list[tuple[list[int], SamplingParams, tuple[int, ...]]],
    joins: list[int],
    slots: list[int],
) -> None:
    outputs = []
    for runner in (CAPTURED, EAGER):
        driver = RunnerDriver(runner)
        driven = [
            Driven(slots[index], prompt, sampling, eos)
            for index, (prompt, sampling, eos) in enumerate(given_requests)
        ]
        for step in range(60):
            pairs = list(zip(driven, joins, strict=False))
            for request, join in pairs:
                if join == step:
                    driver.start(request)
            live = [request for request, join in pairs if join <= step and not request.is_finished]
            if live:
                rest = [max(len(request.prompt) - request.num_computed, 0) for request in live]
                driver.run(list(zip(live, rest, strict=True)))
            elif step > max(joins):
                break
        outputs.append([(request.output, request.error_tokens) for request in driven])
    assert outputs[0] == outputs[1]


def test_decode_steps_are_captured_ones_of_the_next_size() -> None:
    driver, before = RunnerDriver(CAPTURED), replays()
    driven = [Driven(slot, [slot, 2], greedy(9)) for slot in (3, 1, 7)]
    for request in driven:
        driver.start(request)
    driver.run([(request, 2) for request in driven])
    assert replays() == before
    driver.run([(request, 0) for request in driven])
    assert changed_since(before) == [3], "four rows that only the best token is asked of"


@pytest.mark.parametrize(
    ("changes", "tail"),
    [
        ({"temperature": 0.8}, 1),
        ({"temperature": 0.8, "top_k": 5, "top_p": 0.9, "min_p": 0.01}, 1),
        ({"presence_penalty": 0.5}, 2),
        ({"logit_bias": ((3, 2.0),)}, 2),
        ({"logprobs": LogprobParams(num_top=2)}, 2),
        ({"stop_token_ids": tuple(range(MAX_STOP_IDS)), "min_new_tokens": 1}, 0),
        ({"stop_token_ids": tuple(range(20, 20 + MAX_STOP_IDS)), "min_new_tokens": 30}, 2),
        ({"stop_token_ids": tuple(range(20, 21 + MAX_STOP_IDS))}, None),
    ],
)
def test_what_a_request_asks_chooses_the_tail(changes: dict[str, object], tail: int | None) -> None:
    sampling = sampling_of(max_new_tokens=3, **changes)
    found = []
    before = replays()
    for runner in (CAPTURED, EAGER):
        request = Driven(5, [7, 7, 30], sampling)
        driver = RunnerDriver(runner)
        driver.start(request)
        driver.prefill(request)
        if not request.is_finished:
            driver.run([(request, 0)])
        found.append((request.output, request.logprobs, request.tops))
    assert found[0] == found[1]
    wanted = [] if tail is None or len(found[0][0]) < 2 else [9 + tail]
    assert changed_since(before) == wanted


def test_without_kernels_that_draw_the_logits_are_given_out() -> None:
    limits = RunnerLimits(max_slots=2, num_pages=64, page_size=4, context_length=64, vocab_size=50)
    forward, graphs = ScriptedForward(50), RerunGraphs()
    make = captured_again(forward, limits, graphs, draws=False)
    runner = ModelRunner(forward, limits, torch.device("cpu"), make_captured=make)
    runner.warm_up(lambda done, total: None)
    request = Driven(1, [3, 4], sampling_of(temperature=1.0))
    assert RunnerDriver(runner).generate(request) == RunnerDriver(EAGER).generate(
        replace(request, output=[], pages=[], num_computed=0, is_finished=False)
    )
    decodes = graphs.graphs[-4:]
    assert [graph.num_replays for graph in decodes] == [0, 0, 0, 5], "one row, ends with logits"


def test_steps_in_flight_keep_their_own_outcome() -> None:
    """More of them than the ring has places, settled late and out of step with the launches."""
    outputs = []
    for runner in (CAPTURED, EAGER):
        driver = RunnerDriver(runner)
        request = Driven(2, [9, 4, 1], greedy(20))
        driver.start(request)
        driver.prefill(request)
        driver._cover(request, 12)
        pending = [runner.launch(decode_batch(driver, [2], [3 + number])) for number in range(7)]
        outputs.append([step.settle().sampled_ids.tolist() for step in pending])
    assert outputs[0] == outputs[1]


def decode_batch(driver: RunnerDriver, slots: list[int], starts: list[int]) -> ScheduleBatch:
    driver.step += 1
    writes, driver._pending_writes = tuple(driver._pending_writes), []
    decodes = DecodeRows(slots=np.array(slots, np.int32), starts=np.array(starts, np.int32))
    return ScheduleBatch(
        step=driver.step, extends=(), decodes=decodes, slot_inits=(), page_writes=writes
    )


def test_an_ended_row_launched_again_is_a_no_op() -> None:
    driver = RunnerDriver(CAPTURED)
    request = Driven(4, [5, 6], greedy(2))
    driver.generate(request)
    last = CAPTURED._slots.last_tokens[4].item()
    result = CAPTURED.launch(decode_batch(driver, [4], [4])).settle()
    assert (result.sampled_ids.tolist(), result.is_finished.tolist()) == ([NO_TOKEN], [True])
    assert CAPTURED._slots.last_tokens[4].item() == last


def test_a_row_without_finite_logits_ends_alone() -> None:
    graphs = RerunGraphs()
    runner, forward = scripted_runner(graphs=graphs)
    driver = RunnerDriver(runner)
    driven = [Driven(1, [3, 4], greedy(5)), Driven(2, [5, 6], greedy(5))]
    for request in driven:
        driver.start(request)
    driver.run([(request, 2) for request in driven])
    forward.spoiled_slots = {1}
    driver.finish(driven)
    assert (driven[0].error_tokens, len(driven[0].output)) == ([INVALID_TOKEN], 1)
    assert len(driven[1].output) == 5


def test_a_step_error_changes_nothing() -> None:
    driver = RunnerDriver(CAPTURED)
    request = Driven(6, [5, 6, 7], greedy(8))
    driver.start(request)
    driver.prefill(request)
    before = CAPTURED._slots.page_table.clone()
    bad = decode_batch(driver, [6, 9], [3, 3])
    write = PageWrite(slot=6, first_page=0, pages=np.array([1], np.int32))
    with pytest.raises(StepError, match="decode row of slot 9"):
        CAPTURED.launch(replace(bad, page_writes=(write,)))
    assert torch.equal(CAPTURED._slots.page_table, before)
    driver.finish([request])
    assert request.output == RunnerDriver(EAGER).generate(Driven(6, [5, 6, 7], greedy(8)))


def test_more_page_writes_than_there_is_room_for_run_eagerly() -> None:
    driver, before = RunnerDriver(CAPTURED), replays()
    request = Driven(8, [5, 6, 7], greedy(3))
    driver.start(request)
    driver.prefill(request)
    driver._cover(request, 2 * 50 * 4)
    result = CAPTURED.launch(
        replace(
            decode_batch(driver, [8], [3]),
            page_writes=tuple(
                PageWrite(slot=8, first_page=1, pages=np.array(request.pages[1:50], np.int32))
                for _ in range(2)
            ),
        )
    ).settle()
    assert replays() == before
    assert (
        result.sampled_ids.tolist()
        == RunnerDriver(EAGER).generate(Driven(8, [5, 6, 7], greedy(3)))[1:2]
    )


def test_rows_that_share_pages_are_told_to_the_forward() -> None:
    """Groups reach it as in an eager step, from 16 rows on; other steps have none."""
    found = []
    for graphs in (RerunGraphs(), None):
        runner, forward = scripted_runner(max_slots=20, graphs=graphs)
        driver = RunnerDriver(runner)
        driven = [Driven(slot, [slot, 7] * 20, greedy(9)) for slot in range(1, 19)]
        for request in driven:
            driver.start(request)
        driver.run([(request, 40) for request in driven])
        slots, starts = list(range(1, 19)), [40] * 18
        groups = (
            PrefixGroup(first=1, count=4, num_tokens=16),
            PrefixGroup(first=6, count=9, num_tokens=32),
        )
        tokens = []
        for number, shared in enumerate((groups, (), groups[1:], groups[1:])):
            batch = decode_batch(driver, slots, [start + number for start in starts])
            batch = replace(batch, decodes=replace(batch.decodes, groups=shared))
            tokens.append(runner.launch(batch).settle().sampled_ids.tolist())
            prefixes = forward.batches[-1].shared_prefixes
            if prefixes is None:
                found.append((number, None, None))
                continue
            items = prefixes.items[: prefixes.num_items.item()].tolist()
            found.append((number, items, prefixes.row_tokens[:18].tolist()))
        found.append(tokens)
        few = decode_batch(driver, slots[:5], [44] * 5)
        few = replace(few, decodes=replace(few.decodes, groups=groups[:1]))
        found.append(runner.launch(few).settle().sampled_ids.tolist())
    half = len(found) // 2
    assert found[:half] == found[half:]
    assert found[0][1] == [[1, 4, 16], [6, 9, 32]]
    assert found[1][1] is None
