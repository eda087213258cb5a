"""A request goes on elsewhere without gap or repetition, whatever is lost and whenever."""

import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.worker.byte_vocabulary import EOS_ID, VOCAB_SIZE
from tests.worker.fake_model import expected
from tests.worker.tokenizer.fleet import TABLE, Fleet, Reader, in_loop
from tests.worker.tokenizer.fleet_workers import (
    ModelWorker,
    SchedulerWorker,
    model_output,
    prompt_score,
)

from mizzen_worker.contracts.errors import InterruptedRequestError, UnavailableError
from mizzen_worker.contracts.ids import TokenId
from mizzen_worker.contracts.messages import HandBackCause
from mizzen_worker.contracts.request import FinishKind, LogprobParams, SamplingParams
from mizzen_worker.detokenizer.incremental import TextDecoder
from mizzen_worker.tokenizer.manager_settings import ManagerSettings
from mizzen_worker.tokenizer.request_state import GenerateInput

SAMPLINGS = [
    {"temperature": 0.0},
    {"seed": 7},
    {"seed": 7, "frequency_penalty": 0.5, "min_new_tokens": 9},
    {"seed": 3, "logprobs": LogprobParams(num_top=2, prompt_start=0)},
    {"seed": 5, "logprobs": LogprobParams(num_top=0)},
    {"seed": 8, "ignore_eos": True, "stop_token_ids": (TokenId(110), TokenId(120))},
]


def _wanted(prompt: tuple[int, ...] = (1, 2, 3, 4, 5, 6, 7), **sampling: object) -> GenerateInput:
    params = SamplingParams(**{"max_new_tokens": 14, "seed": 0, **sampling})
    return GenerateInput(prompt_ids=tuple(map(TokenId, prompt)), sampling=params)


def _decoded(ids: list[int]) -> str:
    decoder = TextDecoder(TABLE, skip_special_tokens=True)
    return decoder.push([TokenId(token) for token in ids]) + decoder.flush()


def _with_stop(wanted: GenerateInput, place: int) -> GenerateInput:
    """Give a stop of three characters that the undisturbed text has, as string or pattern."""
    text = _decoded(model_output(wanted)[0])
    stop = text[place : place + 3]
    if not stop or "\ufffd" in stop:
        return wanted
    if place % 2:
        return replace(wanted, stop_regex=(f"(?s){re.escape(stop[0])}.{{{len(stop) - 1}}}",))
    return replace(wanted, stop=(stop, stop + "x"))


def _require_right(reader: Reader) -> None:
    """Compare what a client read with what an undisturbed engine says."""
    wanted = reader.state.wanted
    ids, scores, kind = model_output(wanted)
    assert reader.error is None
    assert reader.final is not None
    num_read = len(reader.token_ids)
    assert reader.token_ids == ids[:num_read]
    assert reader.final.usage.completion_tokens == num_read
    logprobs = wanted.sampling.logprobs
    assert reader.logprobs == ([] if logprobs is None else scores[:num_read])
    if logprobs is not None and logprobs.prompt_start is not None:
        prompt = wanted.prompt_ids
        places = range(max(1, logprobs.prompt_start), len(prompt))
        assert reader.prompt_logprobs == [
            prompt_score(prompt, place, wanted.sampling) for place in places
        ]
    if wanted.stop or wanted.stop_regex:
        assert reader.final.kind is FinishKind.STOP
        assert reader.text == _decoded(ids)[: len(reader.text)]
        stops = [*map(re.escape, wanted.stop), *wanted.stop_regex]
        seen = _decoded(reader.token_ids)
        assert any(re.match(stop, seen[len(reader.text) :]) for stop in stops)
        assert not any(re.search(stop, _decoded(reader.token_ids[:-1])) for stop in stops)
        return
    assert num_read == len(ids)
    assert reader.final.kind is kind
    shown = ids[:-1] if kind is FinishKind.STOP else ids
    assert reader.text == _decoded(shown)


EVENTS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *["turn", "turn", "turn", "step", "deliver", "texts", "read", "tick", "submit"],
                *["kill", "start", "drain", "restart", "lose_texts"],
            ]
        ),
        st.integers(0, 3),
    ),
    min_size=20,
    max_size=60,
)
REQUESTS = st.lists(
    st.tuples(st.integers(0, len(SAMPLINGS) - 1), st.integers(0, 30), st.integers(1, 9)),
    min_size=1,
    max_size=4,
)


def _request(kind: int, place: int, num_prompt: int) -> GenerateInput:
    wanted = _wanted(tuple(range(num_prompt)), **SAMPLINGS[kind])
    return _with_stop(wanted, place) if place < 12 else wanted


def _read(fleet: Fleet, first: int) -> None:
    for reader in fleet.readers[first:]:
        reader.read()


EVENT_TO_ACTION: dict[str, Callable[[Fleet, str, int], None]] = {
    "turn": lambda fleet, _name, _number: fleet.turn(),
    "step": lambda fleet, name, _number: fleet.step(name),
    "deliver": lambda fleet, name, number: fleet.deliver(name, number),
    "texts": lambda fleet, _name, number: fleet.deliver_texts(number),
    "read": lambda fleet, _name, number: _read(fleet, number),
    "tick": lambda fleet, _name, _number: fleet.tick(),
    "kill": lambda fleet, name, _number: fleet.kill(name),
    "start": lambda fleet, name, _number: fleet.start(name),
    "drain": lambda fleet, name, _number: fleet.hand_back(name, HandBackCause.DRAINING),
    "restart": lambda fleet, name, _number: fleet.hand_back(name, HandBackCause.RESTARTING),
    "lose_texts": lambda fleet, _name, _number: fleet.lose_texts(),
}


