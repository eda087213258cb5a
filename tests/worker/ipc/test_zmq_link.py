"""A link over ZMQ, from one connection to its loss: what arrived is read, nothing goes later."""

import asyncio
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest
import zmq

from mizzen_worker.ipc.curve import (
    ClientKeys,
    CurveServer,
    ServerKeys,
    read_client_keys,
    read_server_keys,
)
from mizzen_worker.ipc.link import Link, LinkLostError
from mizzen_worker.ipc.zmq_channel import open_router
from mizzen_worker.ipc.zmq_link import ZmqLinks

NUM_WORDS = 3000
WORDS = [f"word {number}".encode() for number in range(NUM_WORDS)]
BUSY_S = 0.3
"""The loop is kept away this long: the connection's end is known before anything is read."""


class Peer:
    """The other side: a ROUTER of its own context, as another process has."""

    def __init__(self, address: str, keys: ServerKeys | None) -> None:
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._curve = CurveServer(self._context, keys) if keys is not None else None
        self._socket = open_router(self._context, address, self._curve)
        endpoint: bytes = self._socket.getsockopt(zmq.LAST_ENDPOINT)  # type: ignore[assignment]
        self.address = endpoint.rstrip(b"\0").decode()

    def hears(self, within_s: float) -> bool:
        """Whether a message arrives."""
        return bool(self._socket.poll(int(within_s * 1000)))

    def hear(self) -> bytes:
        """Wait for a message; gives who sent it."""
        assert self.hears(within_s=10)
        return self._socket.recv_multipart()[0]

    def say(self, to: bytes, words: Sequence[bytes]) -> None:
        for word in words:
            self._socket.send_multipart([to, word], zmq.NOBLOCK)

    def close(self) -> None:
        """Leave as a process does that ends in order."""
        self._socket.close(linger=10_000)
        if self._curve is not None:
            self._curve.close()
        self._context.term()


@dataclass
class Transport:
    address: str
    server_keys: ServerKeys | None
    links: ZmqLinks

    def peer(self, address: str | None = None) -> Peer:
        return Peer(address or self.address, self.server_keys)


@pytest.fixture(params=["ipc", "tcp", "curve"])
def transport(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Transport]:
    server_keys, client_keys = _keys(tmp_path) if request.param == "curve" else (None, None)
    links = ZmqLinks(keys=client_keys)
    address = f"ipc://{tmp_path}/peer" if request.param == "ipc" else "tcp://127.0.0.1:*"
    yield Transport(address, server_keys, links)
    links.close()


def _keys(folder: Path) -> tuple[ServerKeys, ClientKeys]:
    for role in ("server", "client"):
        public, secret = zmq.curve_keypair()
        (folder / f"{role}.pub").write_bytes(public)
        (folder / f"{role}.key").write_bytes(secret)
    return read_server_keys(folder), read_client_keys(folder)


async def _sent(link: Link, payload: bytes) -> None:
    async with asyncio.timeout(10):
        while not link.send(payload):  # noqa: ASYNC110 - a link tells of its loss only
            await asyncio.sleep(0.002)


async def _all_words(link: Link) -> list[bytes]:
    """Everything until the link is lost."""
    words: list[bytes] = []
    async with asyncio.timeout(20):
        while True:
            try:
                words += await link.receive()
            except LinkLostError:
                return words


def test_what_a_peer_said_before_its_end_is_read_in_full(transport: Transport) -> None:
    async def scenario() -> None:
        peer = transport.peer()
        with closing(transport.links.open_link(peer.address)) as link:
            await _sent(link, b"attach")
            peer.say(peer.hear(), WORDS)
            peer.close()
            time.sleep(BUSY_S)  # noqa: ASYNC251 - the loop has other work
            assert await _all_words(link) == WORDS
            assert not link.send(b"late")
            with pytest.raises(LinkLostError, match="the connection ended"):
                await link.receive()

    asyncio.run(scenario())


def test_a_reader_that_waits_hears_the_last_words_too(transport: Transport) -> None:
    async def scenario() -> None:
        peer = transport.peer()
        with closing(transport.links.open_link(peer.address)) as link:
            await _sent(link, b"attach")
            hearing = asyncio.create_task(_all_words(link))
            await asyncio.sleep(0)
            peer.say(peer.hear(), WORDS)
            peer.close()
            assert await hearing == WORDS

    asyncio.run(scenario())


