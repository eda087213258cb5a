"""Owns rank 0's end of a group: lets ranks in, tells them steps, notices who is lost.

Owns no runner and no collectives. Phases: gathering (until every rank has said Hello; who falls
silent is waited for again), then one life (whoever is lost ends it). Lost is a rank that is silent
for the limit, says so, or does not read; nothing is dropped and nobody is waited for in a life but
while a step is ``MAX_LAG_STEPS`` ahead of the slowest.

Invariant: the socket and the books are used with the lock held. The loop's thread and the pulse's
take turns, so that a rank that computes for minutes still shows life and sees its peers'.
"""

import contextlib
import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass

import zmq
from msgspec import structs

from mizzen_worker.contracts.drain import DrainMode
from mizzen_worker.contracts.errors import RankGroupError, StepError, WireError
from mizzen_worker.contracts.rank_messages import (
    Beat,
    Begin,
    DrainWish,
    Ended,
    Farewell,
    Hello,
    Loaded,
    Replayed,
    Sizes,
    Step,
    ToFollower,
    ToLeader,
    Waiting,
    Welcome,
)
from mizzen_worker.ipc.channel import LAST_WORDS_S
from mizzen_worker.ipc.codec import to_follower_codec, to_leader_codec
from mizzen_worker.ipc.curve import CurveServer, ServerKeys
from mizzen_worker.ipc.pulse import Pulse
from mizzen_worker.ipc.zmq_channel import open_router
from mizzen_worker.rank_group.place import RankPlace, objection

logger = logging.getLogger(__name__)

MAX_LAG_STEPS = 16
"""Steps that the leader may be ahead of the slowest follower; collectives allow a few at most."""
_TURN_S = 0.2
_LAG_TURN_S = 0.01
_BEGUN = "the group has begun without this rank; it starts anew when the lost one is noticed"
_STRANGER = "this is no rank of the group's present life; start it anew"

OnWait = Callable[[tuple[int, ...]], None]
"""Called again and again while ranks, the given ones, are waited for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedDrain:
    """A follower's pod ends: the whole group has to drain."""

    rank: int
    mode: DrainMode
    deadline_s: float


@dataclass(slots=True, kw_only=True)
class _Follower:
    """What is known of another rank."""

    peer: bytes
    heard_s: float
    sizes: Sizes | None = None
    num_replayed: int = 0
    has_parted: bool = False


