"""Owns the in-process channel: worker endpoint and links in one process; owns no sockets.

Same codecs, same books, same bounds as over ZMQ, so a test of a whole engine in one process sees
what it would see between machines. Endpoint and links may live in different threads.
"""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mizzen_worker.contracts.errors import WireError
from mizzen_worker.contracts.ids import PeerId
from mizzen_worker.contracts.messages import ToTokenizer, ToWorker
from mizzen_worker.ipc.codec import to_tokenizer_codec, to_worker_codec
from mizzen_worker.ipc.link import LinkLostError
from mizzen_worker.ipc.peers import PeerBook, refusal

MAX_QUEUED = 1024
"""Messages one direction of one link holds."""


class MemoryEndpoint:
    """A worker's side; implements ``WorkerEndpoint``."""

    def __init__(self, *, clock: Callable[[], float], max_queued: int = MAX_QUEUED) -> None:
        self._clock = clock
        self._max_queued = max_queued
        self._book = PeerBook()
        self._inbox: deque[tuple[PeerId, bytes]] = deque()
        self._links: dict[PeerId, MemoryLink] = {}
        self._condition = threading.Condition()
        self._decode = to_worker_codec().decode
        self._encode = to_tokenizer_codec().encode
        self._num_malformed = 0
        self._num_links = 0

    @property
    def num_malformed(self) -> int:
        """Messages refused because they were no messages."""
        return self._num_malformed

    def receive(self, max_messages: int, timeout_s: float) -> Sequence[tuple[PeerId, ToWorker]]:
        """See ``WorkerEndpoint``."""
        self._flush()
        with self._condition:
            if not self._inbox and timeout_s > 0:
                self._condition.wait(timeout_s)
            arrived = [self._inbox.popleft() for _ in range(min(max_messages, len(self._inbox)))]
        messages: list[tuple[PeerId, ToWorker]] = []
        for peer, payload in arrived:
            try:
                message = self._decode(payload)
            except WireError as error:
                self._num_malformed += 1
                self._answer(peer, refusal(str(error)))
                continue
            refused = self._book.receive(peer, message, self._clock())
            if refused is None:
                messages.append((peer, message))
            else:
                self._answer(peer, refused)
        self._flush()
        return messages

    def send(self, peer: PeerId, message: ToTokenizer) -> None:
        """See ``WorkerEndpoint``."""
        self._book.put(peer, message)
        self._flush_peer(peer)

    def lost_peers(self) -> Sequence[PeerId]:
        """See ``WorkerEndpoint``."""
        with self._condition:
            gone = [peer for peer, link in self._links.items() if link.is_closed]
            for peer in gone:
                del self._links[peer]
        for peer in gone:
            self._book.drop(peer)
        return self._book.lost(self._clock())

    def close(self) -> None:
        """End every link, as a process that dies does."""
        with self._condition:
            links = list(self._links.values())
            self._links.clear()
        for link in links:
            link.lose("the endpoint was closed")

    def connect(self, loop: asyncio.AbstractEventLoop) -> "MemoryLink":
        """Make a link that delivers in ``loop``."""
        with self._condition:
            self._num_links += 1
            peer = PeerId(self._num_links.to_bytes(4, "big"))
            link = MemoryLink(endpoint=self, peer=peer, loop=loop, max_queued=self._max_queued)
            self._links[peer] = link
        return link

    def push(self, peer: PeerId, payload: bytes) -> bool:
        """Take bytes from a link; False when the inbox is full."""
        with self._condition:
            if peer not in self._links or len(self._inbox) >= self._max_queued:
                return False
            self._inbox.append((peer, payload))
            self._condition.notify()
        return True

    def _answer(self, peer: PeerId, message: ToTokenizer) -> None:
        link = self._links.get(peer)
        if link is not None:
            link.deliver(self._encode(message))

    def _flush(self) -> None:
        for peer in self._book.peers():
            self._flush_peer(peer)

    def _flush_peer(self, peer: PeerId) -> None:
        outbox, link = self._book.outbox(peer), self._links.get(peer)
        if outbox is None or link is None:
            return
        while outbox.ready and link.deliver(self._encode(outbox.ready[0])):
            outbox.ready.popleft()


class MemoryLink:
    """A tokenizer's side; implements ``Link``."""

    def __init__(
        self,
        *,
        endpoint: MemoryEndpoint,
        peer: PeerId,
        loop: asyncio.AbstractEventLoop,
        max_queued: int,
    ) -> None:
        self._endpoint = endpoint
        self._peer = peer
        self._loop = loop
        self._max_queued = max_queued
        self._arrived: deque[bytes] = deque()
        self._wakes = asyncio.Event()
        self._lost_because: str | None = None

    @property
    def is_closed(self) -> bool:
        """Whether either side gave the link up."""
        return self._lost_because is not None

    def send(self, payload: bytes) -> bool:
        """See ``Link``."""
        return not self.is_closed and self._endpoint.push(self._peer, payload)

    async def receive(self) -> Sequence[bytes]:
        """See ``Link``."""
        while not self._arrived:
            if self._lost_because is not None:
                raise LinkLostError(self._lost_because)
            self._wakes.clear()
            if not self._arrived:
                await self._wakes.wait()
        return [self._arrived.popleft() for _ in range(len(self._arrived))]

    def close(self) -> None:
        """See ``Link``."""
        self.lose("closed")

    def lose(self, reason: str) -> None:
        """Mark the link as gone; a waiting ``receive`` raises."""
        self._lost_because = self._lost_because or reason
        self._wake()

    def deliver(self, payload: bytes) -> bool:
        """Take bytes from the endpoint; False when full."""
        if len(self._arrived) >= self._max_queued:
            return False
        self._arrived.append(payload)
        self._wake()
        return True

    def _wake(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wakes.set)


@dataclass(slots=True, kw_only=True)
class MemoryHub:
    """Addresses of one process: binding again after a death gives a new endpoint."""

    clock: Callable[[], float]
    _endpoints: dict[str, MemoryEndpoint] = field(default_factory=dict)

    def bind(self, address: str) -> MemoryEndpoint:
        """Make the endpoint of an address, ending the one before."""
        before = self._endpoints.get(address)
        if before is not None:
            before.close()
        endpoint = MemoryEndpoint(clock=self.clock)
        self._endpoints[address] = endpoint
        return endpoint

    def unbind(self, address: str) -> None:
        """End the endpoint of an address."""
        endpoint = self._endpoints.pop(address, None)
        if endpoint is not None:
            endpoint.close()

    def open_link(self, address: str) -> MemoryLink:
        """Connect; a link to nobody is lost from the beginning. Implements ``OpenLink``."""
        loop = asyncio.get_running_loop()
        endpoint = self._endpoints.get(address)
        if endpoint is not None:
            return endpoint.connect(loop)
        nobody = MemoryEndpoint(clock=self.clock).connect(loop)
        nobody.lose(f"nobody listens at {address}")
        return nobody
