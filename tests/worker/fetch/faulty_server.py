"""A real HTTP server whose contents, delays and faults a test says; counts what it sends.

Owns ranges, ETags, cuts and limits of speed, as object stores and content servers have them. Not
here: what a hub, a registry or a bucket answers (hub_server.py, registry_server.py).
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

PIECE_BYTES = 1 << 14


@dataclass
class Reply:
    """An answer; a body is offered in ranges where it has an ETag."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    has_ranges: bool = False


@dataclass
class Request:
    """What was asked, as routes see it."""

    method: str
    path: str
    query: Mapping[str, str]
    headers: Mapping[str, str]


@dataclass
class Fault:
    """What goes wrong with the next request whose path holds ``path``, once for each of ``times``.

    ``reply`` replaces the answer; ``cut_after`` ends it after so many bytes of its body;
    ``change`` alters the body that is sent.
    """

    path: str
    times: int = 1
    reply: Reply | None = None
    cut_after: int | None = None
    change: Callable[[bytes], bytes] | None = None


class FaultyServer:
    """Serves on 127.0.0.1 until it is closed."""

    def __init__(self, route: Callable[[Request], Reply]) -> None:
        self.route = route
        self.faults: list[Fault] = []
        self.requests: list[Request] = []
        self.bytes_sent = 0
        self.has_sent = threading.Event()
        self.bytes_per_second: float | None = None
        self._lock = threading.Lock()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                outer._answer(self)

            do_HEAD = do_GET  # noqa: N815 - the library's name

            def log_message(self, *_: object) -> None:
                """Say nothing."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    @property
    def host(self) -> str:
        return f"127.0.0.1:{self._server.server_port}"

    @property
    def url(self) -> str:
        return f"http://{self.host}"

    def paths(self) -> list[str]:
        return [request.path for request in self.requests]

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(handler.path)
        request = Request(
            method=handler.command,
            path=parts.path,
            query={key: values[0] for key, values in parse_qs(parts.query).items()},
            headers={name.lower(): value for name, value in handler.headers.items()},
        )
        with self._lock:
            self.requests.append(request)
            fault = self._next_fault(request)
        reply = fault.reply if fault and fault.reply else self.route(request)
        status, body, headers = _ranged(request, reply)
        if fault and fault.change:
            body = fault.change(body)
        try:
            self._send(handler, status, headers, body, fault.cut_after if fault else None)
        except (BrokenPipeError, ConnectionResetError):
            handler.close_connection = True

    def _next_fault(self, request: Request) -> Fault | None:
        for fault in self.faults:
            if fault.times > 0 and fault.path in request.path and request.method == "GET":
                fault.times -= 1
                return fault
        return None

    def _send(
        self,
        handler: BaseHTTPRequestHandler,
        status: int,
        headers: Mapping[str, str],
        body: bytes,
        cut_after: int | None,
    ) -> None:
        handler.send_response(status)
        for name, value in ({"Content-Length": str(len(body))} | dict(headers)).items():
            handler.send_header(name, value)
        handler.end_headers()
        if handler.command == "HEAD":
            return
        end = len(body) if cut_after is None else min(cut_after, len(body))
        for start in range(0, end, PIECE_BYTES):
            piece = body[start : min(end, start + PIECE_BYTES)]
            if self.bytes_per_second:
                time.sleep(len(piece) / self.bytes_per_second)
            handler.wfile.write(piece)
            with self._lock:
                self.bytes_sent += len(piece)
            self.has_sent.set()
        if end < len(body):
            handler.close_connection = True


def _ranged(request: Request, reply: Reply) -> tuple[int, bytes, dict[str, str]]:
    headers = dict(reply.headers)
    wanted = request.headers.get("range")
    if not reply.has_ranges or reply.status != 200 or wanted is None:
        return reply.status, reply.body, headers
    condition, etag = request.headers.get("if-range"), headers.get("ETag")
    if condition is not None and condition != etag:
        return 200, reply.body, headers
    start = int(wanted.removeprefix("bytes=").partition("-")[0])
    size = len(reply.body)
    if start >= size:
        return 416, b"", {"Content-Range": f"bytes */{size}"}
    headers["Content-Range"] = f"bytes {start}-{size - 1}/{size}"
    return 206, reply.body[start:], headers


@contextmanager
def serving(route: Callable[[Request], Reply]) -> Iterator[FaultyServer]:
    """A server for the length of a test."""
    server = FaultyServer(route)
    try:
        yield server
    finally:
        server.close()
