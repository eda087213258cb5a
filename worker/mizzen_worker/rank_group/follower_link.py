"""Owns a follower's end of a group: asks to be let in, takes steps in order, shows life.

Owns no runner and no collectives. Until the group's life begins the leader may be late or start
again: it is asked anew until the deadline. After that its silence, its word or its end is the end
of this rank. Invariant: as in ``leader_link``, socket and books are used with the lock held.
"""

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import zmq
from zmq.utils.monitor import recv_monitor_message

from mizzen_worker.contracts.drain import DrainMode
from mizzen_worker.contracts.errors import RankGroupError, WireError
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
from mizzen_worker.ipc.codec import MAX_STEP_BYTES, to_follower_codec, to_leader_codec
from mizzen_worker.ipc.curve import ClientKeys, protect_client
from mizzen_worker.ipc.pulse import Pulse
from mizzen_worker.ipc.zmq_channel import HIGH_WATER_MARK
from mizzen_worker.ipc.zmq_link import FAILURE_TO_REASON
from mizzen_worker.rank_group.leader_link import MAX_LAG_STEPS
from mizzen_worker.rank_group.place import RankPlace

logger = logging.getLogger(__name__)

Order = Begin | Step | Farewell
"""What a follower acts on."""

_TURN_S = 0.2
_IDLE_S = 0.5
"""Between two looks at a connection over which nothing comes."""
_EXPLAIN_TURN_S = 0.05
_TOLD_EACH = MAX_LAG_STEPS // 4
"""Steps of which the leader is told at once: often enough not to hold it up."""
_LAST_WORDS_S = 0.5
"""An end of the connection is told before the last of what came over it."""
_NO_ANSWER = "the leader does not answer"


