"""Attach, heartbeats and control verbs."""

from typing import Any

import msgspec
import pytest
from tests.worker.scheduler.harness import IDENTITY, OTHER_PEER, PEER, Harness, make_submit

from mizzen_worker.contracts.drain import DrainMode
from mizzen_worker.contracts.messages import (
    Control,
    ControlVerb,
    HandBackCause,
    Heartbeat,
    Hello,
    Reply,
)
from mizzen_worker.contracts.request import FinishKind
from mizzen_worker.contracts.schedule_policy import SchedulePolicy
from mizzen_worker.scheduler.control import DrainOrder


def _control(harness: Harness, verb: ControlVerb, **arguments: str) -> Reply:
    harness.control(Control(control_id=7, verb=verb, arguments=arguments))
    harness.step()
    replies = [message for _, message in harness.others if isinstance(message, Reply)]
    assert replies[-1].control_id == 7
    return replies[-1]


def test_attach_is_answered_by_hello() -> None:
    harness = Harness(page_size=4, num_pages=10, max_slots=3, max_queued=5, context_length=32)
    harness.step()
    peer, hello = harness.others[0]
    assert isinstance(hello, Hello)
    assert (peer, hello.identity) == (PEER, IDENTITY)
    assert hello.capacity.kv_tokens == 40
    assert hello.capacity.context_length == 32
    assert (hello.capacity.max_running_requests, hello.capacity.max_queued_requests) == (3, 5)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"top_k": 2**63}, "top_k: 9223372036854775808; give a number from 0 to"),
        ({"top_k": -1}, "top_k: -1"),
        ({"max_new_tokens": 2**63}, "max_new_tokens: 9223372036854775808"),
        ({"min_new_tokens": 2**64 - 1}, "min_new_tokens: 18446744073709551615"),
        ({"temperature": float("nan")}, "temperature: nan"),
        ({"temperature": float("inf")}, "temperature: inf"),
        ({"temperature": 1e308}, "temperature: 1e+308"),
        ({"temperature": -1.0}, "temperature: -1.0"),
        ({"top_p": float("nan")}, "top_p: nan"),
        ({"min_p": 1.5}, "min_p: 1.5"),
        ({"stop_token_ids": (61,)}, "stop_token_ids: token 61 is outside"),
        ({"stop_token_ids": (1,) * 257}, "stop_token_ids: 257 are given; give at most 256"),
    ],
)
def test_a_wrong_number_ends_its_request_alone(wrong: dict[str, Any], words: str) -> None:
    harness = Harness()
    bad = harness.submit(make_submit("bad", [1, 2], **wrong))
    good = harness.submit(make_submit("good", [1, 2], ignore_eos=True, max_new_tokens=5))
    for _ in range(8):
        harness.step()
    assert bad.finished.reason.kind is FinishKind.ERROR
    assert words in str(bad.finished.reason.message)
    assert good.finished.reason.kind is FinishKind.LENGTH


@pytest.mark.parametrize("field", ["prompt_ids", "generated_ids"])
@pytest.mark.parametrize("token", [-1, 61, 2**64 - 1])
def test_a_token_outside_the_vocabulary_ends_its_request_alone(field: str, token: int) -> None:
    harness = Harness()
    submit = msgspec.structs.replace(make_submit("bad", [1, 2]), **{field: (3, token)})
    bad = harness.submit(submit)
    harness.step()
    assert f"{field}: token {token} is outside" in str(bad.finished.reason.message)


@pytest.mark.parametrize("deadline_s", [float("nan"), float("inf"), -1.0])
def test_a_wrong_deadline_ends_its_request_alone(deadline_s: float) -> None:
    harness = Harness()
    submit = msgspec.structs.replace(make_submit("bad", [1, 2]), deadline_s=deadline_s)
    bad = harness.submit(submit)
    harness.step()
    assert "deadline_s" in str(bad.finished.reason.message)


def test_heartbeats_carry_the_load_once_a_second_to_every_peer() -> None:
    harness = Harness(page_size=4)
    harness.submit(make_submit("a", range(9), ignore_eos=True, max_new_tokens=500))
    for tenth in range(25):
        harness.now = tenth / 10
        harness.step()
    beats = [(peer, m.load) for peer, m in harness.others if isinstance(m, Heartbeat)]
    assert [peer for peer, _ in beats] == [PEER, OTHER_PEER] * 3
    load = beats[-1][1]
    assert (load.running_requests, load.queued_requests) == (1, 0)
    assert load.kv_tokens_used >= 9 + 20


