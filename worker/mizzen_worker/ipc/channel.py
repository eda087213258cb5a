"""Owns the protocol of a worker's endpoint; the in-memory and the ZMQ one implement it.

Bounded by construction: ``send`` never blocks. Token events beyond a peer's credit wait in that
peer's outbox, coalesced to at most one event per live request, so what is held is bounded by the
number of live requests times their remaining output. Nothing is dropped but a whole peer: one that
reads nothing while messages pile up (``peers.MAX_READY``) counts as lost.
"""

from collections.abc import Sequence
from typing import Protocol

from mizzen_worker.contracts.ids import PeerId
from mizzen_worker.contracts.messages import ToTokenizer, ToWorker

LAST_WORDS_S = 2.0
"""How long the last messages of one who ends are waited for, by itself and by who knows of its end
already: a peer that does not read, or has vanished, holds nobody up longer."""


class WorkerEndpoint(Protocol):
    """A worker's side of the wire. Owned by one loop; not thread safe."""

    def receive(self, max_messages: int, timeout_s: float) -> Sequence[tuple[PeerId, ToWorker]]:
        """Take what has arrived, waiting up to ``timeout_s`` for the first message (0: not at all).

        Credit in ``Attach`` and ``Heartbeat`` is booked here; the messages are passed on too.
        Malformed bytes, an ``Attach`` of another wire version and messages of a peer that is not
        attached are answered by a refusing ``Reply``, neither passed on nor raised.
        """
        ...

    def send(self, peer: PeerId, message: ToTokenizer) -> None:
        """Queue a message in order; what credit does not cover yet goes out when it does."""
        ...

    def lost_peers(self) -> Sequence[PeerId]:
        """Peers newly gone, silent beyond the heartbeat limit or not reading; so is their outbox.

        The caller ends their requests.
        """
        ...
