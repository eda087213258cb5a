"""Every way to end a request, in every state it can be in: once, cleanly, at nobody's cost."""

from collections.abc import Callable

import msgspec
import pytest
from tests.worker.scheduler.harness import OTHER_PEER, PEER, Attempt, Harness, make_submit

from mizzen_worker.contracts.drain import DrainMode
from mizzen_worker.contracts.ids import Generation
from mizzen_worker.contracts.messages import Control, ControlVerb, HandBackCause, Submit
from mizzen_worker.contracts.request import FinishKind
from mizzen_worker.contracts.schedule_policy import SchedulePolicy
from mizzen_worker.scheduler.req import ReqState

DEADLINE_S = 1000.0


def _subject(prompt: list[int] | range, **changes: object) -> Submit:
    """The request that is looked at: 40 tokens of output, by temperature."""
    wanted = {"max_new_tokens": 40, "ignore_eos": True, "temperature": 1.0, "seed": 7}
    return make_submit("x", prompt, deadline_s=DEADLINE_S, **{**wanted, **changes})


def _other(harness: Harness, name: str, prompt: list[int] | range, **changes: object) -> Attempt:
    wanted = {"max_new_tokens": 60, "ignore_eos": True}
    return harness.submit(make_submit(name, prompt, **{**wanted, **changes}), peer=OTHER_PEER)


def _new(delays: int | None) -> tuple[Harness, Attempt]:
    harness = Harness(delays=delays)
    return harness, harness.submit(_subject(range(20)))


def _waiting(delays: int | None) -> tuple[Harness, Attempt]:
    harness = Harness(max_slots=1, delays=delays)
    _other(harness, "blocks", [1, 2])
    attempt = harness.submit(_subject(range(20)))
    harness.steps(3)
    assert harness.live("x").state is ReqState.WAITING
    return harness, attempt


def _resuming(delays: int | None) -> tuple[Harness, Attempt]:
    harness = Harness(max_slots=1, delays=delays)
    _other(harness, "blocks", [1, 2])
    submit = _subject(range(20))
    attempt = harness.submit(
        msgspec.structs.replace(submit, generated_ids=tuple(harness.expected(submit)[:9]))
    )
    harness.steps(3)
    assert (harness.live("x").state, harness.live("x").num_output) == (ReqState.WAITING, 9)
    return harness, attempt


def _following(delays: int | None) -> tuple[Harness, Attempt]:
    harness = Harness(max_chunk_tokens=16, delays=delays)
    _other(harness, "leads", range(100))
    attempt = harness.submit(_subject([*range(90), 7]))
    harness.steps(3)
    assert harness.live("x").memo.leader is harness.live("leads")
    return harness, attempt


def _chunking(delays: int | None) -> tuple[Harness, Attempt]:
    harness = Harness(max_chunk_tokens=16, delays=delays)
    attempt = harness.submit(_subject(range(100)))
    _other(harness, "waits", [*range(90), 7])
    harness.steps(3)
    assert harness.live("x").state is ReqState.PREFILLING
    return harness, attempt


def _first_token(delays: int | None) -> tuple[Harness, Attempt]:
    harness = Harness(max_chunk_tokens=16, delays=delays)
    _other(harness, "decodes", [1, 2])
    harness.steps(3)
    attempt = harness.submit(_subject(range(16)))
    harness.steps(1)
    assert harness.live("x").state is ReqState.DECODING
    return harness, attempt


def _decoding(delays: int | None) -> tuple[Harness, Attempt]:
    harness = Harness(delays=delays)
    _other(harness, "decodes", [1, 2])
    attempt = harness.submit(_subject(range(20)))
    harness.steps(7)
    assert harness.live("x").state is ReqState.DECODING
    return harness, attempt


def _preempted(delays: int | None) -> tuple[Harness, Attempt]:
    harness = Harness(max_slots=1, policy=SchedulePolicy.PRIORITY, delays=delays)
    attempt = harness.submit(_subject(range(20)))
    harness.steps(7)
    _other(harness, "urgent", [1, 2], priority=1)
    harness.steps(3)
    assert harness.loop.counters.preemptions == 1
    assert harness.live("x").state is ReqState.WAITING
    assert harness.live("x").num_output > 3
    return harness, attempt


def _retracted(delays: int | None) -> tuple[Harness, Attempt]:
    harness = Harness(page_size=1, num_pages=110, max_chunk_tokens=32, delays=delays)
    for number in range(4):
        _other(harness, f"short{number}", [number], max_new_tokens=2)
    harness.run()
    _other(harness, "grows", range(10), max_new_tokens=85)
    attempt = harness.submit(_subject(range(30, 60)))
    for _ in range(100):
        harness.step()
        if harness.loop.counters.retractions:
            break
    assert harness.live("x").state is ReqState.WAITING
    assert harness.live("x").num_output > 3
    return harness, attempt


STATES: tuple[Callable[[int | None], tuple[Harness, Attempt]], ...] = (
    _new,
    _waiting,
    _resuming,
    _following,
    _chunking,
    _first_token,
    _decoding,
    _preempted,
    _retracted,
)
in_every_state = pytest.mark.parametrize(
    ("reach", "delays"),
    [(reach, delays) for delays in (None, 5) for reach in STATES],
    ids=[
        f"{reach.__name__.strip('_')}-{word}"
        for word in ("settled", "in_flight")
        for reach in STATES
    ],
)


