"""What a slot holds: outputs depend on the request alone, ends are final, bad rows end alone."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.scale import count
from tests.worker.model_executor.runner_driver import Driven, RunnerDriver, greedy
from tests.worker.model_executor.scripted_forward import ScriptedForward, scripted_runner
from tests.worker.model_executor.tiny_models import EVERY_DEVICE
from tests.worker.sampler.exact_distribution import Row, exact_logits

from mizzen_worker.contracts.batch import (
    INVALID_TOKEN,
    NO_TOKEN,
    DecodeRows,
    ScheduleBatch,
    SlotInit,
)
from mizzen_worker.contracts.errors import DeviceError, StepError
from mizzen_worker.contracts.request import SamplingParams
from mizzen_worker.model_executor.model_runner import ModelRunner

VOCAB_SIZE = 50
_TOKENS = st.integers(0, VOCAB_SIZE - 1)


@st.composite
def requests(draw: st.DrawFn) -> tuple[list[int], SamplingParams, tuple[int, ...]]:
    prompt = draw(st.lists(_TOKENS, min_size=1, max_size=9))
    sampling = SamplingParams(
        max_new_tokens=draw(st.integers(1, 9)),
        seed=draw(st.integers(0, 2**64 - 1)),
        temperature=draw(st.sampled_from([0.0, 0.7, 1.5])),
        top_k=draw(st.sampled_from([0, 0, 1, 5, VOCAB_SIZE + 3])),
        top_p=draw(st.sampled_from([1.0, 0.8])),
        min_p=draw(st.sampled_from([0.0, 0.05])),
        stop_token_ids=tuple(draw(st.lists(_TOKENS, max_size=6))),
        min_new_tokens=draw(st.integers(0, 5)),
        repetition_penalty=draw(st.sampled_from([1.0, 1.0, 1.5])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.8])),
        presence_penalty=draw(st.sampled_from([0.0, 0.0, -0.5])),
        logit_bias=tuple(draw(st.dictionaries(_TOKENS, st.floats(-5, 5), max_size=3)).items()),
    )
    return prompt, sampling, tuple(draw(st.sets(_TOKENS, max_size=2)))


def alone(prompt: list[int], sampling: SamplingParams, eos: tuple[int, ...]) -> list[int]:
    runner, _ = scripted_runner()
    return RunnerDriver(runner).generate(Driven(1, prompt, sampling, eos))


@settings(max_examples=count(check=60, full=400))
@given(
    given_requests=st.lists(requests(), min_size=1, max_size=6),
    joins=st.lists(st.integers(0, 6), min_size=6, max_size=6),
    slots=st.permutations(range(1, 9)),
    chunk=st.integers(1, 9),
)
def test_a_request_gives_the_same_tokens_in_any_slot_batch_and_step(
    given_requests: list[tuple[list[int], SamplingParams, tuple[int, ...]]],
    joins: list[int],
    slots: list[int],
    chunk: int,
) -> None:
    runner, _ = scripted_runner()
    driver = RunnerDriver(runner)
    driven = [
        Driven(slots[index], prompt, sampling, eos)
        for index, (prompt, sampling, eos) in enumerate(given_requests)
    ]
    for step in range(200):
        for request, join in zip(driven, joins, strict=False):
            if join == step:
                driver.start(request)
        joined = [r for r, join in zip(driven, joins, strict=False) if join <= step]
        live = [r for r in joined if not r.is_finished]
        counts = [min(chunk, max(len(r.prompt) - r.num_computed, 0)) for r in live]
        if live:
            driver.run(list(zip(live, counts, strict=True)))
        elif step > max(joins):
            break
    for request in driven:
        expected = alone(request.prompt, request.sampling, request.eos)
        assert request.output == expected
        assert len(expected) <= request.sampling.max_new_tokens


@given(request=requests(), cut=st.integers(0, 8), slot=st.integers(1, 8), chunk=st.integers(1, 20))
def test_a_request_resumed_anywhere_goes_on_with_the_same_tokens(
    request: tuple[list[int], SamplingParams, tuple[int, ...]], cut: int, slot: int, chunk: int
) -> None:
    prompt, sampling, eos = request
    expected = alone(prompt, sampling, eos)
    begun = expected[: min(cut, len(expected) - 1)]
    runner, _ = scripted_runner()
    driver = RunnerDriver(runner)
    # The slot held a request with penalties and bias before.
    before = replace_sampling(frequency_penalty=2.0, logit_bias=((1, 9.0),), stop_token_ids=(1,))
    driver.generate(Driven(slot, [2, 3], before))
    resumed = Driven(slot, prompt, sampling, eos, output=list(begun))
    assert driver.generate(resumed, chunk) == expected


def replace_sampling(**changes: object) -> SamplingParams:
    values: dict[str, object] = {"max_new_tokens": 6, "seed": 4, "temperature": 0.9}
    return SamplingParams(**{**values, **changes})


@EVERY_DEVICE
def test_penalised_greedy_tokens_equal_the_formulas(device: str) -> None:
    runner, forward = scripted_runner(device=device)
    prompt = [5, 9, 9, 14]
    sampling = replace_sampling(
        max_new_tokens=40,
        temperature=0.0,
        repetition_penalty=1.3,
        frequency_penalty=0.7,
        presence_penalty=0.4,
        logit_bias=((20, 3.0), (21, -50.0)),
    )
    output = RunnerDriver(runner).generate(Driven(2, prompt, sampling), chunk=3)
    expected: list[int] = []
    for position in range(len(prompt) - 1, len(prompt) + 39):
        known = prompt + expected
        row = Row(
            repetition=1.3,
            frequency=0.7,
            presence=0.4,
            prompt=prompt,
            output=expected,
            bias={20: 3.0, 21: -50.0},
        )
        logits = exact_logits(forward.expected(known[-1], position), row)
        expected.append(int(logits.argmax()))
    assert output == expected
    assert len(set(output)) > 20


def test_tallies_take_memory_only_for_slots_that_use_penalties() -> None:
    runner, _ = scripted_runner()
    driver = RunnerDriver(runner)
    tallies = runner._slots.tallies
    driver.generate(Driven(1, [3, 4], greedy(3)))
    assert len(tallies.tallies) == 1
    for slot in (1, 5, 1, 5, 1):
        driver.generate(Driven(slot, [3, 4], replace_sampling(presence_penalty=1.0)))
    assert len(tallies.tallies) <= 4
    for slot in range(1, 9):
        driver.generate(Driven(slot, [3, 4], replace_sampling(presence_penalty=1.0)))
    assert len(tallies.tallies) == 9


def decode_again(driver: RunnerDriver, request: Driven) -> tuple[list[int], list[bool]]:
    """Launch a request's decode row though it has ended, as an overlapping scheduler does."""
    before = (list(request.output), request.num_computed)
    driver.run([(request, 0)])
    tokens, request.error_tokens = request.error_tokens, []
    assert (request.output, request.num_computed - 1) == before
    return tokens, [request.is_finished]