def test_the_load_tells_tokens_that_wait_for_their_prefill() -> None:
    harness = Harness(page_size=4, max_slots=1, max_chunk_tokens=8)
    harness.submit(make_submit("runs", range(30)))
    harness.submit(make_submit("waits", range(20)))
    harness.step()
    assert harness.state.load(is_draining=False).queued_tokens == 22 + 20
    harness.run()
    assert harness.state.load(is_draining=False).queued_tokens == 0


def test_an_idle_loop_waits_but_never_past_the_next_heartbeat() -> None:
    harness = Harness()
    harness.step()
    harness.now = 0.9
    harness.step()
    assert harness.endpoint.waits[-1] == pytest.approx(0.1)
    harness.submit(make_submit("a", [1], ignore_eos=True))
    harness.step()
    harness.step()
    assert harness.endpoint.waits[-1] == 0.0


def test_the_first_step_does_not_wait_until_a_whole_crowd_is_read() -> None:
    harness = Harness(max_slots=8, max_chunk_tokens=64)
    attempts = [harness.submit(make_submit(f"r{index}", [index % 7] * 9)) for index in range(200)]
    harness.step()
    num_read = len(harness.state.roster)
    assert len(harness.state.roster.running) == 7  # 64 tokens.
    assert 50 < num_read < 100
    harness.step()
    assert len(harness.state.roster) == 200
    harness.run()
    assert all(len(attempt.terminals) == 1 for attempt in attempts)


def test_flush_frees_what_no_request_uses() -> None:
    harness = Harness(page_size=4)
    harness.submit(make_submit("a", range(40), ignore_eos=True))
    harness.run()
    reply = _control(harness, ControlVerb.FLUSH_CACHE)
    assert reply.is_ok
    assert reply.facts == {"freed_kv_tokens": 56, "kept_kv_tokens": 0}
    again = harness.submit(make_submit("b", range(40)))
    harness.run()
    assert again.finished.usage.cached_tokens == 0


@pytest.mark.parametrize(
    ("arguments", "ended"),
    [
        ({"request_id": "a"}, {"a"}),
        ({"request_id": "order-66"}, {"b", "c"}),
        ({"request_id": "nobody"}, set()),
        ({}, {"a", "b", "c"}),
    ],
)
def test_abort_ends_requests_by_either_name_or_all(
    arguments: dict[str, str], ended: set[str]
) -> None:
    harness = Harness()
    log_ids = {"a": "", "b": "order-66", "c": "order-66"}
    attempts = {
        name: harness.submit(
            msgspec.structs.replace(
                make_submit(name, [1, 2], ignore_eos=True, max_new_tokens=30), log_id=log_id
            )
        )
        for name, log_id in log_ids.items()
    }
    harness.step()
    assert _control(harness, ControlVerb.ABORT, **arguments).facts == {"ended": len(ended)}
    harness.run()
    kinds = {name: attempt.finished.reason.kind for name, attempt in attempts.items()}
    assert {name for name, kind in kinds.items() if kind is FinishKind.ABORT} == ended


def test_describe_tells_identity_and_counters() -> None:
    harness = Harness()
    harness.submit(make_submit("a", [1, 2], ignore_eos=True, max_new_tokens=5))
    harness.run()
    facts = _control(harness, ControlVerb.DESCRIBE).facts
    assert facts["fingerprint"] == IDENTITY.fingerprint
    assert facts["generated_tokens"] == 5
    assert facts["finished_requests.length"] == 1


def test_flush_keeps_what_a_request_uses() -> None:
    harness = Harness(page_size=4)
    attempt = harness.submit(make_submit("a", range(40), ignore_eos=True))
    harness.step()
    reply = _control(harness, ControlVerb.FLUSH_CACHE)
    assert reply.facts == {"freed_kv_tokens": 0, "kept_kv_tokens": 40}
    harness.run()
    assert attempt.output == harness.expected(attempt.submit)


