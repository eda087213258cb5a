"""Owns the private line between the launcher and a child: configuration down, reports up.

A SOCK_SEQPACKET pair: every packet is one msgpack message, the first one down is the child's whole
configuration, later ones are wishes: to drain, or a ``Control`` that a ``Reply`` answers. The end
of the line tells either side that the other is dead. Owns no processes. Reports are never waited
for: a child whose parent does not read drops them.
"""

import ctypes
import os
import signal
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import TypeVar

import msgspec

from mizzen_worker.contracts.drain import DrainMode
from mizzen_worker.contracts.errors import WireError
from mizzen_worker.contracts.messages import Control, Reply
from mizzen_worker.observability.samples import Sample

MAX_PACKET_BYTES = 128 * 1024
_PR_SET_PDEATHSIG = 1

Configuration = TypeVar("Configuration")


class Report(msgspec.Struct, frozen=True, kw_only=True, tag="report"):
    """What a child says about itself, once a second and on each change.

    ``num_beats`` grows with every turn of the child's loop: a loop that stands still is stuck.
    ``progress`` is 0 to 1 while loading. ``metrics`` is empty in most reports: the last ones that
    were told still hold.
    """

    state: str
    num_beats: int
    progress: float = 0.0
    detail: str = ""
    num_live: int = 0
    metrics: tuple[Sample, ...] = ()


class Alive(msgspec.Struct, frozen=True, tag="alive"):
    """From a thread of a child that is tied to others: it is not frozen, whatever its loop does.

    Once a child has said so, it says so again and again.
    """


class Drain(msgspec.Struct, frozen=True, kw_only=True, tag="drain"):
    """To a child: take no new work; end what is there, then exit with 0.

    A front is what clients find: it still serves those who come, for ``settle_s`` at least.
    """

    mode: DrainMode
    deadline_s: float
    settle_s: float = 0.0


Wish = Drain | Control
"""What a launcher asks of a child."""
FromChild = Report | Reply | Alive


class ParentLink:
    """A child's end. One thread calls it, but ``report``, ``reply`` and ``live``: any."""

    def __init__(self, fd: int) -> None:
        self._socket = socket.socket(fileno=fd)
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(Wish).decode

    def read_configuration(self, kind: type[Configuration]) -> Configuration:
        """Wait for the first packet and decode it."""
        packet = self._socket.recv(MAX_PACKET_BYTES)
        return msgspec.msgpack.decode(packet, type=kind)

    def report(self, report: Report) -> None:
        """Tell the launcher; dropped when it does not read."""
        self._send(report)

    def reply(self, reply: Reply) -> None:
        """Answer a ``Control``; dropped when the launcher does not read."""
        self._send(reply)

    def live(self) -> None:
        """Show life; dropped when the launcher does not read."""
        self._send(Alive())

    def _send(self, message: FromChild) -> None:
        try:
            self._socket.send(self._encode(message), socket.MSG_DONTWAIT)
        except OSError:
            return

    def wait(self) -> Wish | None:
        """Wait for the launcher's next wish; None when the launcher is dead."""
        packet = self._socket.recv(MAX_PACKET_BYTES)
        return self._decode(packet) if packet else None


class ChildLink:
    """The launcher's end of one child's line."""

    def __init__(self, line: socket.socket) -> None:
        self._socket = line
        self._encode = msgspec.msgpack.Encoder().encode
        self._decode = msgspec.msgpack.Decoder(FromChild).decode

    def fileno(self) -> int:
        """Give the descriptor to watch for reading."""
        return self._socket.fileno()

    def send(self, message: msgspec.Struct) -> None:
        """Send the configuration or a wish; a dead child is noticed elsewhere."""
        packet = self._encode(message)
        if len(packet) > MAX_PACKET_BYTES:
            msg = f"a packet of {len(packet)} bytes exceeds {MAX_PACKET_BYTES}"
            raise WireError(msg)
        try:
            self._socket.send(packet, socket.MSG_DONTWAIT)
        except OSError:
            return

    def receive(self) -> FromChild | None:
        """Take one message that is there; None at the end of the line."""
        packet = self._socket.recv(MAX_PACKET_BYTES, socket.MSG_DONTWAIT)
        return self._decode(packet) if packet else None

    def close(self) -> None:
        """Close this end."""
        self._socket.close()


def open_pair() -> tuple[ChildLink, socket.socket]:
    """Make a line; the second end is for the child to inherit."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * MAX_PACKET_BYTES)
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2 * MAX_PACKET_BYTES)
    return ChildLink(ours), theirs


class Wishes:
    """Holds the launcher's wishes until the child's loop asks for them."""

    def __init__(self) -> None:
        self._arrived: deque[Wish] = deque()
        self._wake: Callable[[], None] | None = None

    def __call__(self, wish: Wish) -> None:
        """Note a wish; called by the thread that reads the line."""
        self._arrived.append(wish)
        if self._wake is not None:
            self._wake()

    def wake_by(self, wake: Callable[[], None]) -> None:
        """Have ``wake`` called, by another thread, whenever a wish arrives."""
        self._wake = wake

    def take(self) -> Wish | None:
        """Give the oldest wish not taken yet."""
        return self._arrived.popleft() if self._arrived else None


def tie_to_parent(link: ParentLink, wishes: Wishes) -> None:
    """End this process when its launcher dies, whatever it is doing; take the launcher's wishes.

    The kernel's own signal covers a process that hangs in native code; the end of the line covers a
    launcher that died before that signal was asked for.
    """
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while (wish := link.wait()) is not None:
            wishes(wish)
        os._exit(1)

    threading.Thread(target=watch, name="parent", daemon=True).start()
