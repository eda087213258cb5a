"""Owns how processes of the local cluster ask each other for something: one JSON line each way.

Unix sockets by path: they work across network namespaces, and root alone may open them. Not here:
what can be asked (keeper.py, cell.py).
"""

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


class ControlError(RuntimeError):
    """The other side refused, or is not there."""


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """Yield a name for a socket that fits the kernel's 107 bytes, however long the path is."""
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def listen(path: Path) -> socket.socket:
    """Return a listening socket at a path that nobody uses."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    with _short(path) as name:
        listener.bind(name)
    path.chmod(0o600)
    listener.listen(16)
    return listener


def connect(path: Path) -> socket.socket:
    """Connect to a listener; raises OSError when nobody listens."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _short(path) as name:
            connection.connect(name)
    except OSError:
        connection.close()
        raise
    return connection


def ask(path: Path, verb: str, *, timeout_s: float = 120.0, **arguments: object) -> Any:
    """Send one question and return the answer; raises ControlError with the other side's reason."""
    try:
        with connect(path) as connection:
            connection.settimeout(timeout_s)
            connection.sendall(json.dumps({"verb": verb, **arguments}).encode() + b"\n")
            with connection.makefile("rb") as stream:
                line = stream.readline()
    except OSError as error:
        raise ControlError(f"{verb}: nobody answers at {path}: {error}") from error
    if not line:
        raise ControlError(f"{verb}: the cluster ended before it answered")
    answer = json.loads(line)
    if "error" in answer:
        raise ControlError(answer["error"])
    return answer.get("result")


def encode_answer(*, result: object = None, error: str | None = None) -> bytes:
    """Return an answer's line."""
    return json.dumps({"result": result} if error is None else {"error": error}).encode() + b"\n"
