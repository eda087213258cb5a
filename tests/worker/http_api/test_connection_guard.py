"""Slow and endless clients, on raw sockets."""

import asyncio
import json
import socket
from itertools import pairwise
from pathlib import Path

import pytest
from tests.worker.front_stack import Stack

from mizzen_worker.http_api.connection_guard import MAX_HEADER_BYTES, GuardedProtocol
from mizzen_worker.http_api.engine import HttpLimits

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def connect(stack: Stack) -> Streams:
    return await asyncio.open_connection("127.0.0.1", int(stack.url.rpartition(":")[2]))


async def rest_of(streams: Streams) -> bytes:
    reader, writer = streams
    try:
        async with asyncio.timeout(10):
            return await reader.read()
    finally:
        writer.close()


@pytest.mark.parametrize("begin", [b"", b"GET /health HT", b"GET /health HTTP/1.1\r\nHost: a\r\n"])
def test_headers_that_do_not_arrive_are_408(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begin: bytes
) -> None:
    monkeypatch.setattr(GuardedProtocol, "header_wait_s", 0.1)

    async def scenario() -> None:
        async with Stack(tmp_path) as stack:
            streams = await connect(stack)
            streams[1].write(begin)
            assert (await rest_of(streams)).startswith(b"HTTP/1.1 408 ")

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("request_", "rest"),
    [
        (b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n", b"\r\n"),
        (b"POST /nowhere HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\nabc", b"def"),
    ],
)
def test_what_begins_no_request_does_not_keep_a_connection_open(
    tmp_path: Path, request_: bytes, rest: bytes
) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path) as stack:
            reader, writer = await connect(stack)
            writer.write(request_)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 ")
            writer.write(rest)
            # It ends by the server's clock of idle connections.
            async with asyncio.timeout(60):
                await reader.read()
            writer.close()

    asyncio.run(scenario())


def test_the_second_request_of_a_connection_has_its_own_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GuardedProtocol, "header_wait_s", 0.3)

    async def scenario() -> None:
        async with Stack(tmp_path) as stack:
            streams = await connect(stack)
            whole = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
            streams[1].write(whole)
            assert (await streams[0].readuntil(b"ok\n")).startswith(b"HTTP/1.1 200")
            streams[1].write(whole + b"GET /health HTTP/1.1\r\n")
            rest = await rest_of(streams)
            assert rest.startswith(b"HTTP/1.1 200")
            assert b"HTTP/1.1 408 " in rest

    asyncio.run(scenario())


