"""What a worker keeps per peer is bounded whatever the peer does."""

from mizzen_worker.contracts.ids import Generation, InstanceId, PeerId, RequestId, TokenId
from mizzen_worker.contracts.messages import (
    WIRE_VERSION,
    Attach,
    Heartbeat,
    TokenEvent,
    TokenEvents,
)
from mizzen_worker.ipc.peers import PeerBook

PEER = PeerId(b"p")


def test_a_peer_that_reads_nothing_is_lost_once() -> None:
    book = PeerBook(max_ready=3)
    attach = Attach(wire_version=WIRE_VERSION, instance_id=InstanceId("t"), credit=1)
    assert book.receive(PEER, attach, 0.0) is None
    for _ in range(3):
        book.put(PEER, Heartbeat())
    assert book.lost(0.0) == ()
    book.put(PEER, Heartbeat())
    assert book.lost(0.0) == (PEER,)
    assert book.lost(0.0) == ()
    assert book.outbox(PEER) is None
    book.put(PEER, Heartbeat())
    refused = book.receive(PEER, Heartbeat(), 0.0)
    assert refused is not None
    assert refused.message == "attach first"


def test_a_peer_that_never_returns_credit_is_lost_too() -> None:
    book = PeerBook(max_ready=3)
    attach = Attach(wire_version=WIRE_VERSION, instance_id=InstanceId("t"), credit=0)
    assert book.receive(PEER, attach, 0.0) is None
    for number in range(4):
        assert book.lost(0.0) == ()
        assert book.receive(PEER, Heartbeat(credit=0), 0.0) is None
        event = TokenEvent(RequestId(f"r{number}"), Generation(0), 0, (TokenId(1),))
        book.put(PEER, TokenEvents(events=(event,)))
    assert book.lost(0.0) == (PEER,)


def test_a_process_that_attaches_again_ends_its_older_connection() -> None:
    book = PeerBook()
    attach = Attach(wire_version=WIRE_VERSION, instance_id=InstanceId("t"), credit=1)
    other = Attach(wire_version=WIRE_VERSION, instance_id=InstanceId("u"), credit=1)
    assert book.receive(PEER, attach, 0.0) is None
    assert book.receive(PeerId(b"u"), other, 0.0) is None
    assert book.receive(PeerId(b"q"), attach, 1.0) is None
    assert book.lost(1.0) == (PEER,)
    assert set(book.peers()) == {PeerId(b"u"), PeerId(b"q")}


def test_a_long_step_of_the_worker_is_no_silence_of_its_peers() -> None:
    book = PeerBook(heartbeat_limit_s=10.0)
    attach = Attach(wire_version=WIRE_VERSION, instance_id=InstanceId("t"), credit=1)
    assert book.receive(PEER, attach, 0.0) is None
    assert book.lost(0.0) == ()
    assert book.lost(30.0) == ()  # Nobody read for 30 s; what the peer said waits in the socket.
    for second in range(31, 41):
        assert book.lost(float(second)) == ()
    assert book.lost(41.0) == (PEER,)
