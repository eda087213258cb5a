"""Owns the worker's ROUTER; owns no message meaning (the loop has it) and no keys' files.

Every queue is bounded: ZMQ's high-water marks on both sides, and above them the credit of each
peer. Sending never blocks: what the socket does not take stays in that peer's outbox and is tried
again at the next ``receive``.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from urllib.parse import urlsplit

import zmq

from mizzen_worker.contracts.errors import ConfigError, WireError
from mizzen_worker.contracts.ids import PeerId
from mizzen_worker.contracts.messages import Heartbeat, ToTokenizer, ToWorker
from mizzen_worker.ipc.codec import MAX_MESSAGE_BYTES, to_tokenizer_codec, to_worker_codec
from mizzen_worker.ipc.curve import CurveServer, ServerKeys
from mizzen_worker.ipc.peers import PeerBook, refusal

logger = logging.getLogger(__name__)

HIGH_WATER_MARK = 4096
"""Messages ZMQ queues per connection and direction."""


class ZmqEndpoint:
    """A worker's side; implements ``WorkerEndpoint``. Owned by one loop.

    Only ``beat_for_loop`` may be called by another thread. Invariant: book and socket are used with
    the lock held; ZMQ lets a socket pass from thread to thread that way.
    """

    def __init__(
        self, address: str, *, clock: Callable[[], float], keys: ServerKeys | None = None
    ) -> None:
        self._clock = clock
        self._book = PeerBook()
        self._decode = to_worker_codec().decode
        self._encode = to_tokenizer_codec().encode
        self._num_malformed = 0
        self._lock = threading.Lock()
        self._turned_s = clock()
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._curve = CurveServer(self._context, keys) if keys is not None else None
        try:
            self._socket = open_router(self._context, address, self._curve)
        except ConfigError:
            self._end_context()
            raise

    @property
    def num_malformed(self) -> int:
        """Messages refused because they were no messages."""
        return self._num_malformed

    @property
    def address(self) -> str:
        """Where it is bound; a wildcard port is resolved."""
        endpoint: bytes = self._socket.getsockopt(zmq.LAST_ENDPOINT)  # type: ignore[assignment]
        return endpoint.rstrip(b"\0").decode()

    def receive(self, max_messages: int, timeout_s: float) -> Sequence[tuple[PeerId, ToWorker]]:
        """See ``WorkerEndpoint``."""
        with self._lock:
            self._turned_s = self._clock()
            return self._receive(max_messages, timeout_s)

    def _receive(self, max_messages: int, timeout_s: float) -> Sequence[tuple[PeerId, ToWorker]]:
        self._flush()
        messages: list[tuple[PeerId, ToWorker]] = []
        if timeout_s > 0 and not self._socket.poll(max(1, int(timeout_s * 1000)), zmq.POLLIN):
            return messages
        for _ in range(max_messages):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            message = self._admit(PeerId(frames[0]), frames[1:])
            if message is not None:
                messages.append((PeerId(frames[0]), message))
        if messages:
            self._flush()
        return messages

    def send(self, peer: PeerId, message: ToTokenizer) -> None:
        """See ``WorkerEndpoint``."""
        with self._lock:
            self._book.put(peer, message)
            self._flush_peer(peer)

    def lost_peers(self) -> Sequence[PeerId]:
        """See ``WorkerEndpoint``."""
        with self._lock:
            return self._book.lost(self._clock())

    def beat_for_loop(self, silence_s: float) -> None:
        """Send every peer a heartbeat if the loop has not been here for ``silence_s``.

        Does nothing while the loop is here. May be called by any thread.
        """
        if not self._lock.acquire(blocking=False):
            return
        try:
            if not self._socket.closed and self._clock() - self._turned_s >= silence_s:
                for peer in self._book.peers():
                    self._answer(peer, Heartbeat())
        finally:
            self._lock.release()

    @property
    def num_unsent(self) -> int:
        """Messages that wait for a peer's credit or for room; what a drain waits for."""
        outboxes = [self._book.outbox(peer) for peer in self._book.peers()]
        return sum(len(box.ready) + box.num_held for box in outboxes if box is not None)

    def close(self, linger_s: float = 0.0) -> None:
        """Unbind, giving messages already sent some time to leave. Idempotent."""
        with self._lock:
            self._socket.close(linger=int(linger_s * 1000))
        self._end_context()

    def _end_context(self) -> None:
        if self._curve is not None:
            self._curve.close()
            self._curve = None
        self._context.term()

    def _admit(self, peer: PeerId, frames: Sequence[bytes]) -> ToWorker | None:
        try:
            message = self._decode(b"".join(frames))
        except WireError as error:
            self._num_malformed += 1
            logger.warning("refused a malformed message", extra={"detail": str(error)})
            self._answer(peer, refusal(str(error)))
            return None
        refused = self._book.receive(peer, message, self._clock())
        if refused is None:
            return message
        self._answer(peer, refused)
        return None

    def _answer(self, peer: PeerId, message: ToTokenizer) -> None:
        with contextlib.suppress(zmq.ZMQError):
            self._socket.send_multipart([peer, self._encode(message)], zmq.NOBLOCK)

    def _flush(self) -> None:
        for peer in self._book.peers():
            self._flush_peer(peer)

    def _flush_peer(self, peer: PeerId) -> None:
        outbox = self._book.outbox(peer)
        while outbox is not None and outbox.ready:
            try:
                self._socket.send_multipart([peer, self._encode(outbox.ready[0])], zmq.NOBLOCK)
            except zmq.Again:
                return
            except zmq.ZMQError as error:
                if error.errno != zmq.EHOSTUNREACH:
                    raise
                self._book.drop(peer)
                return
            outbox.ready.popleft()


def open_router(
    context: "zmq.Context[zmq.Socket[bytes]]", address: str, curve: CurveServer | None
) -> "zmq.Socket[bytes]":
    """Bind a ROUTER that never blocks for a peer; raises ``ConfigError``."""
    socket = context.socket(zmq.ROUTER)
    socket.linger = 0
    socket.sndhwm = HIGH_WATER_MARK
    socket.rcvhwm = HIGH_WATER_MARK
    socket.router_mandatory = True
    socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
    socket.setsockopt(zmq.IPV6, 1)
    if curve is not None:
        curve.protect(socket)
    try:
        bind(socket, address)
    except ConfigError:
        socket.close(linger=0)
        raise
    return socket


def bind(socket: "zmq.Socket[bytes]", address: str) -> None:
    """Bind, removing the socket file that a killed process left; raises ``ConfigError``."""
    parts = urlsplit(address)
    if parts.scheme == "ipc":
        Path(parts.netloc + parts.path).unlink(missing_ok=True)
    try:
        socket.bind(address)
    except zmq.ZMQError as error:
        msg = f"cannot bind {address}: {error.strerror}; choose another address or end who has it"
        raise ConfigError(msg) from error