def _serve_the_others(harness: Harness) -> None:
    """Whatever became of the subject, the others end as if it had never been there."""
    harness.run()
    for attempt in harness.attempts.values():
        if attempt.submit.request_id != "x":
            assert attempt.output == harness.expected(attempt.submit)
    harness.assert_idle_and_whole()


def _assert_prefix(harness: Harness, attempt: Attempt) -> None:
    expected = harness.expected(attempt.submit)
    assert attempt.output == expected[: len(attempt.output)]


@in_every_state
def test_left_alone_it_ends_with_its_tokens(reach, delays) -> None:
    harness, attempt = reach(delays)
    _serve_the_others(harness)
    assert attempt.finished.reason.kind is FinishKind.LENGTH
    assert attempt.output == harness.expected(attempt.submit)


@in_every_state
def test_abort(reach, delays) -> None:
    harness, attempt = reach(delays)
    harness.abort(attempt)
    harness.abort(attempt)
    harness.step()
    assert attempt.finished.reason.kind is FinishKind.ABORT
    assert attempt.finished.usage.completion_tokens == len(attempt.output)
    _serve_the_others(harness)
    _assert_prefix(harness, attempt)


@in_every_state
def test_deadline(reach, delays) -> None:
    harness, attempt = reach(delays)
    if reach is _new:
        harness.step()
    harness.now = DEADLINE_S
    harness.step()
    assert attempt.finished.reason.kind is FinishKind.DEADLINE
    _serve_the_others(harness)
    _assert_prefix(harness, attempt)


@in_every_state
def test_disconnect(reach, delays) -> None:
    harness, attempt = reach(delays)
    harness.endpoint.newly_lost.append(PEER)
    harness.step()
    if reach is _new:  # Its peer was lost before it was read, and is taken for a new one.
        harness.abort(attempt)
        harness.step()
    else:
        assert attempt.terminals == []
    assert harness.state.roster.get("x") is None
    _serve_the_others(harness)


def _go_on_elsewhere(attempt: Attempt) -> None:
    """Continue on another worker from what was streamed: the whole is what it would have been."""
    other = Harness(page_size=16, max_chunk_tokens=16)
    submit = msgspec.structs.replace(
        attempt.submit,
        generation=Generation(attempt.submit.generation + 1),
        generated_ids=tuple(attempt.output),
    )
    again = other.submit(submit)
    other.run()
    assert again.output == other.expected(attempt.submit)
    assert again.finished.usage.completion_tokens == len(again.output)
    other.assert_idle_and_whole()


@in_every_state
def test_drain_by_handing_back(reach, delays) -> None:
    harness, attempt = reach(delays)
    harness.control(Control(control_id=1, verb=ControlVerb.DRAIN))
    harness.step()
    (terminal,) = attempt.terminals
    assert terminal.cause is HandBackCause.DRAINING
    assert harness.loop.is_drained
    harness.run()
    harness.assert_idle_and_whole()
    _assert_prefix(harness, attempt)
    _go_on_elsewhere(attempt)


@in_every_state
def test_drain_by_finishing(reach, delays) -> None:
    harness, attempt = reach(delays)
    if reach is _new:
        harness.step()
    arguments = {"mode": DrainMode.FINISH.value}
    harness.control(Control(control_id=1, verb=ControlVerb.DRAIN, arguments=arguments))
    _serve_the_others(harness)
    assert harness.loop.is_drained
    assert attempt.output == harness.expected(attempt.submit)


@in_every_state
def test_the_deadline_of_a_drain(reach, delays) -> None:
    harness, attempt = reach(delays)
    if reach is _new:
        harness.step()
    arguments = {"mode": DrainMode.FINISH.value, "deadline_s": "5"}
    harness.control(Control(control_id=1, verb=ControlVerb.DRAIN, arguments=arguments))
    harness.step()
    harness.now += 5.0
    harness.step()
    (terminal,) = attempt.terminals
    assert terminal.cause is HandBackCause.DRAINING
    assert harness.loop.is_drained
    harness.run()
    harness.assert_idle_and_whole()
    _go_on_elsewhere(attempt)


@in_every_state
def test_a_later_attempt_takes_over(reach, delays) -> None:
    harness, attempt = reach(delays)
    harness.step()
    num_heard = len(attempt.output)
    again = harness.submit(
        msgspec.structs.replace(
            attempt.submit,
            generation=Generation(1),
            generated_ids=tuple(attempt.output[:num_heard]),
        )
    )
    harness.step()
    assert attempt.finished.reason.kind is FinishKind.ABORT
    _serve_the_others(harness)
    assert again.output == harness.expected(attempt.submit)


@in_every_state
def test_a_restart_sends_everybody_elsewhere(reach, delays) -> None:
    harness, attempt = reach(delays)
    if reach is _new:
        harness.step()
    harness.loop.announce_restart()
    harness._read()
    (terminal,) = attempt.terminals
    assert terminal.cause is HandBackCause.RESTARTING
    _go_on_elsewhere(attempt)


@in_every_state
def test_a_flush_takes_nothing_from_anybody(reach, delays) -> None:
    harness, attempt = reach(delays)
    for _ in range(5):
        harness.control(Control(control_id=1, verb=ControlVerb.FLUSH_CACHE))
        harness.step()
    _serve_the_others(harness)
    assert attempt.output == harness.expected(attempt.submit)
