"""Owns the worker address in front of several ranks: which tokenizers are attached, who hears what.

To tokenizers it is one worker with all ranks' capacity. Owns no request (each ``Session`` has its
routes) and no knowledge of ranks (``Ranks``).
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from mizzen_worker.contracts.errors import WireError
from mizzen_worker.contracts.ids import InstanceId, PeerId
from mizzen_worker.contracts.messages import WIRE_VERSION, Attach, Heartbeat, Submit
from mizzen_worker.data_parallel.ranks import Ranks
from mizzen_worker.data_parallel.session import Session
from mizzen_worker.ipc.codec import to_tokenizer_codec, to_worker_codec
from mizzen_worker.ipc.link import OpenLink
from mizzen_worker.ipc.peers import HEARTBEAT_LIMIT_S, refusal
from mizzen_worker.observability.metric_names import ROUTED_REQUESTS, TOKENIZERS_ATTACHED
from mizzen_worker.observability.recorder import Recorder

logger = logging.getLogger(__name__)

MAX_TOKENIZERS = 128
"""Each has a connection to each rank."""
_BEAT_S = 1.0


class Controller:
    """Implements ``RouterListener``. Owned by one event loop; ``send`` takes bytes for a peer."""

    def __init__(
        self,
        ranks: Sequence[str],
        *,
        instance_id: InstanceId,
        open_link: OpenLink,
        send: Callable[[PeerId, bytes], None],
        recorder: Recorder,
        clock: Callable[[], float],
    ) -> None:
        self.ranks = Ranks(ranks, instance_id=instance_id, on_rank_lost=self._on_rank_lost)
        self._open_link = open_link
        self._send = send
        self._recorder = recorder
        self._clock = clock
        self._sessions: dict[PeerId, Session] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._decode = to_worker_codec().decode
        self._encode = to_tokenizer_codec().encode

    @property
    def num_live(self) -> int:
        """Requests that ranks have."""
        return sum(session.num_routed for session in self._sessions.values())

    def on_message(self, peer: PeerId, payload: bytes) -> None:
        """Take what a tokenizer sent."""
        try:
            message = self._decode(payload)
        except WireError as error:
            logger.warning("refused a malformed message", extra={"detail": str(error)})
            self._refuse(peer, str(error))
            return
        session = self._sessions.get(peer)
        if session is None:
            if not isinstance(message, Attach):
                self._refuse(peer, "attach first")
                return
            session = self._admit(peer, message)
            if session is None:
                return
        session.last_seen_s = self._clock()
        if isinstance(message, Submit):
            self._recorder.count(ROUTED_REQUESTS)
        session.take(message, payload)

    def on_peer_lost(self, peer: PeerId) -> None:
        """Note that a tokenizer is gone, and leave the ranks in its name."""
        session = self._sessions.pop(peer, None)
        if session is None:
            return
        logger.info("tokenizer lost", extra={"tokenizer": session.instance_id})
        closing = asyncio.create_task(session.close())
        self._closing.add(closing)
        closing.add_done_callback(self._closing.discard)
        self._recorder.set(TOKENIZERS_ATTACHED, len(self._sessions))

    async def run(self) -> None:
        """Tell every tokenizer the load, once a second, and drop those that are silent."""
        while True:
            await asyncio.sleep(_BEAT_S)
            payload = self._encode(Heartbeat(load=self.ranks.load()))
            now_s = self._clock()
            for peer, session in list(self._sessions.items()):
                if now_s - session.last_seen_s > HEARTBEAT_LIMIT_S:
                    self.on_peer_lost(peer)
                elif session.is_greeted:
                    self._send(peer, payload)

    async def close(self) -> None:
        """Leave every rank."""
        for peer in tuple(self._sessions):
            self.on_peer_lost(peer)
        await asyncio.gather(*self._closing, return_exceptions=True)

    def _admit(self, peer: PeerId, attach: Attach) -> Session | None:
        if attach.wire_version != WIRE_VERSION:
            self._refuse(
                peer,
                f"wire version {attach.wire_version} is not {WIRE_VERSION}: run tokenizers and "
                "workers of one release",
            )
            return None
        for other, older in list(self._sessions.items()):
            # A process has one connection: an older one of the same process is over.
            if older.instance_id == attach.instance_id:
                self.on_peer_lost(other)
        if len(self._sessions) >= MAX_TOKENIZERS:
            self._refuse(
                peer, f"{MAX_TOKENIZERS} tokenizer processes are attached, which is the limit"
            )
            return None
        session = Session(
            attach,
            ranks=self.ranks,
            open_link=self._open_link,
            send=lambda payload: self._send(peer, payload),
            now_s=self._clock(),
        )
        self._sessions[peer] = session
        session.start()
        self._recorder.set(TOKENIZERS_ATTACHED, len(self._sessions))
        return session

    def _on_rank_lost(self, address: str) -> None:
        """Hand back what a rank had that died or does not answer."""
        for session in self._sessions.values():
            session.replace_link(address)

    def _refuse(self, peer: PeerId, message: str) -> None:
        self._send(peer, self._encode(refusal(message)))