def test_headers_without_end_are_431(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path) as stack:
            streams = await connect(stack)
            streams[1].write(b"GET /health HTTP/1.1\r\n")
            for index in range(MAX_HEADER_BYTES // 1000 + 2):
                streams[1].write(f"X-{index}: {'a' * 1000}\r\n".encode())
            assert (await rest_of(streams)).startswith(b"HTTP/1.1 431 ")

    asyncio.run(scenario())


def test_a_body_that_does_not_arrive_is_408(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path, limits=HttpLimits(body_wait_s=0.1)) as stack:
            for path, kind in ((b"/generate", "native"), (b"/v1/messages", "anthropic")):
                streams = await connect(stack)
                streams[1].write(
                    b"POST " + path + b" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
                    b"Content-Length: 100\r\n\r\n{"
                )
                head, _, body = (await rest_of(streams)).partition(b"\r\n\r\n")
                assert head.startswith(b"HTTP/1.1 408 ")
                assert "did not arrive within" in json.loads(body)["error"]["message"]
                assert ("type" in json.loads(body)) == (kind == "anthropic")

    asyncio.run(scenario())


def test_a_reader_that_stops_reading_costs_a_bounded_buffer_and_loses_no_text(
    tmp_path: Path,
) -> None:
    """Its stream stands still, its request goes on, and what it missed comes in one piece."""

    async def scenario() -> None:
        async with Stack(tmp_path) as stack:
            body = json.dumps(
                {
                    "text": "abc",
                    "stream": True,
                    "sampling_params": {
                        "max_new_tokens": 450,
                        "ignore_eos": True,
                        "temperature": 0,
                    },
                }
            ).encode()
            loop = asyncio.get_running_loop()
            received: list[bytes] = []

            class Client(asyncio.Protocol):
                def data_received(self, data: bytes) -> None:
                    received.append(data)

            transport, _ = await loop.create_connection(
                Client, "127.0.0.1", int(stack.url.rpartition(":")[2])
            )
            transport.pause_reading()
            transport.write(
                b"POST /generate HTTP/1.1\r\nHost: a\r\nConnection: close\r\n"
                b"Content-Type: application/json\r\nContent-Length: "
                + str(len(body)).encode()
                + b"\r\n\r\n"
                + body
            )
            await stack.until(lambda: stack.num_running == 1)
            await stack.until(lambda: stack.num_running == 0)
            transport.resume_reading()
            await stack.until(lambda: b"[DONE]" in b"".join(received[-2:]))
            text = b"".join(received)
            expected = stack.expected_text("abc", max_new_tokens=450, ignore_eos=True)
            assert json.dumps(expected, ensure_ascii=False).encode()[1:-1] in text
            transport.close()

    asyncio.run(scenario())


H2C = b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAEAAEAA\r\n"
WEBSOCKET = (
    b"Connection: keep-alive, Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
)


@pytest.mark.parametrize("offer", [H2C, WEBSOCKET], ids=["h2c", "websocket"])
@pytest.mark.parametrize("is_chunked", [False, True])
@pytest.mark.parametrize("cuts", [(), (60,), (190, 260), (-1,), "bytes"], ids=str)
def test_an_offered_upgrade_is_declined_and_the_request_is_served(
    tmp_path: Path, *, offer: bytes, is_chunked: bool, cuts: tuple[int, ...] | str
) -> None:
    """As Java's client sends every first request; body and what follows arrive whole."""
    body = b'{"prompt": "hello"}'
    framed = b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
    if is_chunked:
        framed = b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(body), body)
    post = b"POST /tokenize HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    get = b"GET /health HTTP/1.1\r\nHost: a\r\n"
    sent = post + offer + framed + get + offer + b"\r\n" + get + b"Connection: close\r\n\r\n"
    places = range(1, len(sent)) if isinstance(cuts, str) else [cut % len(sent) for cut in cuts]

    async def scenario() -> None:
        async with Stack(tmp_path) as stack:
            streams = await connect(stack)
            streams[1].transport.get_extra_info("socket").setsockopt(
                socket.IPPROTO_TCP, socket.TCP_NODELAY, 1
            )
            for begin, end in pairwise([0, *places, len(sent)]):
                streams[1].write(sent[begin:end])
                await asyncio.sleep(0)
            answers = await rest_of(streams)
            assert answers.count(b"HTTP/1.1 200 OK\r\n") == 3, answers
            assert answers.count(b"HTTP/1.1 ") == 3, answers
            ids = stack.vocabulary.tokenizer.encode("hello").ids
            assert json.dumps(ids, separators=(",", ":")).encode() in answers
            assert answers.count(b"ok\n") == 2

    asyncio.run(scenario())


@pytest.mark.parametrize("line", [b"CONNECT a:80", b"CONNECT /health", b"GET //[ "])
def test_what_is_no_request_is_400_or_404_and_never_hangs(tmp_path: Path, line: bytes) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path) as stack:
            streams = await connect(stack)
            streams[1].write(line + b" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n" + b"\r\n")
            assert (await rest_of(streams))[:12] in {
                b"HTTP/1.1 400",
                b"HTTP/1.1 404",
                b"HTTP/1.1 405",
            }

    asyncio.run(scenario())


def test_endless_headers_with_an_upgrade_are_431(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with Stack(tmp_path) as stack:
            streams = await connect(stack)
            long = b"".join(b"X-%d: %s\r\n" % (i, b"a" * 1000) for i in range(70))
            streams[1].write(b"GET /health HTTP/1.1\r\n" + H2C + long + b"\r\n")
            answer = await rest_of(streams)
            assert answer.startswith(b"HTTP/1.1 431 ")
            assert answer.count(b"HTTP/1.1 ") == 1

    asyncio.run(scenario())


def test_small_pieces_are_sent_at_once(tmp_path: Path) -> None:
    """Otherwise every second piece of an answer waits for the client's word of the first."""

    async def scenario() -> None:
        async with Stack(tmp_path) as stack:
            _, writer = await connect(stack)
            await stack.until(lambda: bool(stack.connections))
            (connection,) = stack.connections
            served = connection.transport.get_extra_info("socket")
            assert served.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            writer.close()

    asyncio.run(scenario())