class LeaderLink:
    """Rank 0's end. ``clock`` gives monotonic seconds.

    ``on_lost`` is called once, by the pulse's thread, with the reason for which a life is over: the
    loop may be blocked in a collective that the lost rank will never enter.
    """

    def __init__(
        self,
        place: RankPlace,
        *,
        bound: str,
        keys: ServerKeys | None,
        clock: Callable[[], float],
        on_lost: Callable[[str], None],
    ) -> None:
        """Bind ``bound``, which is ``place.address`` with the name looked up.

        ``keys`` None where the network itself is trusted. Raises ``ConfigError``.
        """
        self._place = place
        self._clock = clock
        self._on_lost = on_lost
        self._encode = to_follower_codec().encode
        self._decode = to_leader_codec().decode
        self._followers: dict[int, _Follower] = {}
        self._own: Hello | None = None
        self._has_begun = False
        self._lost_because: str | None = None
        self._is_loss_told = False
        self._wish: AskedDrain | None = None
        self._num_sent = 0
        self._beat_at_s = 0.0
        self._looked_s = clock()
        self._lock = threading.Lock()
        self._pulse = Pulse(self._tick, interval_s=place.beat_s)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._curve = CurveServer(self._context, keys) if keys is not None else None
        try:
            self._socket = open_router(self._context, bound, self._curve)
        except Exception:
            self._end_context()
            raise

    @property
    def num_joined(self) -> int:
        """Ranks that are there, this one included."""
        return 1 + len(self._followers)

    def gather(self, own: Hello, on_wait: OnWait) -> None:
        """Wait until every other rank has come; raises ``RankGroupError`` at the deadline."""
        self._own = own
        ends_at_s = self._clock() + self._place.rendezvous_timeout_s
        while missing := self._missing():
            if self._clock() >= ends_at_s:
                msg = (
                    f"{_ranks(missing)} of {self._place.size} did not come to"
                    f" {self._place.address} in {self._place.rendezvous_timeout_s:g} s; look at"
                    " their logs, or raise --rendezvous-timeout"
                )
                raise RankGroupError(msg)
            on_wait(missing)
            with self._lock:
                self._pump(_TURN_S)
                self._forget_silent()
                self._tell_waiting()

    def begin_life(self, welcome: Welcome) -> None:
        """Tell all ranks that they are together; from now on nobody may be lost."""
        with self._lock:
            self._has_begun = True
            now_s = self._clock()
            for follower in self._followers.values():
                follower.heard_s = now_s
            self._send_all(welcome)
        self._pulse.start()

    def wait_loaded(self, own: Sizes, on_wait: OnWait) -> int:
        """Wait until every rank has loaded and let steps begin; give the pages that all have.

        Raises ``RankGroupError`` where a rank is lost, or its runner has other sizes.
        """
        num_pages = own.num_pages
        while missing := self._unloaded():
            on_wait(missing)
            self._turn(_TURN_S)
        for rank, follower in self._followers.items():
            sizes = follower.sizes or own
            if structs.replace(sizes, num_pages=own.num_pages) != own:
                msg = (
                    f"rank {rank} has a runner with {sizes} and the leader one with {own};"
                    " give all ranks of a group equal devices and flags"
                )
                raise RankGroupError(msg)
            num_pages = min(num_pages, sizes.num_pages)
        with self._lock:
            self._send_all(Begin())
        return num_pages

    def send_step(self, step: Step) -> None:
        """Tell every rank of a step, waiting where one of them is too far behind.

        Raises ``RankGroupError`` when a rank is lost, ``StepError`` for what nobody was told of.
        """
        try:
            payload = self._encode(step)
        except WireError as error:
            raise StepError(str(error)) from error
        while self._num_sent - self._least_replayed() >= MAX_LAG_STEPS:
            self._turn(_LAG_TURN_S)
        with self._lock:
            self._require_whole()
            self._post_all(payload)
            self._num_sent += 1
        self._require_whole()

    def turn(self) -> AskedDrain | None:
        """Give a drain that a follower's pod asks for, once; raises ``RankGroupError``."""
        self._turn(0)
        if self._wish is None:
            return None
        wish, self._wish = self._wish, None
        return wish

    def explain(self, wait_s: float) -> None:
        """Raise ``RankGroupError`` if a rank turns out to be lost: why a collective has failed."""
        ends_at_s = self._clock() + wait_s
        while self._clock() < ends_at_s:
            with self._lock:
                self._beat_at_s = 0.0
            self._turn(_LAG_TURN_S)

    def part(self) -> None:
        """Let the others end with success, and wait a moment until they have heard it."""
        with self._lock:
            self._send_all(Farewell())
            ends_at_s = self._clock() + LAST_WORDS_S
            while self._clock() < ends_at_s and not all(
                follower.has_parted for follower in self._followers.values()
            ):
                self._pump(_LAG_TURN_S)

    def fail(self, reason: str) -> None:
        """Let the others end at once, and say why."""
        with self._lock:
            self._send_all(Ended(reason=reason))

    def close(self) -> None:
        """Unbind, giving what was sent some time to leave. Idempotent; call last."""
        if self._socket.closed:
            return
        self._pulse.stop()
        with self._lock:
            self._socket.close(linger=int(LAST_WORDS_S * 1000))
        self._end_context()

    def _end_context(self) -> None:
        if self._curve is not None:
            self._curve.close()
        self._context.term()

    def _missing(self) -> tuple[int, ...]:
        return tuple(rank for rank in range(1, self._place.size) if rank not in self._followers)

    def _unloaded(self) -> tuple[int, ...]:
        return tuple(rank for rank, one in self._followers.items() if one.sizes is None)

    def _least_replayed(self) -> int:
        return min(follower.num_replayed for follower in self._followers.values())

    def _turn(self, wait_s: float) -> None:
        with self._lock:
            self._look(wait_s)
        self._require_whole()

    def _require_whole(self) -> None:
        if self._lost_because is not None:
            raise RankGroupError(self._lost_because)

    def _tick(self) -> None:
        """What the pulse's thread does; nothing while the loop is here."""
        if self._lock.acquire(blocking=False):
            try:
                self._look(0)
            finally:
                self._lock.release()
        if self._lost_because is not None and not self._is_loss_told:
            self._is_loss_told = True
            self._on_lost(self._lost_because)

    def _look(self, wait_s: float) -> None:
        """Take what has arrived, show life, notice silence. A late look judges nobody."""
        self._pump(wait_s)
        now_s = self._clock()
        if now_s >= self._beat_at_s:
            self._send_all(Beat())
            self._beat_at_s = now_s + self._place.beat_s
        is_late = now_s - self._looked_s > self._place.heartbeat_limit_s / 2 + wait_s
        self._looked_s = now_s
        if is_late:
            return
        for rank, follower in self._followers.items():
            silent_s = now_s - follower.heard_s
            if silent_s > self._place.heartbeat_limit_s and not follower.has_parted:
                self._lose(rank, f"silent for {silent_s:.1f} s")

    def _pump(self, wait_s: float) -> None:
        if wait_s > 0:
            self._socket.poll(max(1, int(wait_s * 1000)), zmq.POLLIN)
        while True:
            try:
                frames = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._take(frames[0], b"".join(frames[1:]))

    def _take(self, peer: bytes, payload: bytes) -> None:
        try:
            message = self._decode(payload)
        except WireError as error:
            self._post(peer, Ended(reason=f"{error}; run all ranks of a group with one release"))
            return
        if isinstance(message, Hello):
            self._on_hello(peer, message)
            return
        for rank, follower in self._followers.items():
            if follower.peer == peer:
                follower.heard_s = self._clock()
                self._note(rank, follower, message)
                return
        self._post(peer, Ended(reason=_STRANGER))

    def _on_hello(self, peer: bytes, hello: Hello) -> None:
        if self._own is None:
            return
        reason = objection(hello, self._own)
        if reason is not None:
            logger.error("a rank is turned away", extra={"reason": reason})
            self._post(peer, Ended(reason=reason))
            return
        known = self._followers.get(hello.rank)
        if known is not None and known.peer == peer:
            known.heard_s = self._clock()
        elif self._has_begun:
            self._post(peer, Waiting(reason=_BEGUN))
        else:
            if known is not None:
                self._post(known.peer, Ended(reason=f"another rank {hello.rank} came after it"))
            self._followers[hello.rank] = _Follower(peer=peer, heard_s=self._clock())
            logger.info("a rank has come", extra={"rank": hello.rank, "of": self._place.size})

    def _note(self, rank: int, follower: _Follower, message: ToLeader) -> None:
        match message:
            case Loaded():
                follower.sizes = message.sizes
            case Replayed():
                follower.num_replayed = message.num_steps
            case DrainWish():
                self._wish = self._wish or AskedDrain(
                    rank=rank, mode=message.mode, deadline_s=message.deadline_s
                )
            case Farewell():
                follower.has_parted = True
            case Ended():
                self._lose(rank, message.reason)
            case _:
                pass

    def _forget_silent(self) -> None:
        now_s = self._clock()
        for rank, follower in list(self._followers.items()):
            if now_s - follower.heard_s > self._place.heartbeat_limit_s:
                logger.warning("a rank that had come is silent", extra={"rank": rank})
                del self._followers[rank]

    def _tell_waiting(self) -> None:
        now_s = self._clock()
        missing = self._missing()
        if missing and now_s >= self._beat_at_s:
            self._beat_at_s = now_s + self._place.beat_s
            reason = f"the leader waits for {_ranks(missing)} of {self._place.size}"
            self._send_all(Waiting(reason=reason))

    def _lose(self, rank: int, reason: str) -> None:
        if self._lost_because is None:
            self._lost_because = f"rank {rank} of {self._place.size} is lost: {reason}"

    def _send_all(self, message: ToFollower) -> None:
        self._post_all(self._encode(message))

    def _post_all(self, payload: bytes) -> None:
        for rank, follower in self._followers.items():
            if follower.has_parted:
                continue
            try:
                self._socket.send_multipart([follower.peer, payload], zmq.NOBLOCK)
            except zmq.ZMQError as error:
                if self._has_begun:
                    self._lose(rank, _unreachable(error))

    def _post(self, peer: bytes, message: ToFollower) -> None:
        with contextlib.suppress(zmq.ZMQError):
            self._socket.send_multipart([peer, self._encode(message)], zmq.NOBLOCK)


def _unreachable(error: zmq.ZMQError) -> str:
    if error.errno == zmq.EHOSTUNREACH:
        return "its connection has ended"
    return f"it reads nothing any more ({error.strerror})"


def _ranks(ranks: tuple[int, ...]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def waiting_text(place: RankPlace, missing: tuple[int, ...]) -> str:
    """Say who is waited for, for a log line."""
    return f"waits for {_ranks(missing)} of {place.size} at {place.address}"
