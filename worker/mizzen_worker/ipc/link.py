"""Owns the protocol of one tokenizer-side connection, and which addresses may be used unprotected.

Owns no sockets. A link carries bytes to one worker endpoint and back; it lives from one successful
or failed connection to its loss and is then replaced, so nothing sent on it reaches a later peer.
"""

import ipaddress
from collections.abc import Callable, Sequence
from typing import Protocol
from urllib.parse import urlsplit

from mizzen_worker.contracts.errors import ConfigError, WorkerError


class LinkLostError(WorkerError):
    """The connection is gone; the link is of no further use."""


class Link(Protocol):
    """One connection to a worker. Owned by one asyncio task."""

    def send(self, payload: bytes) -> bool:
        """Queue bytes without waiting; False when there is no connection or no room."""
        ...

    async def receive(self) -> Sequence[bytes]:
        """Wait for and take everything that arrived; raises ``LinkLostError``."""
        ...

    def close(self) -> None:
        """Drop the connection and what is queued on it. Idempotent."""
        ...


OpenLink = Callable[[str], Link]
"""Begins to connect to an address; never waits."""


def is_loopback(host: str) -> bool:
    """Tell whether a host is this machine without asking a name server."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_address(address: str, *, flag: str, has_keys: bool, is_insecure_allowed: bool) -> None:
    """Refuse malformed addresses, and tcp that leaves the machine without CURVE keys."""
    msg = f"{flag}: {address!r} is no address; write tcp://HOST:PORT or ipc:///PATH"
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError as error:
        raise ConfigError(msg) from error
    if parts.scheme == "ipc" and (parts.path or parts.netloc):
        return
    if parts.scheme != "tcp" or not parts.hostname or port is None:
        raise ConfigError(msg)
    if has_keys or is_insecure_allowed or is_loopback(parts.hostname):
        return
    msg = (
        f"{flag}: {address} leaves this machine without protection; give --curve-dir with the key "
        "files, or --insecure where the network itself is trusted"
    )
    raise ConfigError(msg)


def replay_address(address: str) -> str:
    """Say where questions about missed cache events go: the next port, or ``.replay``."""
    return _beside(address, 1, "replay")


def rank_events_address(address: str, rank: int) -> str:
    """Say where one of several ranks tells its cache events: the first at the address itself."""
    return address if rank == 0 else _beside(address, 2 * rank, str(rank))


def _beside(address: str, distance: int, suffix: str) -> str:
    parts = urlsplit(address)
    if parts.scheme != "tcp":
        return f"{address}.{suffix}"
    if not parts.port or parts.port + distance > 65535:
        msg = (
            f"--cache-events: {address} needs a port from 1 on with free ones after it, two a rank;"
            " the second is for replays"
        )
        raise ConfigError(msg)
    host, _, _ = address.rpartition(":")
    return f"{host}:{parts.port + distance}"
