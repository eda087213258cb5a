"""Owns the two sockets of the cache events: PUB for everybody, ROUTER for who missed something.

Owns no event: bytes in, bytes out. Nothing here waits. A subscriber that reads too slowly misses
what its high-water mark does not hold, notices by the numbers and asks; questions beyond the mark
are dropped and asked again. Both sockets take the worker's keys.
"""

import contextlib

import zmq

from mizzen_worker.contracts.errors import ConfigError
from mizzen_worker.contracts.ids import PeerId
from mizzen_worker.ipc.curve import CurveServer, ServerKeys
from mizzen_worker.ipc.link import replay_address
from mizzen_worker.ipc.zmq_channel import bind

EVENT_HIGH_WATER_MARK = 4096
"""Messages that may wait for one subscriber."""
MAX_WAITING_ANSWERS = 4
"""Answers that may wait for one asker, and questions that may wait from it: each may be long."""
MAX_QUESTION_BYTES = 4096


class EventPublisher:
    """A worker's side. Owned by one loop; not thread safe."""

    def __init__(self, address: str, *, keys: ServerKeys | None = None) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._curve = CurveServer(self._context, keys) if keys is not None else None
        self._events = self._context.socket(zmq.PUB)
        self._events.sndhwm = EVENT_HIGH_WATER_MARK
        self._questions = self._context.socket(zmq.ROUTER)
        self._questions.sndhwm = self._questions.rcvhwm = MAX_WAITING_ANSWERS
        self._questions.setsockopt(zmq.MAXMSGSIZE, MAX_QUESTION_BYTES)
        try:
            for socket, place in (
                (self._events, address),
                (self._questions, replay_address(address)),
            ):
                socket.linger = 0
                socket.setsockopt(zmq.IPV6, 1)
                if self._curve is not None:
                    self._curve.protect(socket)
                bind(socket, place)
        except ConfigError:
            self.close()
            raise

    def publish(self, payload: bytes) -> None:
        """Give a message to every subscriber that has room for it."""
        self._events.send(payload, zmq.NOBLOCK)

    def question(self) -> tuple[PeerId, bytes] | None:
        """Take the next question; None when there is none."""
        try:
            frames = self._questions.recv_multipart(zmq.NOBLOCK)
        except zmq.Again:
            return None
        return PeerId(frames[0]), b"".join(frames[1:])

    def answer(self, peer: PeerId, payload: bytes) -> None:
        """Answer a question; one who left, or does not read, gets nothing."""
        with contextlib.suppress(zmq.ZMQError):
            self._questions.send_multipart([peer, payload], zmq.NOBLOCK)

    def close(self) -> None:
        """Unbind both. Idempotent."""
        self._events.close(linger=0)
        self._questions.close(linger=0)
        if self._curve is not None:
            self._curve.close()
            self._curve = None
        self._context.term()
