"""Owns the bounds on a connection before a request is whole: seconds and bytes of its headers.

Owns no routes and no bodies (``body_limit.py``). A connection on which nothing begins is closed;
one that sends its headers byte by byte, or without end, gets a 408 or 431 and is closed.
An offer to go on in another protocol (``Upgrade: h2c``, ``websocket``) is declined by serving the
request as what it is.
"""

import asyncio

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

MAX_HEADER_BYTES = 64 * 1024
_INVALID = "Invalid HTTP request received."


class GuardedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with a clock on the headers; after an answer uvicorn's own clock runs."""

    header_wait_s = 20.0

    _header_clock: asyncio.TimerHandle | None = None
    _num_header_bytes = 0
    _is_cut = False
    _rest_ends_at_s: float | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the clock."""
        super().connection_made(transport)
        self._start_clock()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the clock."""
        self._stop_clock()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Drop what comes after the connection was given up."""
        if self._is_cut:
            return
        self._unset_keepalive_if_required()
        try:
            self._feed(data)
        except httptools.HttpParserError:
            self.logger.warning(_INVALID)
            self.send_400_response(_INVALID)
        self._rest_again()

    def _rest_again(self) -> None:
        """Start an idle connection's clock anew where what came began no request.

        Such are the rest of a body that was answered before its end, and empty lines.
        """
        # There is no cycle before the first request, whatever its type says.
        is_answered = getattr(self.cycle, "response_complete", False)
        if is_answered and self._header_clock is None and not self.transport.is_closing():
            now_s = self.loop.time()
            if self._rest_ends_at_s is None:
                self._rest_ends_at_s = now_s + self.header_wait_s
            self.timeout_keep_alive_task = self.loop.call_at(
                min(self._rest_ends_at_s, now_s + self.timeout_keep_alive),
                self.timeout_keep_alive_handler,
            )

    def on_message_begin(self) -> None:
        """Start the clock of another request of the same connection."""
        super().on_message_begin()
        self._rest_ends_at_s = None
        self._num_header_bytes = 0
        self._start_clock()

    def on_url(self, url: bytes) -> None:
        """Count."""
        super().on_url(url)
        self._count(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count."""
        super().on_header(name, value)
        self._count(len(name) + len(value))

    def on_headers_complete(self) -> None:
        """Stop the clock: the body has its own."""
        self._stop_clock()
        if not self._is_cut and not self._is_upgrade_offered():
            super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Pass on; a request that offers an upgrade is read anew, and is not complete here."""
        if not self._is_cut and not self._is_upgrade_offered():
            super().on_message_complete()

    def _feed(self, data: bytes) -> None:
        """Parse; the parser stops behind headers that offer an upgrade, and takes no body then."""
        while not self._is_cut:
            try:
                self.parser.feed_data(data)
            except httptools.HttpParserUpgrade as stopped:
                if not self._is_upgrade_offered():
                    return
                data = self._head_without_upgrade() + data[stopped.args[0] :]
                self.parser = httptools.HttpRequestParser(self)
                self.parser.set_dangerous_leniencies(lenient_data_after_close=True)
            else:
                return

    def _is_upgrade_offered(self) -> bool:
        """Say whether the request asks for an upgrade and makes sense without; CONNECT does not."""
        return self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT"

    def _head_without_upgrade(self) -> bytes:
        """Write the request's line and headers as its client would who offers nothing."""
        version = self.parser.get_http_version().encode()
        lines = [self.parser.get_method() + b" " + self.url + b" HTTP/" + version]
        lines += [name + b": " + value for name, value in self.headers if name != b"upgrade"]
        return b"\r\n".join([*lines, b"", b""])

    def _start_clock(self) -> None:
        if self._header_clock is None:
            self._header_clock = self.loop.call_later(self.header_wait_s, self._give_up)

    def _stop_clock(self) -> None:
        if self._header_clock is not None:
            self._header_clock.cancel()
            self._header_clock = None

    def _count(self, num_bytes: int) -> None:
        self._num_header_bytes += num_bytes
        if self._num_header_bytes > MAX_HEADER_BYTES and not self._is_cut:
            self._cut(b"431 Request Header Fields Too Large", b"the headers are too long")

    def _give_up(self) -> None:
        self._header_clock = None
        self._cut(b"408 Request Timeout", b"the headers did not arrive in time")

    def _cut(self, status: bytes, reason: bytes) -> None:
        self._is_cut = True
        if not self.transport.is_closing():
            length = str(len(reason)).encode()
            self.transport.write(
                b"HTTP/1.1 " + status + b"\r\ncontent-type: text/plain; charset=utf-8\r\n"
                b"content-length: " + length + b"\r\nconnection: close\r\n\r\n" + reason
            )
            self.transport.close()
