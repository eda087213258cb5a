"""What a worker refuses: one clear sentence each, and never an exception, whatever is submitted."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.worker.scheduler.harness import VOCAB, Harness, make_submit

from mizzen_worker.contracts.batch import RunnerLimits
from mizzen_worker.contracts.ids import Generation, RequestId
from mizzen_worker.contracts.messages import Submit
from mizzen_worker.contracts.request import FinishKind, LogprobParams, SamplingParams
from mizzen_worker.scheduler.intake import refusal

LIMITS = RunnerLimits(max_slots=4, num_pages=32, page_size=4, context_length=100, vocab_size=VOCAB)


@pytest.mark.parametrize(
    ("sampling", "words"),
    [
        ({"repetition_penalty": 0.0}, "repetition_penalty: 0.0; give a number from 0.001 to 1000"),
        ({"repetition_penalty": float("inf")}, "repetition_penalty: inf"),
        ({"frequency_penalty": 2.5}, "frequency_penalty: 2.5; give a number from -2 to 2"),
        ({"presence_penalty": float("nan")}, "presence_penalty: nan; give a number from -2 to 2"),
        ({"logit_bias": ((61, 1.0),)}, "logit_bias: token 61 is outside the vocabulary of 61"),
        ({"logit_bias": ((-1, 1.0),)}, "logit_bias: token -1 is outside"),
        ({"logit_bias": ((3, 1.0), (3, 2.0))}, "logit_bias: token 3 is given twice"),
        ({"logit_bias": ((3, float("inf")),)}, "logit_bias: inf for token 3; give a number from"),
        ({"logit_bias": ((3, 1.0),) * 1025}, "logit_bias: 1025 entries are given; give at most"),
        ({"logprobs": LogprobParams(num_top=21)}, "logprobs.num_top: 21; give a number from 0 to"),
        ({"logprobs": LogprobParams(num_top=-1)}, "logprobs.num_top: -1"),
        (
            {"logprobs": LogprobParams(num_top=0, prompt_start=3)},
            "logprobs.prompt_start: 3; give an index from 0 to 2",
        ),
        ({"logprobs": LogprobParams(num_top=0, prompt_start=-1)}, "logprobs.prompt_start: -1"),
    ],
)
def test_a_wrong_sampling_field_is_refused(sampling: dict[str, Any], words: str) -> None:
    sentence = refusal(make_submit("a", [1, 2], **sampling), LIMITS)
    assert sentence is not None
    assert sentence.startswith(words)
    assert "\n" not in sentence


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"priority": 2**31}, "priority: 2147483648; give a number from -2147483648 to"),
        ({"priority": -(2**31) - 1}, "priority: -2147483649"),
        ({"deadline_s": float("nan")}, "deadline_s: nan"),
        ({"deadline_s": -0.5}, "deadline_s: -0.5"),
        ({"cache_salt": "x" * 1025}, "cache_salt: 1025 characters; give at most 1024"),
        ({"cache_salt": "a\ud800"}, "cache_salt: holds half a surrogate pair"),
    ],
)
def test_a_wrong_envelope_is_refused(changes: dict[str, Any], words: str) -> None:
    submit = msgspec.structs.replace(make_submit("a", [1, 2]), **changes)
    assert (refusal(submit, LIMITS) or "").startswith(words)


@pytest.mark.parametrize(
    "sampling",
    [
        {"repetition_penalty": 0.001, "frequency_penalty": -2.0, "presence_penalty": 2.0},
        {"logit_bias": ((0, -1e4), (60, 100.0))},
        {"logprobs": LogprobParams(num_top=20, prompt_start=2)},
        {"logprobs": LogprobParams(num_top=0, prompt_start=0)},
    ],
)
def test_the_ends_of_the_ranges_are_taken(sampling: dict[str, Any]) -> None:
    assert refusal(make_submit("a", [1, 2], **sampling), LIMITS) is None


NUMBER = st.one_of(
    st.integers(-3, 130),
    st.integers(),
    st.sampled_from([2**31 - 1, 2**31, 2**63, -(2**63), 2**64 - 1]),
)
REAL = st.one_of(st.floats(), st.floats(-3, 3), st.integers(-3, 3).map(float))
IDS = st.lists(NUMBER, max_size=6).map(tuple)
LOGPROBS = st.none() | st.builds(LogprobParams, num_top=NUMBER, prompt_start=st.none() | NUMBER)
SAMPLING = st.builds(
    SamplingParams,
    max_new_tokens=NUMBER,
    seed=NUMBER,
    temperature=REAL,
    top_p=REAL,
    top_k=NUMBER,
    min_p=REAL,
    stop_token_ids=IDS,
    ignore_eos=st.booleans(),
    min_new_tokens=NUMBER,
    repetition_penalty=REAL,
    frequency_penalty=REAL,
    presence_penalty=REAL,
    logit_bias=st.lists(st.tuples(NUMBER, REAL), max_size=4).map(tuple),
    logprobs=LOGPROBS,
)
SUBMIT = st.builds(
    Submit,
    request_id=st.text(max_size=8).map(RequestId),
    generation=NUMBER.map(Generation),
    prompt_ids=IDS,
    sampling=SAMPLING,
    generated_ids=IDS,
    deadline_s=st.none() | REAL,
    priority=NUMBER,
    cache_salt=st.text(st.characters(codec=None), max_size=8),
)


@given(submit=SUBMIT)
def test_no_submit_raises_and_a_refusal_is_one_sentence(submit: Submit) -> None:
    sentence = refusal(submit, LIMITS)
    if sentence is not None:
        assert sentence
        assert "\n" not in sentence


@given(submits=st.lists(SUBMIT, min_size=1, max_size=6))
def test_no_submit_stops_the_loop_or_hurts_another(submits: list[Submit]) -> None:
    harness = Harness(num_pages=32, context_length=100)
    good = harness.submit(make_submit("good-one", [1, 2], max_new_tokens=5, ignore_eos=True))
    for number, submit in enumerate(submits):
        harness.submit(msgspec.structs.replace(submit, request_id=RequestId(str(number))))
    for _ in range(400):
        if not harness.step() and all(attempt.terminals for attempt in harness.attempts.values()):
            break
        harness.now += 10.0
    assert good.output == harness.expected(good.submit)
    for attempt in harness.attempts.values():
        assert attempt.finished.reason.kind is not FinishKind.ABORT