@EVERY_DEVICE
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_finished_slot_launched_again_is_a_no_op(temperature: float, device: str) -> None:
    sampling = replace_sampling(
        temperature=temperature, max_new_tokens=30, frequency_penalty=0.5, top_p=0.9
    )
    expected = alone([7, 8], sampling, ())
    stopped = replace(Driven(3, [7, 8], sampling), eos=(expected[4],))
    stranger = Driven(4, [1, 2, 3], replace_sampling(max_new_tokens=30))
    runner, forward = scripted_runner(device=device)
    driver = RunnerDriver(runner)
    driver.start(stopped)
    driver.start(stranger)
    driver.run([(stopped, 2), (stranger, 3)])
    while not stopped.is_finished:
        driver.run([(stopped, 0), (stranger, 0)])
    assert stopped.output == expected[: expected.index(expected[4]) + 1]
    state = runner._slots
    before = [state.last_tokens[3].item(), state.tallies.tallies.clone()]
    assert decode_again(driver, stopped) == ([NO_TOKEN], [True])
    locations = forward.batches[-1].kv_locations
    assert locations.tolist()[0] < runner.limits.page_size, "KV goes to the sink page"
    assert state.last_tokens[3].item() == before[0]
    assert (state.tallies.tallies == before[1]).all()
    driver.finish([stranger])
    assert stranger.output == alone(stranger.prompt, stranger.sampling, ())


def test_length_ends_a_request_on_the_device() -> None:
    runner, _ = scripted_runner(context_length=16)
    driver = RunnerDriver(runner)
    request = Driven(1, [3] * 10, greedy(100))
    assert len(driver.generate(request)) == 6
    assert request.is_finished