def _do(fleet: Fleet, event: str, number: int) -> None:
    EVENT_TO_ACTION[event](fleet, fleet.names[number % len(fleet.names)], number)


@given(REQUESTS, EVENTS)
def test_every_request_ends_once_and_right_whatever_happens(requests, events) -> None:
    def scenario() -> None:
        fleet = Fleet(ModelWorker, ("a", "b", "c"))
        waiting = [_request(*request) for request in requests]
        fleet.submit(waiting.pop())
        for event, number in events:
            if event != "submit":
                _do(fleet, event, number)
            elif waiting and fleet.manager.is_accepting:
                fleet.submit(waiting.pop())
        fleet.run_to_end()
        for reader in fleet.readers:
            if isinstance(reader.error, UnavailableError):
                # Given back before its first token, and every other worker drained too.
                assert (reader.state.generation, reader.token_ids) == (0, [])
            else:
                _require_right(reader)

    in_loop(scenario)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("stop_place", [None, 4, 5])
@pytest.mark.parametrize("loss", ["kill", "drain", "restart", "lose_texts"])
def test_loss_after_each_token(sampling, stop_place: int | None, loss: str) -> None:
    def scenario() -> None:
        wanted = _wanted(**sampling)
        if stop_place is not None:
            wanted = _with_stop(wanted, stop_place)
        for num_turns in range(18):
            for num_delivered in (0, 1):
                fleet = Fleet(ModelWorker)
                reader = fleet.submit(wanted)
                for _ in range(num_turns):
                    fleet.turn()
                for name in fleet.names:
                    fleet.step(name)
                    fleet.deliver(name, num_delivered)
                worker = reader.state.worker
                if worker is not None:
                    _do(fleet, loss, fleet.names.index(worker))
                    if loss != "lose_texts":
                        fleet.deliver(worker)
                        fleet.kill(worker)
                fleet.run_to_end()
                _require_right(reader)

    in_loop(scenario)


def test_a_worker_lost_after_every_token() -> None:
    def scenario() -> None:
        for sampling in SAMPLINGS:
            fleet = Fleet(ModelWorker, ("a",))
            reader = fleet.submit(_wanted(**sampling))
            while not reader.has_ended:
                fleet.turn()
                fleet.kill("a")
                fleet.start("a")
                fleet.tick()
            _require_right(reader)

    in_loop(scenario)


def test_a_client_that_does_not_read_holds_nobody_up_and_misses_nothing() -> None:
    def scenario() -> None:
        fleet = Fleet(ModelWorker)
        slow = fleet.submit(_wanted(seed=1))
        fleet.readers.remove(slow)
        quick = [fleet.submit(_wanted(seed=seed)) for seed in range(2, 6)]
        fleet.run_to_end()
        for reader in quick:
            _require_right(reader)
        for name in fleet.names:
            fleet.kill(name)
        slow.read()
        _require_right(slow)

    in_loop(scenario)


def test_siblings_of_one_prompt_are_resumed_each_with_its_own_seed() -> None:
    def scenario() -> None:
        fleet = Fleet(ModelWorker)
        readers = [fleet.submit(_wanted(seed=seed)) for seed in range(4)]
        for _ in range(5):
            fleet.turn()
        fleet.kill("a")
        fleet.turn()
        fleet.start("a")
        fleet.kill("b")
        fleet.run_to_end()
        for reader in readers:
            _require_right(reader)
        assert len({tuple(reader.token_ids) for reader in readers}) == 4

    in_loop(scenario)


@pytest.mark.parametrize("loss", ["kill", "drain", "restart"])
@pytest.mark.parametrize(
    "sampling", [*SAMPLINGS, {"repetition_penalty": 1.5, "presence_penalty": 1.0}]
)
@pytest.mark.parametrize("is_overlapped", [False, True])
def test_the_scheduler_goes_on_from_every_token_that_another_one_gave(
    loss: str, sampling, *, is_overlapped: bool
) -> None:
    wanted = _wanted(**sampling)
    whole = expected(
        wanted.prompt_ids, wanted.sampling, vocab_size=VOCAB_SIZE, eos_token_ids=(EOS_ID,)
    )

    def scenario() -> None:
        for num_turns in range(16):
            fleet = Fleet(lambda: SchedulerWorker(is_overlapped=is_overlapped))
            reader = fleet.submit(wanted)
            for _ in range(num_turns):
                fleet.turn()
            worker = reader.state.worker
            if worker is not None:
                _do(fleet, loss, fleet.names.index(worker))
                fleet.deliver(worker)
                fleet.kill(worker)
            fleet.run_to_end()
            assert reader.token_ids == whole.output
            is_stopped = reader.final is not None and reader.final.kind is FinishKind.STOP
            assert reader.text == _decoded(whole.output[:-1] if is_stopped else whole.output)
            assert [(one.logprob, one.top) for one in reader.logprobs] == whole.scores
            scores = [(one.logprob, one.top) for one in reader.prompt_logprobs]
            assert scores == whole.prompt_scores

    in_loop(scenario)


def test_a_resume_waits_for_an_equal_worker_and_not_for_ever() -> None:
    def scenario() -> None:
        settings = ManagerSettings(resume_timeout_s=3.0)
        fleet = Fleet(ModelWorker, ("a",), settings)
        reader = fleet.submit(_wanted())
        for _ in range(3):
            fleet.turn()
        fleet.kill("a")
        for _ in range(9):
            fleet.tick()
        assert not reader.has_ended
        for _ in range(3):
            fleet.tick()
        reader.read()
        assert isinstance(reader.error, InterruptedRequestError)
        assert reader.token_ids == model_output(reader.state.wanted)[0][:3]

    in_loop(scenario)
