"""The proxy itself, before a small TLS server: what it passes on and what it makes of it."""

import asyncio
import http.client
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path

import pytest
from tests.e2e.fault_proxy import (
    Answer,
    Cut,
    FaultProxy,
    Silence,
    first,
    parse_request,
)

PODS = "/api/v1/namespaces/a/pods"


class Server:
    """Answers each request with its body; a watch gets one line per `send`."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self.loop = asyncio.new_event_loop()
        self._context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        self._context.load_cert_chain(certificate, key)
        self._streams: list[asyncio.StreamWriter] = []
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self.port = self._run(self._listen())

    def send(self) -> None:
        async def write() -> None:
            for stream in self._streams:
                stream.write(b"line\n")

        self._run(write())

    def close(self) -> None:
        async def end() -> None:
            self._server.close()
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

        self._run(end())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    def _run(self, work):
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(timeout=30)

    async def _listen(self) -> int:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._context)
        return self._server.sockets[0].getsockname()[1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.CancelledError):
            await self._answer(reader, writer)
        writer.transport.abort()
        with suppress(OSError):
            await writer.wait_closed()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        lengths = [f for f in head.split("\r\n") if f.lower().startswith("content-length:")]
        body = await reader.readexactly(int(lengths[0].split()[1])) if lengths else b"none"
        assert "Connection: close" in head
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")
        if "watch=true" in head:
            writer.write(b"line\n")
            self._streams.append(writer)
            await reader.read()
        writer.write(body)
        await writer.drain()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("pki")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-noenc", "-keyout", "key", "-out", "crt", "-subj", "/CN=test", "-days", "2",
         "-addext", "subjectAltName=IP:127.0.0.1"],
        cwd=folder, check=True, capture_output=True,
    )  # fmt: skip
    started = Server(folder / "crt", folder / "key")
    started.authority = (folder / "crt").read_text()
    yield started
    started.close()


@pytest.fixture
def proxy(server: Server) -> Iterator[FaultProxy]:
    started = FaultProxy(api_port=server.port, authority=server.authority)
    yield started
    started.close()


@contextmanager
def answer(
    proxy: FaultProxy, method: str, target: str, body: str | None = None
) -> Iterator[http.client.HTTPResponse]:
    connection = http.client.HTTPConnection(proxy.address.removeprefix("http://"), timeout=30)
    with closing(connection):
        connection.request(method, target, body)
        with connection.getresponse() as found:
            yield found


def ask(proxy: FaultProxy, method: str, target: str, body: str | None = None):
    with answer(proxy, method, target, body) as found:
        return found.status, found.headers["Retry-After"], found.read().decode()


@contextmanager
def watch(proxy: FaultProxy) -> Iterator[http.client.HTTPResponse]:
    with answer(proxy, "GET", f"{PODS}?watch=true") as found:
        assert found.readline() == b"line\n"
        yield found


@pytest.mark.parametrize(
    ("method", "target", "expected"),
    [
        ("GET", "/api/v1/pods?labelSelector=a%2C%21b", ("list", "pods", "", "", "a,!b", False)),
        ("GET", f"{PODS}?watch=true", ("watch", "pods", "a", "", "", False)),
        ("GET", f"{PODS}/x", ("get", "pods", "a", "x", "", False)),
        ("POST", f"{PODS}?dryRun=All", ("create", "pods", "a", "", "", False)),
        ("PATCH", "/apis/apps/v1/namespaces/a/deployments/x/status",
         ("patch", "deployments", "a", "x", "", True)),
        ("PUT", "/apis/coordination.k8s.io/v1/namespaces/a/leases/x",
         ("update", "leases", "a", "x", "", False)),
        ("DELETE", "/api/v1/namespaces/a", ("delete", "namespaces", "", "a", "", True)),
    ],
)  # fmt: skip
def test_requests_are_told_apart(method: str, target: str, expected) -> None:
    found = parse_request(method, target)
    assert expected == (
        found.verb, found.resource, found.namespace, found.name, found.label_selector,
        found.is_write,
    )  # fmt: skip


def test_requests_pass_and_are_remembered(proxy: FaultProxy) -> None:
    assert ask(proxy, "POST", PODS, "body") == (200, None, "body")
    assert ask(proxy, "GET", PODS) == (200, None, "none")
    assert [request.verb for request in proxy.requests] == ["create", "list"]


def test_a_rule_answers_as_often_as_it_says_and_where_it_matches(proxy: FaultProxy) -> None:
    throttled = Answer(status=429, retry_after_s=3)
    with proxy.fault(first(2, throttled, lambda request: request.verb == "create")):
        assert ask(proxy, "GET", PODS)[0] == 200
        assert [ask(proxy, "POST", PODS, "x")[:2] for _ in range(3)] == [
            (429, "3"),
            (429, "3"),
            (200, None),
        ]


def test_a_stream_falls_silent_while_new_ones_speak(proxy: FaultProxy, server: Server) -> None:
    is_asked = threading.Event()

    def silence(request):
        is_asked.set()
        return Silence()

    with watch(proxy) as silenced:
        with proxy.fault(silence):
            server.send()
            assert is_asked.wait(timeout=30)
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            silenced.read()
    with watch(proxy) as spoken:
        server.send()
        assert spoken.readline() == b"line\n"


def test_connections_are_cut(proxy: FaultProxy) -> None:
    with proxy.fault(first(1, Cut())), pytest.raises(ConnectionResetError):
        ask(proxy, "GET", PODS)
    with watch(proxy) as stream:
        proxy.cut(lambda request: not request.is_watch)
        proxy.cut(lambda request: request.is_watch)
        with pytest.raises(ConnectionResetError):
            stream.read()


def test_an_answer_is_lost_after_the_write_was_done(proxy: FaultProxy) -> None:
    done = []

    def cut(request):
        done.append(request.verb)
        return Cut()

    with proxy.after_write(cut), pytest.raises(ConnectionResetError):
        ask(proxy, "POST", PODS, "x")
    assert done == ["create"]
