"""Owns one tokenizer process's relation to one worker: attach, heartbeats, credit, loss, again.

Owns no requests. States: connecting (Attach sent again until a Hello answers), attached (messages
flow, heartbeats both ways), lost (reported once, link replaced). Invariant: ``on_lost`` is called
exactly once for each ``on_attached``.
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from mizzen_worker.contracts.errors import WireError
from mizzen_worker.contracts.ids import InstanceId
from mizzen_worker.contracts.messages import (
    WIRE_VERSION,
    Attach,
    Heartbeat,
    Hello,
    Reply,
    TokenEvents,
    ToTokenizer,
    ToWorker,
)
from mizzen_worker.ipc.codec import to_tokenizer_codec, to_worker_codec
from mizzen_worker.ipc.link import Link, LinkLostError, OpenLink

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionTiming:
    """Intervals of a connection and its credit window in token events."""

    heartbeat_s: float = 1.0
    silence_limit_s: float = 10.0
    retry_s: float = 0.1
    refused_retry_s: float = 5.0
    credit_window: int = 4096


class ConnectionListener(Protocol):
    """Who is told; every call returns at once."""

    def on_attached(self, address: str, hello: Hello) -> None:
        """Note that a worker at this address takes work."""
        ...

    def on_message(self, address: str, message: ToTokenizer) -> None:
        """Take what a worker said."""
        ...

    def on_lost(self, address: str, reason: str) -> None:
        """Note that the worker is gone, and with it everything it ran for us."""
        ...


class _RefusedError(LinkLostError):
    """The worker does not want us."""


class WorkerConnection:
    """Keeps one worker attached for as long as ``run`` runs."""

    def __init__(
        self,
        address: str,
        *,
        open_link: OpenLink,
        instance_id: InstanceId,
        listener: ConnectionListener,
        clock: Callable[[], float],
        timing: ConnectionTiming = ConnectionTiming(),
    ) -> None:
        self._address = address
        self._open_link = open_link
        self._instance_id = instance_id
        self._listener = listener
        self._clock = clock
        self._timing = timing
        self._encode = to_worker_codec().encode
        self._decode = to_tokenizer_codec().decode
        self._link: Link | None = None
        self._is_attached = False
        self._consumed = 0
        self._last_seen_s = 0.0
        self._last_reason = ""

    @property
    def is_attached(self) -> bool:
        """Whether messages flow."""
        return self._is_attached

    def send(self, message: ToWorker) -> bool:
        """Queue a message for the attached worker; False when it is not attached or full."""
        return self._is_attached and self._post(message)

    async def run(self) -> None:
        """Connect, and connect again, until cancelled."""
        while True:
            retry_s = self._timing.retry_s
            self._link = self._open_link(self._address)
            try:
                await self._session(self._link)
            except LinkLostError as error:
                self._note_loss(str(error))
                if isinstance(error, _RefusedError):
                    retry_s = self._timing.refused_retry_s
            finally:
                self._detach("the connection was closed")
                self._link.close()
                self._link = None
            await asyncio.sleep(retry_s)

    async def _session(self, link: Link) -> None:
        self._last_seen_s = self._clock()
        self._consumed = 0
        while True:
            is_told = self._beat() or self._is_attached
            # A worker that is still loading is attached as soon as it listens.
            wait_s = self._timing.heartbeat_s if is_told else self._timing.retry_s
            beat_at_s = self._clock() + wait_s
            while (left_s := beat_at_s - self._clock()) > 0:
                try:
                    # Not wait_for: up to 3.11 it may swallow the cancellation of this task.
                    async with asyncio.timeout(left_s):
                        payloads = await link.receive()
                except TimeoutError:
                    break
                self._last_seen_s = self._clock()
                for payload in payloads:
                    self._take(payload)
            if self._clock() - self._last_seen_s > self._timing.silence_limit_s:
                msg = f"silent for {self._timing.silence_limit_s:.0f} s"
                raise LinkLostError(msg)

    def _beat(self) -> bool:
        """Say that this side is there; False when there is no connection, or no room."""
        if not self._is_attached:
            return self._post(
                Attach(
                    wire_version=WIRE_VERSION,
                    instance_id=self._instance_id,
                    credit=self._timing.credit_window,
                )
            )
        is_told = self._post(Heartbeat(credit=self._consumed))
        if is_told:
            self._consumed = 0
        return is_told

    def _take(self, payload: bytes) -> None:
        try:
            message = self._decode(payload)
        except WireError as error:
            logger.warning(
                "refused a malformed message",
                extra={"worker": self._address, "detail": str(error)},
            )
            return
        match message:
            case Hello():
                self._on_hello(message)
                return
            case Reply(control_id=0, is_ok=False):
                raise _RefusedError(message.message)
            case _ if not self._is_attached:
                return
            case TokenEvents():
                self._consumed += len(message.events)
        self._listener.on_message(self._address, message)
        if self._consumed >= self._timing.credit_window // 2:
            self._beat()

    def _on_hello(self, hello: Hello) -> None:
        if hello.wire_version != WIRE_VERSION:
            msg = (
                f"wire version {hello.wire_version} is not {WIRE_VERSION}: run tokenizers and "
                "workers of one release"
            )
            raise _RefusedError(msg)
        if not self._is_attached:
            self._is_attached = True
            self._last_reason = ""
            self._listener.on_attached(self._address, hello)

    def _post(self, message: ToWorker) -> bool:
        return self._link is not None and self._link.send(self._encode(message))

    def _note_loss(self, reason: str) -> None:
        if reason != self._last_reason:
            level = logging.WARNING if self._is_attached else logging.INFO
            event = "worker lost" if self._is_attached else "worker not reached yet"
            logger.log(level, event, extra={"worker": self._address, "reason": reason})
            self._last_reason = reason
        self._detach(reason)

    def _detach(self, reason: str) -> None:
        if self._is_attached:
            self._is_attached = False
            self._listener.on_lost(self._address, reason)