def test_stop_ids_end_a_request_only_after_min_new_tokens() -> None:
    every = tuple(range(0, VOCAB_SIZE, 2))
    for min_new in range(5):
        sampling = replace_sampling(min_new_tokens=min_new, stop_token_ids=every, max_new_tokens=30)
        output = alone([1, 2], sampling, (7,))
        stops = [index for index, token in enumerate(output) if token % 2 == 0 or token == 7]
        assert stops == [len(output) - 1]
        assert stops[0] >= min_new


@EVERY_DEVICE
def test_a_request_without_finite_logits_ends_alone(device: str) -> None:
    runner, forward = scripted_runner(device=device)
    driver = RunnerDriver(runner)
    spoiled = Driven(1, [3, 4], replace_sampling(presence_penalty=1.0))
    good = Driven(2, [5, 6], replace_sampling(max_new_tokens=20))
    for request in (spoiled, good):
        driver.start(request)
    driver.run([(spoiled, 2), (good, 2)])
    forward.spoiled_slots = {1}
    driver.run([(spoiled, 0), (good, 0)])
    assert spoiled.error_tokens == [INVALID_TOKEN]
    assert spoiled.is_finished
    assert decode_again(driver, replace(spoiled, error_tokens=[])) == ([NO_TOKEN], [True])
    driver.finish([good])
    assert good.output == alone(good.prompt, good.sampling, ())
    forward.spoiled_slots = set()
    again = Driven(1, spoiled.prompt, spoiled.sampling)
    assert driver.generate(again) == alone(spoiled.prompt, spoiled.sampling, ())


@EVERY_DEVICE
def test_many_rows_without_finite_logits_and_none_between_are_a_device_error(device: str) -> None:
    runner, forward = scripted_runner(device=device)
    driver = RunnerDriver(runner)
    forward.spoiled_slots = set(range(1, 8))
    for slot in range(1, 8):
        request = Driven(slot, [3, 4], greedy(3))
        driver.start(request)
        driver.prefill(request)
        assert request.error_tokens == [INVALID_TOKEN]
    driver.generate(Driven(8, [3, 4], greedy(3)))  # a good one: the count begins anew
    forward.spoiled_slots = set(range(1, 9))
    batch = [Driven(slot, [3, 4], greedy(3)) for slot in range(1, 9)]
    for request in batch:
        driver.start(request)
    with pytest.raises(DeviceError, match="the last 8 rows had no finite logits"):
        driver.run([(request, 2) for request in batch])


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"history": None}, "penalties need the 2 known ids, 0 are given"),
        ({"history": np.array([1], np.int32)}, "penalties need the 2 known ids, 1 are given"),
        ({"history": np.array([1, 50], np.int32)}, "an id of the history is outside"),
    ],
)
def test_penalties_without_the_ids_to_count_are_a_step_error(
    changes: dict[str, object], text: str
) -> None:
    runner, _ = scripted_runner()
    require_refused(runner, replace_sampling(presence_penalty=1.0), text, **changes)


def test_bias_outside_the_vocabulary_is_a_step_error() -> None:
    runner, _ = scripted_runner()
    require_refused(runner, replace_sampling(logit_bias=((50, 1.0),)), "an id of the logit bias")


def require_refused(
    runner: ModelRunner, sampling: SamplingParams, text: str, **changes: object
) -> None:
    values: dict[str, object] = {
        "slot": 1,
        "sampling": sampling,
        "num_prompt_tokens": 2,
        "num_generated_tokens": 0,
        "eos_token_ids": (),
        "max_tokens": 9,
    }
    batch = ScheduleBatch(
        step=1,
        extends=(),
        decodes=DecodeRows(slots=np.array([1], np.int32), starts=np.array([0], np.int32)),
        slot_inits=(SlotInit(**{**values, **changes}),),
        page_writes=(),
    )
    with pytest.raises(StepError, match=text):
        runner.launch(batch)


@EVERY_DEVICE
def test_a_step_without_rows_gives_nothing(device: str) -> None:
    runner, forward = scripted_runner(device=device)
    nobody = np.empty(0, dtype=np.int32)
    decodes = DecodeRows(slots=nobody, starts=nobody)
    batch = ScheduleBatch(step=1, extends=(), decodes=decodes, slot_inits=(), page_writes=())
    result = runner.launch(batch).settle()
    assert (len(result.sampled_ids), len(result.is_finished), forward.batches) == (0, 0, [])


def test_scripted_logits_differ_by_token_and_position() -> None:
    forward = ScriptedForward(20)
    assert not np.array_equal(forward.expected(1, 2), forward.expected(2, 2))
    assert not np.array_equal(forward.expected(1, 2), forward.expected(1, 3))
