"""Owns CURVE keys: reading key files, the allow-list, and the thread that answers ZAP questions.

Owns no messages. A server key pair proves the worker, a client key pair proves the tokenizer; the
allow-list is read again at each handshake, so that a key rotated in a mounted Secret is accepted
without a restart. Key files hold Z85 text of 40 characters, one key a line; ``client.pub`` may hold
the current and the next key.
"""

import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from zmq.auth.thread import ThreadAuthenticator

from mizzen_worker.contracts.errors import ConfigError
from mizzen_worker.contracts.operator_names import (
    CURVE_CLIENT_PUBLIC,
    CURVE_CLIENT_SECRET,
    CURVE_SERVER_PUBLIC,
    CURVE_SERVER_SECRET,
    FLAG_CURVE_DIR,
)

if TYPE_CHECKING:
    import zmq

logger = logging.getLogger(__name__)

_Z85_KEY = re.compile(rb"[0-9a-zA-Z.\-:+=^!/*?&<>()\[\]{}@%$#]{40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerKeys:
    """What a worker's ROUTER needs; ``allowed_file`` lists the clients' public keys."""

    secret: bytes
    public: bytes
    allowed_file: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientKeys:
    """What a tokenizer's DEALER needs."""

    secret: bytes
    public: bytes
    server_public: bytes


def read_server_keys(folder: Path) -> ServerKeys:
    """Read a worker's keys; raises ``ConfigError`` naming the file."""
    allowed_file = folder / CURVE_CLIENT_PUBLIC
    read_keys(allowed_file)
    return ServerKeys(
        secret=read_keys(folder / CURVE_SERVER_SECRET)[0],
        public=read_keys(folder / CURVE_SERVER_PUBLIC)[0],
        allowed_file=allowed_file,
    )


def read_client_keys(folder: Path) -> ClientKeys:
    """Read a tokenizer's keys; raises ``ConfigError`` naming the file."""
    return ClientKeys(
        secret=read_keys(folder / CURVE_CLIENT_SECRET)[0],
        public=read_keys(folder / CURVE_CLIENT_PUBLIC)[0],
        server_public=read_keys(folder / CURVE_SERVER_PUBLIC)[0],
    )


def read_rank_keys(folder: Path) -> tuple[ServerKeys, ClientKeys]:
    """Give the keys of ranks among themselves; raises ``ConfigError`` naming the file.

    Only the pods of one worker role have its server key, so that pair proves a rank to a rank: the
    leader lets in who has the very same, and no tokenizer.
    """
    public_file = folder / CURVE_SERVER_PUBLIC
    secret, public = read_keys(folder / CURVE_SERVER_SECRET)[0], read_keys(public_file)[0]
    return (
        ServerKeys(secret=secret, public=public, allowed_file=public_file),
        ClientKeys(secret=secret, public=public, server_public=public),
    )


def read_keys(path: Path) -> tuple[bytes, ...]:
    """Read the keys of one file, never showing them; raises ``ConfigError``."""
    try:
        lines = path.read_bytes().split()
    except OSError as error:
        msg = f"{FLAG_CURVE_DIR}: cannot read {path}: {error.strerror}; put the key file there"
        raise ConfigError(msg) from error
    if not lines or not all(_Z85_KEY.fullmatch(line) for line in lines):
        msg = (
            f"{FLAG_CURVE_DIR}: {path} holds no key; a key is 40 characters of Z85 text, one a line"
        )
        raise ConfigError(msg)
    return tuple(lines)


class AllowList:
    """Answers whether a client's key is known. Reads the file at each question."""

    def __init__(self, allowed_file: Path) -> None:
        self._allowed_file = allowed_file

    def callback(self, _domain: str, key: bytes) -> bool:
        """Tell whether a public key (Z85) may connect; the name is pyzmq's."""
        try:
            return key in read_keys(self._allowed_file)
        except ConfigError as error:
            logger.warning("no client can be let in", extra={"reason": str(error)})
            return False


class CurveServer:
    """The ZAP thread of one context; started before the socket binds."""

    def __init__(self, context: "zmq.Context[zmq.Socket[bytes]]", keys: ServerKeys) -> None:
        self._keys = keys
        self._authenticator = ThreadAuthenticator(context)
        self._authenticator.start()
        self._authenticator.configure_curve_callback("*", AllowList(keys.allowed_file))

    def protect(self, socket: "zmq.Socket[bytes]") -> None:
        """Make a socket that is not bound yet a CURVE server."""
        socket.curve_secretkey = self._keys.secret
        socket.curve_publickey = self._keys.public
        socket.curve_server = True

    def close(self) -> None:
        """End the thread."""
        self._authenticator.stop()


def protect_client(socket: "zmq.Socket[bytes]", keys: ClientKeys) -> None:
    """Make a socket that is not connected yet a CURVE client."""
    socket.curve_secretkey = keys.secret
    socket.curve_publickey = keys.public
    socket.curve_serverkey = keys.server_public
