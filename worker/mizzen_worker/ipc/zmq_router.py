"""Owns a ROUTER in an asyncio loop that passes bytes on; owns no message's meaning.

``send`` never blocks: what the socket does not take waits in that peer's queue. A peer that is gone
or lets too much pile up is reported once and forgotten.
"""

import asyncio
from collections import deque
from typing import Protocol

import zmq

from mizzen_worker.contracts.ids import PeerId
from mizzen_worker.ipc.curve import CurveServer, ServerKeys
from mizzen_worker.ipc.peers import MAX_READY
from mizzen_worker.ipc.zmq_channel import open_router

_MAX_READ_PER_TURN = 1024
_FLUSH_S = 0.05


class RouterListener(Protocol):
    """Who is told; both return at once."""

    def on_message(self, peer: PeerId, payload: bytes) -> None:
        """Take what a peer sent."""
        ...

    def on_peer_lost(self, peer: PeerId) -> None:
        """Note that a peer is gone."""
        ...


class ZmqRouter:
    """Owned by one event loop. Bound when made; reads from ``begin`` on."""

    def __init__(self, address: str, *, keys: ServerKeys | None) -> None:
        self._loop = asyncio.get_running_loop()
        self._listener: RouterListener | None = None
        self._waiting: dict[PeerId, deque[bytes]] = {}
        self._is_closed = False
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._curve = CurveServer(self._context, keys) if keys is not None else None
        self._socket = open_router(self._context, address, self._curve)

    def begin(self, listener: RouterListener) -> None:
        """Give what arrives, and what arrived, to a listener."""
        self._listener = listener
        self._loop.add_reader(self._socket.fileno(), self._on_readable)
        self._on_readable()

    def send(self, peer: PeerId, payload: bytes) -> None:
        """Queue bytes for a peer, after what waits for it."""
        waiting = self._waiting.get(peer)
        if waiting is not None:
            waiting.append(payload)
            if len(waiting) > MAX_READY:
                self._lose(peer)
        elif not self._post(peer, payload):
            self._waiting[peer] = deque([payload])
        # The descriptor is edge-triggered: a send may have taken the edge of what arrived.
        self._loop.call_soon(self._on_readable)

    async def drain(self, limit_s: float) -> None:
        """Wait until nothing waits for room any more, or the time is up."""
        ends_at_s = self._loop.time() + limit_s
        while self._waiting and self._loop.time() < ends_at_s:  # noqa: ASYNC110 - no event tells
            await asyncio.sleep(_FLUSH_S)

    async def run(self) -> None:
        """Try again what the socket did not take, until cancelled."""
        while True:
            await asyncio.sleep(_FLUSH_S)
            self._flush()
            self._on_readable()

    def close(self, linger_s: float = 0.0) -> None:
        """Unbind, giving messages already sent some time to leave. Idempotent."""
        if self._is_closed:
            return
        self._is_closed = True
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close(linger=int(linger_s * 1000))
        if self._curve is not None:
            self._curve.close()
        self._context.term()

    def _on_readable(self) -> None:
        if self._is_closed or self._listener is None:
            return
        for _ in range(_MAX_READ_PER_TURN):
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._listener.on_message(PeerId(frames[0]), b"".join(frames[1:]))
        self._loop.call_soon(self._on_readable)

    def _flush(self) -> None:
        for peer, waiting in list(self._waiting.items()):
            while waiting and self._post(peer, waiting[0]):
                if waiting:  # A peer that turned out to be gone has nothing waiting any more.
                    waiting.popleft()
            if not waiting:
                self._waiting.pop(peer, None)

    def _post(self, peer: PeerId, payload: bytes) -> bool:
        """Send; True when nothing is left to do for these bytes."""
        try:
            self._socket.send_multipart([peer, payload], zmq.NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            if error.errno != zmq.EHOSTUNREACH:
                raise
            self._lose(peer)
        return True

    def _lose(self, peer: PeerId) -> None:
        waiting = self._waiting.pop(peer, None)
        if waiting is not None:
            waiting.clear()
        if self._listener is not None:
            self._listener.on_peer_lost(peer)
