"""The pure decisions as tables: admission, chunks, prediction, settling, moves, order."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.worker.scheduler.harness import PEER, Harness, make_submit

from mizzen_worker.contracts.errors import ConfigError, InvariantError
from mizzen_worker.contracts.request import FinishKind
from mizzen_worker.contracts.schedule_policy import SchedulePolicy
from mizzen_worker.scheduler.admission import (
    Admitted,
    Budget,
    Candidate,
    Refused,
    chunk_length,
    decide,
)
from mizzen_worker.scheduler.output_prediction import OutputPrediction
from mizzen_worker.scheduler.policies import STANDING_KEYS
from mizzen_worker.scheduler.req import Req, ReqState
from mizzen_worker.scheduler.settle import finish_after_last_token
from mizzen_worker.scheduler.wait_prediction import WaitPrediction
from mizzen_worker.scheduler.waiting_queue import WaitingQueue


def _req(order: int = 1, output: list[int] | None = None, **sampling: object) -> Req:
    submit = make_submit("r", [5, 6], generated=output, **sampling)
    return Req(submit, peer=PEER, order=order, context_length=100)


def _budget(**changes: object) -> Budget:
    sizes = {
        "page_size": 4,
        "slots": 1,
        "chunk_tokens": 64,
        "pages_now": 10,
        "pages_reserved": 0,
        "is_idle": False,
    }
    return Budget(**{**sizes, **changes})


def _candidate(**changes: int) -> Candidate:
    needs = {"num_tokens": 20, "num_cached": 0, "num_newly_protected": 0, "num_predicted": 8}
    return Candidate(**{**needs, **changes})


@pytest.mark.parametrize(
    ("budget", "candidate", "decision"),
    [
        (_budget(), _candidate(), Admitted(num_new=20, num_new_pages=5)),
        (_budget(), _candidate(num_tokens=19), Admitted(num_new=19, num_new_pages=5)),
        (_budget(slots=0), _candidate(), Refused.NO_SLOT),
        (_budget(chunk_tokens=11), _candidate(), Admitted(num_new=8, num_new_pages=2)),
        (_budget(chunk_tokens=3), _candidate(), Refused.NO_CHUNK),
        (_budget(pages_now=7), _candidate(), Admitted(num_new=20, num_new_pages=5)),
        (_budget(pages_now=6), _candidate(), Refused.NO_PAGES_LATER),
        (_budget(pages_reserved=4), _candidate(), Refused.NO_PAGES_LATER),
        (_budget(pages_now=6, is_idle=True), _candidate(), Admitted(num_new=20, num_new_pages=5)),
        (_budget(pages_now=2, is_idle=True), _candidate(), Admitted(num_new=8, num_new_pages=2)),
        (_budget(pages_now=0, is_idle=True), _candidate(), Refused.NO_PAGES),
        (_budget(), _candidate(num_cached=16), Admitted(num_new=4, num_new_pages=1)),
        (
            _budget(pages_now=3),
            _candidate(num_cached=16),
            Admitted(num_new=4, num_new_pages=1),
        ),
        # What is cached but unlocked counts as available until the candidate locks it.
        (
            _budget(pages_now=6),
            _candidate(num_cached=16, num_newly_protected=4),
            Refused.NO_PAGES_LATER,
        ),
    ],
)
def test_admission(budget: Budget, candidate: Candidate, decision: Admitted | Refused) -> None:
    assert decide(budget, candidate) == decision


@pytest.mark.parametrize(
    ("num_remaining", "max_tokens", "num_new"),
    [(10, 10, 10), (10, 9, 8), (10, 3, 0), (3, 3, 3), (10, 0, 0), (10, -5, 0)],
)
def test_chunks_end_on_a_page_or_at_the_end(
    num_remaining: int, max_tokens: int, num_new: int
) -> None:
    assert chunk_length(num_remaining=num_remaining, max_tokens=max_tokens, page_size=4) == num_new


def test_prediction_learns_and_forgets() -> None:
    prediction = OutputPrediction()
    assert prediction.remaining(num_output=0, max_remaining=1000) == 256
    assert prediction.remaining(num_output=0, max_remaining=20) == 20
    for length in (10, 20, 30, 40):
        prediction.observe(length)
    assert prediction.remaining(num_output=0, max_remaining=1000) == 40
    assert prediction.remaining(num_output=15, max_remaining=1000) == 25
    assert prediction.remaining(num_output=40, max_remaining=1000) == 256
    for _ in range(256):
        prediction.observe(5)
    assert prediction.remaining(num_output=0, max_remaining=1000) == 5
    assert prediction.remaining(num_output=7, max_remaining=100) == 100


@given(
    lengths=st.lists(st.integers(1, 40), max_size=300),
    asked=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 300)), min_size=1, max_size=8),
)
def test_prediction_of_many_is_that_of_each(lengths, asked) -> None:
    prediction = OutputPrediction()
    for length in lengths:
        prediction.observe(length)
    num_output, max_remaining = np.array(asked, dtype=np.int64).T
    assert prediction.remaining_of(num_output, max_remaining).tolist() == [
        prediction.remaining(num_output=done, max_remaining=most) for done, most in asked
    ]


def test_the_wait_is_the_line_over_the_pace_of_admissions() -> None:
    prediction = WaitPrediction()
    assert prediction.seconds(num_ahead=500, now=9.0) == 1.0
    for second in range(10):
        prediction.observe(10.0 + second, num_waiting=5)
    assert prediction.seconds(num_ahead=20, now=20.0) == 20.0
    assert prediction.seconds(num_ahead=20, now=30.0) == 40.0
    assert prediction.seconds(num_ahead=2000, now=20.0) == 60.0
    prediction.observe(21.0, num_waiting=0)
    assert prediction.seconds(num_ahead=2000, now=9000.0) == 1.0


@pytest.mark.parametrize(
    ("output", "sampling", "kind", "matched"),
    [
        ([7], {}, None, None),
        ([7, 0], {}, FinishKind.STOP, 0),
        ([7, 0], {"ignore_eos": True}, None, None),
        ([7, 9], {"ignore_eos": True, "stop_token_ids": (9,)}, FinishKind.STOP, 9),
        ([7, 0], {"min_new_tokens": 2}, None, None),
        ([7, 7, 0], {"min_new_tokens": 2}, FinishKind.STOP, 0),
        ([7] * 4, {"max_new_tokens": 4}, FinishKind.LENGTH, None),
        ([7, 7, 7, 0], {"max_new_tokens": 4}, FinishKind.STOP, 0),
        ([7] * 98, {"max_new_tokens": 500}, FinishKind.LENGTH, None),
    ],
)
def test_settling(output, sampling, kind, matched) -> None:
    req = _req(output=output, **sampling)
    reason = finish_after_last_token(req, eos_token_ids=(0,))
    assert (reason and reason.kind, reason and reason.matched) == (kind, matched)


@pytest.mark.parametrize(
    "moves",
    [
        [ReqState.PREFILLING, ReqState.DECODING, ReqState.FINISHED],
        [ReqState.PREFILLING, ReqState.WAITING, ReqState.PREFILLING],
        [ReqState.HANDED_BACK],
    ],
)
def test_legal_moves(moves: list[ReqState]) -> None:
    req = _req()
    for state in moves:
        req.move(state)
        assert req.state is state


@pytest.mark.parametrize(
    "moves",
    [
        [ReqState.DECODING],
        [ReqState.FINISHED, ReqState.FINISHED],
        [ReqState.FINISHED, ReqState.HANDED_BACK],
        [ReqState.PREFILLING, ReqState.PREFILLING],
    ],
)
def test_illegal_moves_change_nothing(moves: list[ReqState]) -> None:
    req = _req()
    for state in moves[:-1]:
        req.move(state)
    before = req.state
    with pytest.raises(InvariantError, match="is no move"):
        req.move(moves[-1])
    assert req.state is before


def test_the_line_is_in_order_of_age_and_a_returning_request_keeps_its_place() -> None:
    queue = WaitingQueue(STANDING_KEYS[SchedulePolicy.FCFS])
    reqs = [_req(order=order) for order in range(5)]
    for req in (reqs[3], reqs[1], reqs[4]):
        queue.add(req)
    queue.add(reqs[2])
    assert [req.order for req in queue] == [1, 2, 3, 4]
    queue.remove(reqs[2])
    assert queue.front(1) == [reqs[1]]
    with pytest.raises(InvariantError, match="not in the waiting queue"):
        queue.remove(reqs[0])


def test_settings_that_cannot_make_progress_are_refused() -> None:
    with pytest.raises(ConfigError, match="max_queued: 0"):
        Harness(max_queued=0)
