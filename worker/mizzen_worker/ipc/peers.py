"""Owns the books a worker keeps per connected tokenizer: outbox, credit, last sign of life.

Owns no sockets and no bytes: the in-memory and the ZMQ endpoint share it, so they behave alike.
"""

from dataclasses import dataclass, field

from mizzen_worker.contracts.ids import InstanceId, PeerId
from mizzen_worker.contracts.messages import (
    WIRE_VERSION,
    Attach,
    Heartbeat,
    Reply,
    ToTokenizer,
    ToWorker,
)
from mizzen_worker.ipc.outbox import Outbox

MAX_PEERS = 1024
"""Tokenizer processes one worker talks to."""
MAX_CREDIT = 1 << 20
"""More credit than this at once is a peer that does not count."""
MAX_READY = 1 << 17
"""Messages that may pile up for a peer that reads none, and requests whose tokens wait for credit
that it never gives; more than its live requests can cause."""
HEARTBEAT_LIMIT_S = 10.0
"""Silence after which a peer counts as lost; a closed connection is noticed at once."""
_LOOK_LIMIT_S = 2.0
"""Looks further apart than this say that nobody read: a step took long, the peers did not."""


@dataclass(slots=True, kw_only=True)
class _Peer:
    instance_id: InstanceId
    outbox: Outbox
    last_seen_s: float


@dataclass(slots=True, kw_only=True)
class PeerBook:
    """Who is attached. Owned by one endpoint; not thread safe."""

    max_peers: int = MAX_PEERS
    max_ready: int = MAX_READY
    heartbeat_limit_s: float = HEARTBEAT_LIMIT_S
    _peers: dict[PeerId, _Peer] = field(default_factory=dict)
    _lost: list[PeerId] = field(default_factory=list)
    _looked_s: float | None = None

    def outbox(self, peer: PeerId) -> Outbox | None:
        """Give an attached peer's outbox; None when it is not attached."""
        known = self._peers.get(peer)
        return known.outbox if known is not None else None

    def peers(self) -> tuple[PeerId, ...]:
        """Everybody attached."""
        return tuple(self._peers)

    def receive(self, peer: PeerId, message: ToWorker, now_s: float) -> Reply | None:
        """Book a message that arrived; a ``Reply`` refuses it, None means it is to be passed on."""
        known = self._peers.get(peer)
        match message:
            case Attach():
                return self._attach(peer, message, now_s)
            case _ if known is None:
                return refusal("attach first")
            case Heartbeat():
                known.outbox.grant(min(max(message.credit, 0), MAX_CREDIT))
        known.last_seen_s = now_s
        return None

    def put(self, peer: PeerId, message: ToTokenizer) -> None:
        """Queue a message for an attached peer; one that lets too many pile up is dropped."""
        known = self._peers.get(peer)
        if known is None:
            return
        known.outbox.put(message)
        if len(known.outbox.ready) + known.outbox.num_held > self.max_ready:
            self.drop(peer)

    def drop(self, peer: PeerId) -> None:
        """Forget a peer that is of no use any more; it is reported as lost once."""
        if self._peers.pop(peer, None) is not None:
            self._lost.append(peer)

    def lost(self, now_s: float) -> tuple[PeerId, ...]:
        """Give the peers lost since the last call. Time in which nobody read is no silence."""
        unread_s = 0.0 if self._looked_s is None else now_s - self._looked_s
        self._looked_s = now_s
        for peer, known in list(self._peers.items()):
            if unread_s > _LOOK_LIMIT_S:
                known.last_seen_s = min(now_s, known.last_seen_s + unread_s)
            if now_s - known.last_seen_s > self.heartbeat_limit_s:
                self.drop(peer)
        lost = tuple(self._lost)
        self._lost.clear()
        return lost

    def _attach(self, peer: PeerId, message: Attach, now_s: float) -> Reply | None:
        if message.wire_version != WIRE_VERSION:
            return refusal(
                f"wire version {message.wire_version} is not {WIRE_VERSION}: run tokenizers and "
                "workers of one release"
            )
        known = self._peers.get(peer)
        if known is None and len(self._peers) >= self.max_peers:
            return refusal(f"{self.max_peers} tokenizer processes are attached, which is the limit")
        if known is None:
            # A process has one connection: an older one of the same process is over.
            for other, older in list(self._peers.items()):
                if older.instance_id == message.instance_id:
                    self.drop(other)
            known = _Peer(instance_id=message.instance_id, outbox=Outbox(), last_seen_s=now_s)
            self._peers[peer] = known
            known.outbox.grant(min(max(message.credit, 0), MAX_CREDIT))
        known.last_seen_s = now_s
        return None


def refusal(message: str) -> Reply:
    """Make the reply that refuses what a peer sent."""
    return Reply(control_id=0, is_ok=False, message=message)