class FollowerLink:
    """The end of rank 1 or higher. ``clock`` and ``on_lost`` as in ``LeaderLink``."""

    def __init__(
        self,
        place: RankPlace,
        *,
        keys: ClientKeys | None,
        clock: Callable[[], float],
        on_lost: Callable[[str], None],
    ) -> None:
        """Begin to connect; ZMQ goes on trying."""
        self._place = place
        self._clock = clock
        self._on_lost = on_lost
        self._encode = to_leader_codec().encode
        self._decode = to_follower_codec().decode
        self._orders: deque[Order] = deque()
        self._welcome: Welcome | None = None
        self._lost_because: str | None = None
        self._is_loss_told = False
        self._is_over = False
        self._reason = _NO_ANSWER
        self._num_replayed = 0
        self._beat_at_s = 0.0
        self._cut_s: float | None = None
        self._heard_s = clock()
        self._looked_s = clock()
        self._lock = threading.Lock()
        self._pulse = Pulse(self._tick, interval_s=place.beat_s)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._socket = self._context.socket(zmq.DEALER)
        self._socket.linger = 0
        self._socket.sndhwm = HIGH_WATER_MARK
        self._socket.rcvhwm = HIGH_WATER_MARK
        self._socket.setsockopt(zmq.MAXMSGSIZE, MAX_STEP_BYTES)
        self._socket.setsockopt(zmq.IPV6, 1)
        # What is said before there is a connection would wait, and arrive all at once.
        self._socket.setsockopt(zmq.IMMEDIATE, 1)
        if keys is not None:
            protect_client(self._socket, keys)
        events = int(zmq.EVENT_DISCONNECTED)
        for event in FAILURE_TO_REASON:
            events |= event
        self._monitor: zmq.Socket[Any] = self._socket.get_monitor_socket(events)
        self._socket.connect(place.address)

    @property
    def num_replayed(self) -> int:
        """Steps launched so far."""
        return self._num_replayed

    def join(self, hello: Hello, on_wait: Callable[[str], None]) -> Welcome:
        """Ask until the group begins; ``on_wait`` is told again and again what is waited for.

        Raises ``RankGroupError`` when the leader refuses, or at the deadline.
        """
        ends_at_s = self._clock() + self._place.rendezvous_timeout_s
        while self._welcome is None:
            if self._clock() >= ends_at_s:
                msg = (
                    f"{self._place.name} waited {self._place.rendezvous_timeout_s:g} s for"
                    f" {self._place.address}: {self._reason}; look at the other ranks' logs, or"
                    " raise --rendezvous-timeout"
                )
                raise RankGroupError(msg)
            on_wait(self._reason)
            with self._lock:
                self._ask(hello)
        self._cut_s = None
        self._pulse.start()
        return self._welcome

    def receive(self) -> Order | None:
        """Give the next order, None after a moment without one; raises ``RankGroupError``."""
        with self._lock:
            if not self._orders:
                self._look(min(_IDLE_S, self._place.beat_s))
            if self._lost_because is not None:
                raise RankGroupError(self._lost_because)
            return self._orders.popleft() if self._orders else None

    def explain(self, wait_s: float) -> None:
        """Raise ``RankGroupError`` if the leader turns out to be lost: why a collective failed."""
        ends_at_s = self._clock() + wait_s
        while self._clock() < ends_at_s:
            with self._lock:
                self._look(_EXPLAIN_TURN_S)
                if self._lost_because is not None:
                    raise RankGroupError(self._lost_because)

    def loaded(self, sizes: Sizes) -> None:
        """Tell the leader that this rank can take steps."""
        self._say(Loaded(sizes=sizes))

    def replayed(self) -> None:
        """Note a step that was launched; the leader is told of several at once."""
        self._num_replayed += 1
        if self._num_replayed % _TOLD_EACH == 0:
            self._say(Replayed(num_steps=self._num_replayed))

    def wish_drain(self, mode: DrainMode, deadline_s: float) -> None:
        """Ask the leader to drain the whole group; its farewell follows."""
        self._say(DrainWish(mode=mode, deadline_s=deadline_s))

    def part(self) -> None:
        """Answer the leader's farewell."""
        self._say(Farewell())

    def fail(self, reason: str) -> None:
        """Tell the leader why this rank ends."""
        self._say(Ended(reason=reason))

    def close(self) -> None:
        """Give what was said some time to leave. Idempotent; call last."""
        if self._socket.closed:
            return
        self._pulse.stop()
        with self._lock:
            self._socket.disable_monitor()
            self._monitor.close(linger=0)
            self._socket.close(linger=int(LAST_WORDS_S * 1000))
        self._context.term()

    def _ask(self, hello: Hello) -> None:
        now_s = self._clock()
        if now_s >= self._beat_at_s and self._post(hello):
            self._beat_at_s = now_s + self._place.beat_s
        self._pump(_TURN_S)
        self._look_at_connection()
        if self._lost_because is not None:
            raise RankGroupError(self._lost_because)
        if now_s - self._heard_s > self._place.heartbeat_limit_s:
            self._reason = _NO_ANSWER

    def _look_at_connection(self) -> None:
        with contextlib.suppress(zmq.Again):
            while True:
                event = int(recv_monitor_message(self._monitor, zmq.NOBLOCK)["event"])
                if event == zmq.EVENT_DISCONNECTED:
                    self._cut_s = self._cut_s or self._clock()
                else:
                    self._reason, self._heard_s = FAILURE_TO_REASON[event], self._clock()

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
        """As the leader's."""
        now_s = self._clock()
        if now_s >= self._beat_at_s:
            self._beat_at_s = now_s + self._place.beat_s
            self._post(Beat())
        self._pump(wait_s)
        self._look_at_connection()
        now_s = self._clock()
        if self._cut_s is not None and now_s - self._cut_s > _LAST_WORDS_S and not self._is_over:
            self._lose("its connection has ended")
        is_late = now_s - self._looked_s > self._place.heartbeat_limit_s / 2 + wait_s
        self._looked_s = now_s
        silent_s = now_s - self._heard_s
        if silent_s > self._place.heartbeat_limit_s and not is_late and not self._is_over:
            self._lose(f"silent for {silent_s:.1f} s")

    def _pump(self, wait_s: float) -> None:
        if wait_s > 0:
            self._socket.poll(max(1, int(wait_s * 1000)), zmq.POLLIN)
        while True:
            try:
                payload = self._socket.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            self._heard_s = self._clock()
            self._take(payload)

    def _take(self, payload: bytes) -> None:
        try:
            message: ToFollower = self._decode(payload)
        except WireError as error:
            self._lose(f"{error}; run all ranks of a group with one release")
            return
        match message:
            case Waiting():
                self._reason = message.reason
            case Welcome():
                self._welcome = self._welcome or message
            case Ended():
                self._lost_because = self._lost_because or message.reason
            case Begin() | Step() | Farewell():
                self._is_over = isinstance(message, Farewell)
                self._orders.append(message)
            case Beat():
                pass

    def _lose(self, reason: str) -> None:
        if self._lost_because is None:
            self._lost_because = f"rank 0 of {self._place.size} is lost: {reason}"

    def _say(self, message: ToLeader) -> None:
        with self._lock:
            self._post(message)

    def _post(self, message: ToLeader) -> bool:
        """Send; False where there is no connection: the leader's silence will tell."""
        try:
            self._socket.send(self._encode(message), zmq.NOBLOCK)
        except zmq.ZMQError:
            return False
        return True