def test_nothing_sent_on_a_link_reaches_a_later_peer(transport: Transport) -> None:
    async def scenario() -> None:
        first = transport.peer()
        with closing(transport.links.open_link(first.address)) as link:
            await _sent(link, b"attach")
            first.hear()
            first.close()
            with closing(transport.peer(first.address)) as later:
                for _ in range(10):
                    link.send(b"meant for the first")
                    time.sleep(BUSY_S / 10)  # noqa: ASYNC251 - the loop learns of nothing
                assert await _all_words(link) == []
                assert not later.hears(within_s=BUSY_S)
                with closing(transport.links.open_link(later.address)) as replacing:
                    await _sent(replacing, b"attach")
                    later.hear()

    asyncio.run(scenario())


def test_a_link_waits_for_a_peer_that_is_not_there_yet(transport: Transport) -> None:
    async def scenario() -> None:
        once = transport.peer()
        once.close()
        with closing(transport.links.open_link(once.address)) as link:
            waiting = asyncio.create_task(_all_words(link))
            await asyncio.sleep(BUSY_S)
            assert not waiting.done()
            assert not link.send(b"nobody")
            with closing(transport.peer(once.address)) as peer:
                await _sent(link, b"attach")
                peer.say(peer.hear(), WORDS[:3])
                assert not peer.hears(within_s=0.05)
            assert await waiting == WORDS[:3]

    asyncio.run(scenario())


def test_nothing_is_taken_before_the_handshake_and_its_failure_is_a_loss() -> None:
    async def scenario(links: ZmqLinks) -> None:
        with (
            socket.create_server(("127.0.0.1", 0)) as listener,
            closing(links.open_link(f"tcp://127.0.0.1:{listener.getsockname()[1]}")) as link,
        ):
            connection, _ = listener.accept()
            with connection:
                assert connection.recv(10)  # Connected, and the greeting begins.
                await asyncio.sleep(0.05)
                assert not link.send(b"early")
            async with asyncio.timeout(10):
                with pytest.raises(LinkLostError, match="handshake failed"):
                    await link.receive()

    with closing(ZmqLinks()) as links:
        asyncio.run(scenario(links))


RAW_PEER = r"""
import os, signal, socket, sys
family = socket.AF_UNIX if sys.argv[1] == "ipc" else socket.AF_INET
server = socket.socket(family)
server.bind(sys.argv[2] if sys.argv[1] == "ipc" else ("127.0.0.1", 0))
server.listen()
print(server.getsockname()[1] if sys.argv[1] == "tcp" else 0, flush=True)
link, _ = server.accept()
ready = b"\x05READY\x0bSocket-Type\x00\x00\x00\x06ROUTER"
link.sendall(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"NULL".ljust(20, b"\0") + bytes(32))
link.sendall(bytes([4, len(ready)]) + ready)
seen = b""
while b"attach" not in seen:
    seen += link.recv(4096)
words = [b"word %d" % number for number in range(int(sys.argv[3]))]
link.sendall(b"".join(bytes([0, len(word)]) + word for word in words))
if sys.argv[4] == "killed":
    link.sendall(bytes([0, 200]) + b"the half of a word")
    os.kill(os.getpid(), signal.SIGKILL)
link.sendall(b"\xff" * 64)
link.recv(1 << 20)
"""
"""Speaks ZMTP itself: what it has sent is with the kernel when it ends."""


@pytest.mark.parametrize("end", ["killed", "no longer ZMTP"])
@pytest.mark.parametrize("scheme", ["ipc", "tcp"])
def test_a_peer_that_ends_badly_is_heard_out(tmp_path: Path, scheme: str, end: str) -> None:
    words = WORDS[:2000]

    async def scenario(links: ZmqLinks, address: str) -> None:
        with closing(links.open_link(address)) as link:
            await _sent(link, b"attach")
            time.sleep(BUSY_S)  # noqa: ASYNC251 - the loop has other work
            assert await _all_words(link) == words

    command = [sys.executable, "-c", RAW_PEER, scheme, f"{tmp_path}/peer", str(len(words)), end]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as peer, closing(ZmqLinks()) as links:
        assert peer.stdout is not None
        port = int(peer.stdout.readline())
        address = f"ipc://{tmp_path}/peer" if scheme == "ipc" else f"tcp://127.0.0.1:{port}"
        asyncio.run(scenario(links, address))
    assert (peer.returncode == -signal.SIGKILL) == (end == "killed")