def test_describe_tells_sizes_queue_and_predictions() -> None:
    harness = Harness(
        page_size=4, num_pages=64, max_slots=1, policy=SchedulePolicy.PRIORITY, ageing_s=12.5
    )
    for name, priority in (("a", 3), ("b", 3), ("c", -1), ("d", 0)):
        harness.submit(make_submit(name, [1, 2, 3], priority=priority, ignore_eos=True))
    harness.step()
    harness.now = 7.25
    facts = _control(harness, ControlVerb.DESCRIBE).facts
    wanted = {
        "schedule_policy": "priority",
        "queue_ageing_s": 12.5,
        "priority_preemption": True,
        "max_running_requests": 1,
        "max_chunk_tokens": 64,
        "decode_patience_s": 0.0,
        "page_size": 4,
        "context_length": 4096,
        "running_requests": 1,
        "queued_requests": 3,
        "live_requests": 4,
        "queued_requests.3": 1,
        "queued_requests.0": 1,
        "queued_requests.-1": 1,
        "queued_tokens": 9,
        "oldest_wait_s": 7.25,
        "predicted_output_tokens": 256,
        "kv_tokens_total": 256,
        "preemptions": 0,
    }
    assert {name: facts.get(name) for name in wanted} == wanted
    assert 1 <= facts["predicted_wait_s"] <= 60


def test_drain_by_handing_back_ends_everything_at_once() -> None:
    harness = Harness(max_slots=1)
    attempts = [harness.submit(make_submit(f"r{i}", [i], ignore_eos=True)) for i in range(3)]
    harness.step()
    reply = _control(harness, ControlVerb.DRAIN, mode="handback")
    assert reply.facts["live_requests"] == 3
    assert {a.terminals[0].cause for a in attempts} == {HandBackCause.DRAINING}
    assert attempts[0].output == harness.expected(attempts[0].submit)[: len(attempts[0].output)]
    assert harness.loop.is_drained
    late = harness.submit(make_submit("late", [1]))
    harness.step()
    assert late.terminals[0].cause is HandBackCause.DRAINING
    harness.assert_idle_and_whole()


def test_drain_by_finishing_serves_what_is_live_and_refuses_what_comes() -> None:
    harness = Harness(max_slots=1)
    live = [harness.submit(make_submit(f"r{i}", [i])) for i in range(3)]
    harness.step()
    _control(harness, ControlVerb.DRAIN, mode="finish")
    late = harness.submit(make_submit("late", [1]))
    assert not harness.loop.is_drained
    harness.run()
    assert harness.loop.is_drained
    assert all(a.output == harness.expected(a.submit) for a in live)
    assert late.terminals[0].cause is HandBackCause.DRAINING


def test_a_drain_deadline_hands_back_what_is_left() -> None:
    harness = Harness()
    attempt = harness.submit(make_submit("a", [1], ignore_eos=True, max_new_tokens=900))
    harness.step()
    _control(harness, ControlVerb.DRAIN, mode="finish", deadline_s="30")
    harness.now = 29.0
    harness.step()
    assert not attempt.terminals
    harness.now = 30.0
    harness.step()
    assert attempt.terminals[0].cause is HandBackCause.DRAINING
    assert harness.loop.is_drained


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"mode": "later"}, "mode: 'later' is not known; use handback or finish"),
        ({"deadline_s": "-1"}, "deadline_s: '-1'"),
        ({"deadline_s": "soon"}, "deadline_s: 'soon'"),
        ({"deadline_s": "nan"}, "deadline_s: 'nan'"),
        ({"when": "now"}, "unknown argument 'when'"),
    ],
)
def test_a_wrong_drain_is_refused_and_changes_nothing(arguments, words: str) -> None:
    harness = Harness()
    reply = _control(harness, ControlVerb.DRAIN, **arguments)
    assert not reply.is_ok
    assert words in reply.message
    attempt = harness.submit(make_submit("a", [1, 2]))
    harness.run()
    assert attempt.finished.reason.kind is not FinishKind.ERROR


def test_a_drain_ordered_from_inside_has_sent_its_hand_backs_when_it_returns() -> None:
    harness = Harness()
    attempt = harness.submit(make_submit("a", [1], ignore_eos=True, max_new_tokens=900))
    harness.step()
    harness.loop.start_drain(DrainOrder(mode=DrainMode.HANDBACK, deadline=None))
    harness._read()
    assert attempt.terminals[0].cause is HandBackCause.DRAINING
    assert harness.loop.is_drained
