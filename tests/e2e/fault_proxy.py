"""A proxy on loopback between one operator and the API server, and the faults it makes there.

It runs in a thread of its own. Rules are asked in their order for each request, and for streams
that are open again before anything more is passed on; the first one that answers decides. A
connection that fell silent stays so until the client gives it up, also when the rule is gone.
"""

import asyncio
import contextlib
import json
import random
import socket
import ssl
import struct
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_CHUNK_BYTES = 65536
_VERB_BY_METHOD = {"POST": "create", "PATCH": "patch", "PUT": "update", "DELETE": "delete"}
_REASON_BY_STATUS = {409: "Conflict", 429: "TooManyRequests", 500: "InternalError"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiRequest:
    """What a client asks the API server."""

    verb: str
    resource: str
    namespace: str
    name: str
    subresource: str
    label_selector: str
    is_dry_run: bool

    @property
    def is_watch(self) -> bool:
        return self.verb == "watch"

    @property
    def is_write(self) -> bool:
        """Whether it changes something; Leases and Events apart."""
        is_read = self.verb in ("get", "list", "watch") or self.is_dry_run
        return not is_read and self.resource not in ("leases", "events")


def parse_request(method: str, target: str) -> ApiRequest:
    """Read the request line of a call."""
    url = urllib.parse.urlsplit(target)
    query = dict(urllib.parse.parse_qsl(url.query))
    parts = [part for part in url.path.split("/") if part]
    parts = parts[2:] if parts[:1] == ["api"] else parts[3:]
    namespace = ""
    if parts[:1] == ["namespaces"] and len(parts) > 2:
        namespace, parts = parts[1], parts[2:]
    resource, name, subresource = (*parts, "", "", "")[:3]
    verb = _VERB_BY_METHOD.get(method, "get" if name else "list")
    return ApiRequest(
        verb="watch" if query.get("watch") == "true" else verb,
        resource=resource,
        namespace=namespace,
        name=name,
        subresource=subresource,
        label_selector=query.get("labelSelector", ""),
        is_dry_run="dryRun" in query,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The proxy answers instead of the API server, which is not asked."""

    status: int
    retry_after_s: int | None = None


@dataclass(frozen=True, slots=True)
class Silence:
    """Accepted, and never a byte more."""


@dataclass(frozen=True, slots=True)
class Cut:
    """The connection is reset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Delay:
    """Asked only after a while."""

    seconds: float


Fault = Answer | Silence | Cut | Delay
Rule = Callable[[ApiRequest], Fault | None]
Matches = Callable[[ApiRequest], bool]


def always(fault: Fault, matches: Matches = lambda request: True) -> Rule:
    """The fault for every request that matches."""
    return lambda request: fault if matches(request) else None


def share(fault: Fault, ratio: float, seed: int, matches: Matches = lambda request: True) -> Rule:
    """The fault for a share of the requests that match."""
    dice = random.Random(seed)
    return lambda request: fault if matches(request) and dice.random() < ratio else None


def first(number: int, fault: Fault, matches: Matches = lambda request: True) -> Rule:
    """The fault for the next so many requests that match."""
    left = number

    def decide(request: ApiRequest) -> Fault | None:
        nonlocal left
        if left <= 0 or not matches(request):
            return None
        left -= 1
        return fault

    return decide


class FaultProxy:
    """Between `http://127.0.0.1:port` and one API server; closed by `close`."""

    def __init__(self, *, api_port: int, authority: str) -> None:
        self._api_port = api_port
        self._context = ssl.create_default_context(cadata=authority)
        self._rules: list[Rule] = []
        self._open: dict[asyncio.Task[None], ApiRequest | None] = {}
        """By the task of each connection; None until it has asked."""
        self.requests: list[ApiRequest] = []
        """Every request so far."""
        self._after_write: list[Rule] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="fault-proxy")
        self._thread.start()
        starting = asyncio.run_coroutine_threadsafe(self._listen(), self._loop)
        self._server = starting.result(timeout=10)

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    @contextlib.contextmanager
    def fault(self, *rules: Rule) -> Iterator[None]:
        """The rules hold within the block."""
        self._rules.extend(rules)
        try:
            yield
        finally:
            for rule in rules:
                self._rules.remove(rule)

    @contextlib.contextmanager
    def after_write(self, rule: Rule) -> Iterator[None]:
        """Within the block the rule is asked when the API server has done a write.

        What it says befalls the answer.
        """
        self._after_write.append(rule)
        try:
            yield
        finally:
            self._after_write.remove(rule)

    def cut(self, matches: Matches = lambda request: True) -> None:
        """Reset all connections that are open for matching requests."""
        cutting = self._cut(lambda request: request is not None and matches(request))
        asyncio.run_coroutine_threadsafe(cutting, self._loop).result(timeout=10)

    def close(self) -> None:
        """Everything ends; connections are reset."""

        async def end() -> None:
            self._server.close()
            await self._cut(lambda request: True)
            for _ in range(10):
                # Transports close their sockets in a later turn of the loop.
                await asyncio.sleep(0)

        asyncio.run_coroutine_threadsafe(end(), self._loop).result(timeout=10)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    # -- in the proxy's thread ----------------------------------------------------------------

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", 0)

    async def _cut(self, matches: Callable[[ApiRequest | None], bool]) -> None:
        tasks = [task for task, request in self._open.items() if matches(request)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One request per connection: each answer says that the connection is closed."""
        task = asyncio.current_task()
        assert task is not None
        self._open[task] = None
        try:
            head = await reader.readuntil(b"\r\n\r\n")
            line, *fields = head.decode("latin-1").split("\r\n")
            method, target, _ = line.split(" ", 2)
            lengths = [f for f in fields if f.lower().startswith("content-length:")]
            body = await reader.readexactly(int(lengths[0].partition(":")[2])) if lengths else b""
            request = parse_request(method, target)
            self.requests.append(request)
            self._open[task] = request
            kept = [f for f in fields if f and not f.lower().startswith(("connection:", "host:"))]
            sent = "\r\n".join([line, "Host: localhost", "Connection: close", *kept, "", ""])
            await self._answer(request, sent.encode("latin-1") + body, reader, writer)
        except (OSError, asyncio.IncompleteReadError):
            pass
        except asyncio.CancelledError:
            _reset(writer)
        finally:
            del self._open[task]
            await _close(writer)

    async def _answer(
        self,
        request: ApiRequest,
        sent: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        match _decide(self._rules, request):
            case Answer() as answer:
                writer.write(_refusal(answer))
                await writer.drain()
                return
            case Silence():
                await _until_given_up(reader)
                return
            case Cut():
                _reset(writer)
                return
            case Delay(seconds=seconds):
                await asyncio.sleep(seconds)
        far_reader, far_writer = await self._connect()
        try:
            far_writer.write(sent)
            given_up = asyncio.ensure_future(_until_given_up(reader))
            passing = asyncio.ensure_future(self._pass_on(request, far_reader, writer))
            try:
                # A client that goes away leaves the API server's stream to be closed here.
                await asyncio.wait((given_up, passing), return_when=asyncio.FIRST_COMPLETED)
                if passing.done():
                    passing.result()
            finally:
                given_up.cancel()
                passing.cancel()
                await asyncio.gather(given_up, passing, return_exceptions=True)
        finally:
            far_writer.transport.abort()

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        connecting = asyncio.ensure_future(
            asyncio.open_connection("127.0.0.1", self._api_port, ssl=self._context)
        )
        try:
            return await asyncio.shield(connecting)
        except asyncio.CancelledError:
            # asyncio loses the socket of a connection that is given up half made.
            with contextlib.suppress(OSError):
                (await connecting)[1].transport.abort()
            raise

    async def _pass_on(
        self,
        request: ApiRequest,
        far_reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        is_first = True
        while data := await far_reader.read(_CHUNK_BYTES):
            fault = self._decide_midway(request, data, is_first=is_first)
            is_first = False
            if isinstance(fault, Silence):
                # The other future of the caller notices that the client goes.
                await asyncio.Event().wait()
            if isinstance(fault, Cut):
                _reset(writer)
                return
            writer.write(data)
            await writer.drain()

    def _decide_midway(self, request: ApiRequest, data: bytes, *, is_first: bool) -> Fault | None:
        """Before a piece of an answer is passed on; other answers than streams come whole."""
        if is_first:
            is_done = request.is_write and data.split(b" ", 2)[1].startswith(b"2")
            return _decide(self._after_write, request) if is_done else None
        return _decide(self._rules, request) if request.is_watch else None


def _decide(rules: list[Rule], request: ApiRequest) -> Fault | None:
    # A copy, made at once: the test's thread adds and removes.
    answers = (rule(request) for rule in list(rules))
    return next((fault for fault in answers if fault is not None), None)


async def _close(writer: asyncio.StreamWriter) -> None:
    writer.close()
    try:
        await writer.wait_closed()
    except OSError:
        return
    except asyncio.CancelledError:
        writer.transport.abort()
        raise


def _reset(writer: asyncio.StreamWriter) -> None:
    """Close at once and not in order: the client must not take it for the end of an answer."""
    at_once = struct.pack("ii", 1, 0)
    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, at_once)
    writer.transport.abort()


async def _until_given_up(reader: asyncio.StreamReader) -> None:
    """Wait until the client closes its side."""
    with contextlib.suppress(OSError):
        while await reader.read(_CHUNK_BYTES):
            pass


def _refusal(answer: Answer) -> bytes:
    reason = _REASON_BY_STATUS[answer.status]
    status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": answer.status}
    body = json.dumps({**status, "reason": reason, "message": f"made by a test: {reason}"})
    head = [f"HTTP/1.1 {answer.status} {reason}", "Content-Type: application/json"]
    if answer.retry_after_s is not None:
        head.append(f"Retry-After: {answer.retry_after_s}")
    head += [f"Content-Length: {len(body)}", "Connection: close", "", body]
    return "\r\n".join(head).encode()
