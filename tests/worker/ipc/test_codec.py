"""Bytes are a message of the union or one ``WireError``: fuzzed, and with pickles that act."""

import os
import pickle

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mizzen_worker.contracts.errors import WireError
from mizzen_worker.contracts.ids import Generation, InstanceId, RequestId, TokenId
from mizzen_worker.contracts.messages import (
    Abort,
    Attach,
    Control,
    ControlVerb,
    Finished,
    HandBack,
    HandBackCause,
    Heartbeat,
    Load,
    Reply,
    Submit,
    TokenEvent,
    TokenEvents,
)
from mizzen_worker.contracts.request import FinishKind, FinishReason, SamplingParams, Usage
from mizzen_worker.ipc.codec import Codec, to_tokenizer_codec, to_worker_codec

R, G = RequestId("r"), Generation(0)
TO_WORKER = [
    Attach(wire_version=1, instance_id=InstanceId("i"), credit=5),
    Submit(
        request_id=R,
        generation=G,
        prompt_ids=(TokenId(1), TokenId(2)),
        sampling=SamplingParams(max_new_tokens=3, seed=2**63 - 1),
    ),
    Abort(request_id=R, generation=G),
    Control(control_id=1, verb=ControlVerb.DRAIN, arguments={"mode": "finish"}),
    Heartbeat(credit=3),
]
TO_TOKENIZER = [
    TokenEvents(events=(TokenEvent(R, G, 0, (TokenId(7),)),)),
    Finished(
        request_id=R,
        generation=G,
        reason=FinishReason(kind=FinishKind.STOP, matched=TokenId(2)),
        usage=Usage(prompt_tokens=1, completion_tokens=2, cached_tokens=0),
    ),
    HandBack(request_id=R, generation=G, cause=HandBackCause.QUEUE_FULL),
    Reply(control_id=1, is_ok=True, message="done"),
    Heartbeat(
        load=Load(running_requests=1, queued_requests=2, kv_tokens_used=3, is_draining=False)
    ),
]


@pytest.mark.parametrize("message", TO_WORKER)
def test_messages_to_workers_come_back_equal(message: object) -> None:
    codec = to_worker_codec()
    assert codec.decode(codec.encode(message)) == message


@pytest.mark.parametrize("message", TO_TOKENIZER)
def test_messages_to_tokenizers_come_back_equal(message: object) -> None:
    codec = to_tokenizer_codec()
    assert codec.decode(codec.encode(message)) == message


@given(st.binary(max_size=400))
def test_random_bytes_are_a_message_or_a_wire_error(payload: bytes) -> None:
    for codec in (to_worker_codec(), to_tokenizer_codec()):
        try:
            codec.decode(payload)
        except WireError:
            continue


@given(st.sampled_from(TO_WORKER), st.data())
def test_damaged_messages_are_a_message_or_a_wire_error(
    message: object, data: st.DataObject
) -> None:
    codec = to_worker_codec()
    payload = bytearray(codec.encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        payload[data.draw(st.integers(0, len(payload) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(payload)))
    for damaged in (bytes(payload), bytes(payload[:cut]), bytes(payload) + b"\0"):
        try:
            codec.decode(damaged)
        except WireError:
            continue


class _Acts:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, ("pickle-was-loaded",)


def test_pickle_is_refused_and_never_run(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.chdir(tmp_path)  # type: ignore[arg-type]
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        with pytest.raises(WireError):
            to_worker_codec().decode(pickle.dumps(_Acts(), protocol=protocol))
    assert os.listdir() == []


@pytest.mark.parametrize(
    "payload",
    [
        msgspec.msgpack.encode({"type": "hello"}),
        msgspec.msgpack.encode({"type": "submit", "request_id": 5}),
        msgspec.msgpack.encode({"type": "abort", "request_id": "r"}),
        msgspec.msgpack.encode({"type": "heartbeat", "credit": "x"}),
        msgspec.msgpack.encode([1, 2]),
        b"",
    ],
    ids=["other union", "wrong type", "missing field", "wrong value", "list", "nothing"],
)
def test_messages_of_another_kind_or_shape_are_refused(payload: bytes) -> None:
    with pytest.raises(WireError, match="to worker"):
        to_worker_codec().decode(payload)


def test_length_is_bounded_both_ways() -> None:
    codec: Codec[object] = Codec(dict[str, str], name="small", max_message_bytes=20)
    with pytest.raises(WireError, match="limit of 20"):
        codec.encode({"key": "x" * 30})
    with pytest.raises(WireError, match="limit of 20"):
        codec.decode(b"\0" * 21)
