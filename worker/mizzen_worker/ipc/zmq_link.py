"""Owns one DEALER connection in an asyncio loop, with its monitor; owns no message meaning.

The socket is used without ZMQ's own asyncio wrapper: its file descriptor is edge-triggered, so
after every send the receive side is looked at too.

A link is connected once, which the monitor tells. ZMQ itself tries once and then, as far as a link
lives, never again: until there was a handshake the link tries anew, and after it the connection's
end is the link's. ZMQ's IMMEDIATE would forbid sending without a connection too, but it drops what
had arrived unread when the connection ends; here all of that is received before the loss is told.
"""

import asyncio
import contextlib
from collections import deque
from collections.abc import Sequence
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from mizzen_worker.ipc.codec import MAX_MESSAGE_BYTES
from mizzen_worker.ipc.curve import ClientKeys, protect_client
from mizzen_worker.ipc.link import LinkLostError
from mizzen_worker.ipc.zmq_channel import HIGH_WATER_MARK

_MAX_TAKEN = 1024
"""Messages held in Python before ZMQ's own queue is left to fill."""
_LEAST_SOCKETS = 1023
_ENDED = "the connection ended"
FAILURE_TO_REASON = {
    int(zmq.EVENT_HANDSHAKE_FAILED_AUTH): "the peer does not know this client's CURVE key",
    int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL): "the peer's CURVE key or protocol differs",
    int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL): "the handshake failed",
}
_EVENTS = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED,
    zmq.EVENT_DISCONNECTED,
    zmq.EVENT_CONNECT_RETRIED,
    *FAILURE_TO_REASON,
)

_RETRY_S, _MAX_RETRY_S = 0.05, 1.0
_NEVER_MS = 24 * 3600 * 1000
"""Before ZMQ connects again by itself; a link whose connection ended is closed long before."""
_HANDED_OVER_S = 1.0
"""After a connection's end, when ZMQ does not say that it has handed over what had arrived: it says
so by the retry that it plans, and plans none with a peer that broke the protocol."""


class ZmqLink:
    """A tokenizer's side; implements ``Link``."""

    def __init__(
        self,
        context: "zmq.Context[zmq.Socket[bytes]]",
        address: str,
        *,
        keys: ClientKeys | None = None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._arrived: deque[bytes] = deque()
        self._wakes = asyncio.Event()
        self._lost_because: str | None = None
        self._is_closed = False
        self._is_connected = False
        self._has_ended = False
        self._address = address
        # On this machine a try costs nothing, and a rank that has loaded is not kept waiting.
        self._max_retry_s = _RETRY_S if address.startswith("ipc://") else _MAX_RETRY_S
        self._retry_s = _RETRY_S
        self._timer: asyncio.TimerHandle | None = None
        self._socket = context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.sndhwm = HIGH_WATER_MARK
        self._socket.rcvhwm = HIGH_WATER_MARK
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_MESSAGE_BYTES)
        self._socket.setsockopt(zmq.IPV6, 1)
        self._socket.setsockopt(zmq.RECONNECT_IVL, _NEVER_MS)
        if keys is not None:
            protect_client(self._socket, keys)
        events = 0
        for event in _EVENTS:
            events |= event
        self._monitor: zmq.Socket[Any] = self._socket.get_monitor_socket(events)
        self._loop.add_reader(self._socket.fileno(), self._on_readable)
        self._loop.add_reader(self._monitor.fileno(), self._on_monitor)
        # A socket announces nothing before it was found empty once.
        self._on_readable()
        self._on_monitor()
        try:
            self._socket.connect(address)
        except zmq.ZMQError:
            self.close()
            raise

    def send(self, payload: bytes) -> bool:
        """See ``Link``."""
        if not self._is_connected:
            return False
        try:
            self._socket.send(payload, zmq.NOBLOCK)
        except zmq.Again:
            return False
        finally:
            self._on_readable()
        return True

    async def receive(self) -> Sequence[bytes]:
        """See ``Link``."""
        self._on_readable()
        while not self._arrived:
            if self._lost_because is not None:
                raise LinkLostError(self._lost_because)
            self._wakes.clear()
            await self._wakes.wait()
            self._on_readable()
        taken = list(self._arrived)
        self._arrived.clear()
        return taken

    def close(self) -> None:
        """See ``Link``."""
        if self._is_closed:
            return
        self._is_closed = True
        self._is_connected = False
        self._lose("closed")
        if self._timer is not None:
            self._timer.cancel()
        self._loop.remove_reader(self._socket.fileno())
        self._loop.remove_reader(self._monitor.fileno())
        self._socket.disable_monitor()
        self._monitor.close(linger=0)
        self._socket.close(linger=0)

    def _lose(self, reason: str) -> None:
        self._lost_because = self._lost_because or reason
        self._wakes.set()

    def _on_readable(self) -> None:
        if self._is_closed:
            return
        with contextlib.suppress(zmq.Again):
            while len(self._arrived) < _MAX_TAKEN:
                self._arrived.append(self._socket.recv(zmq.NOBLOCK))
        if self._arrived:
            self._wakes.set()

    def _on_monitor(self) -> None:
        with contextlib.suppress(zmq.Again):
            while not self._is_closed:
                event = recv_monitor_message(self._monitor, zmq.NOBLOCK)
                self._note(int(event["event"]))

    def _note(self, event: int) -> None:
        match event:
            case zmq.EVENT_HANDSHAKE_SUCCEEDED:
                self._is_connected = True
            case zmq.EVENT_DISCONNECTED:
                # Told before ZMQ has handed over the last of what arrived.
                self._is_connected = False
                self._has_ended = True
                self._timer = self._loop.call_later(_HANDED_OVER_S, self._lose, _ENDED)
            case zmq.EVENT_CONNECT_RETRIED if self._has_ended:
                self._lose(_ENDED)
            case zmq.EVENT_CONNECT_RETRIED:
                self._timer = self._loop.call_later(self._retry_s, self._retry)
                self._retry_s = min(2 * self._retry_s, self._max_retry_s)
            case _:
                self._has_ended = True
                self._lose(FAILURE_TO_REASON[event])

    def _retry(self) -> None:
        """Connect in place of ZMQ; nothing is queued, since there was no handshake."""
        try:
            self._socket.disconnect(self._address)
            self._socket.connect(self._address)
        except zmq.ZMQError as error:
            self._lose(str(error))
        self._on_readable()


class ZmqLinks:
    """Opens links of one process; owns the ZMQ context."""

    def __init__(self, *, keys: ClientKeys | None = None, max_links: int = 256) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        # A link has a socket and a monitor at either end of a pair.
        self._context.max_sockets = max(_LEAST_SOCKETS, 4 * max_links)
        self._keys = keys

    def open_link(self, address: str) -> ZmqLink:
        """Begin to connect. Implements ``OpenLink``; CURVE protects tcp only."""
        keys = self._keys if address.startswith("tcp://") else None
        return ZmqLink(self._context, address, keys=keys)

    def close(self) -> None:
        """End the context; every link must be closed already."""
        self._context.term()
