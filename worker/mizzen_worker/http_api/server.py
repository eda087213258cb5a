"""Owns a bound port and the HTTP server on it, public and admin alike; owns no routes.

Binding comes before anything slow, so that a taken port is said at once.
"""

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn

from mizzen_worker.contracts.errors import ConfigError
from mizzen_worker.http_api.connection_guard import GuardedProtocol

_BACKLOG = 2048
_UNREAD_LIMIT_MS = 120_000
"""So long a client may leave what was sent to it unread; then the kernel ends its connection."""


class Server(uvicorn.Server):
    """Serves in a loop that somebody else runs, and leaves signals to the launcher."""

    @property
    def num_connections(self) -> int:
        """Open ones; those on which nothing comes after an answer close by themselves in 5 s."""
        return len(self.server_state.connections)

    def stop_listening(self) -> None:
        """Take no new connection; those that are open are served on."""
        for listening in self.servers:
            listening.close()

    def send_clients_away(self) -> None:
        """Serve on, but end every connection by the answer to the next request on it.

        A connection that were closed before might be closed just when a client asks on it.
        """
        close = (b"connection", b"close")
        # The server makes its headers anew out of the configuration every second.
        self.config.encoded_headers.append(close)
        self.server_state.default_headers = [*self.server_state.default_headers, close]

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Take no signals."""
        yield


def make_server(app: Any, *, grace_s: int) -> Server:
    """Make the server of an ASGI application; at its end, answers have ``grace_s`` to finish."""
    return Server(
        uvicorn.Config(
            app,
            http=GuardedProtocol,
            ws="none",
            log_config=None,
            access_log=False,
            lifespan="off",
            timeout_graceful_shutdown=grace_s,
            server_header=False,
        )
    )


def listen(host: str, port: int, *, flag: str) -> socket.socket:
    """Take a port; raises ``ConfigError`` naming the flag when somebody else has it."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Named, for asyncio sends small pieces at once (TCP_NODELAY) only on sockets that say TCP.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNREAD_LIMIT_MS)
    try:
        listener.bind((host, port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        msg = f"{flag}: {host}:{port} cannot be bound: {error.strerror}; give another port"
        raise ConfigError(msg) from error
    return listener


def listen_privately(path: Path) -> socket.socket:
    """Bind a unix socket; who can reach it is the folder's business."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(_BACKLOG)
    return listener
