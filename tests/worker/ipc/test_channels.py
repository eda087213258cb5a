"""What both channels must do: the in-memory and the ZMQ one pass the same tests."""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import msgspec
import pytest
import zmq

from mizzen_worker.contracts.errors import ConfigError
from mizzen_worker.contracts.ids import Generation, InstanceId, PeerId, RequestId, TokenId
from mizzen_worker.contracts.messages import (
    WIRE_VERSION,
    Abort,
    Attach,
    Capacity,
    Heartbeat,
    Hello,
    Load,
    ModelIdentity,
    Reply,
    TokenEvent,
    TokenEvents,
    ToTokenizer,
    ToWorker,
)
from mizzen_worker.ipc.codec import to_tokenizer_codec, to_worker_codec
from mizzen_worker.ipc.connection import ConnectionTiming, WorkerConnection
from mizzen_worker.ipc.curve import ServerKeys, read_client_keys, read_server_keys
from mizzen_worker.ipc.link import Link, LinkLostError, OpenLink, check_address
from mizzen_worker.ipc.memory_channel import MemoryEndpoint, MemoryHub
from mizzen_worker.ipc.pool import ConnectionSet, WorkerPool, plan_addresses
from mizzen_worker.ipc.zmq_channel import ZmqEndpoint
from mizzen_worker.ipc.zmq_link import ZmqLinks

LOAD = Load(running_requests=0, queued_requests=0, kv_tokens_used=0, is_draining=False)
HELLO = Hello(
    wire_version=WIRE_VERSION,
    instance_id=InstanceId("w"),
    identity=ModelIdentity(served_name="m", fingerprint="f", tokenizer="t", resume_identity="r"),
    capacity=Capacity(max_running_requests=1, max_queued_requests=1, kv_tokens=1, context_length=1),
    load=LOAD,
)
ATTACH = Attach(wire_version=WIRE_VERSION, instance_id=InstanceId("t"), credit=2)
Endpoint = MemoryEndpoint | ZmqEndpoint
encode, decode = to_worker_codec().encode, to_tokenizer_codec().decode


@dataclass
class Bench:
    """One kind of channel: how to bind and how to connect."""

    bind: Callable[[], Endpoint]
    open_link: OpenLink
    address: str
    clock: list[float] = field(default_factory=lambda: [0.0])


@pytest.fixture(params=["memory", "zmq"])
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    clock = [0.0]
    if request.param == "memory":
        hub = MemoryHub(clock=lambda: clock[0])
        yield Bench(
            bind=lambda: hub.bind("memory://w"),
            open_link=hub.open_link,
            address="memory://w",
            clock=clock,
        )
        return
    address = f"ipc://{tmp_path}/w"
    links = ZmqLinks()
    yield Bench(
        bind=lambda: ZmqEndpoint(address, clock=lambda: clock[0]),
        open_link=links.open_link,
        address=address,
        clock=clock,
    )
    links.close()


async def _received(endpoint: Endpoint, count: int) -> list[tuple[PeerId, ToWorker]]:
    found: list[tuple[PeerId, ToWorker]] = []
    async with asyncio.timeout(10):
        while len(found) < count:
            found.extend(endpoint.receive(100, 0))
            await asyncio.sleep(0.002)
    return found


async def _sent(link: Link, message: ToWorker) -> None:
    async with asyncio.timeout(10):
        while not link.send(encode(message)):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.002)


async def _answers(endpoint: Endpoint, link: Link, count: int) -> list[ToTokenizer]:
    found: list[ToTokenizer] = []
    async with asyncio.timeout(10):
        while len(found) < count:
            endpoint.receive(100, 0)
            try:
                async with asyncio.timeout(0.01):
                    found.extend(decode(payload) for payload in await link.receive())
            except TimeoutError:
                continue
    return found


async def _attached(bench: Bench, endpoint: Endpoint) -> tuple[Link, PeerId]:
    link = bench.open_link(bench.address)
    await _sent(link, ATTACH)
    ((peer, message),) = await _received(endpoint, 1)
    assert message == ATTACH
    return link, peer


def _event(start: int) -> TokenEvents:
    return TokenEvents(
        events=(TokenEvent(RequestId("r"), Generation(0), start, (TokenId(start),)),)
    )


def test_messages_arrive_both_ways_in_order(bench: Bench) -> None:
    async def scenario() -> None:
        endpoint = bench.bind()
        link, peer = await _attached(bench, endpoint)
        aborts = [Abort(request_id=RequestId(str(i)), generation=Generation(0)) for i in range(50)]
        for abort in aborts:
            await _sent(link, abort)
        assert [message for _, message in await _received(endpoint, 50)] == aborts
        endpoint.send(peer, HELLO)
        endpoint.send(peer, _event(0))
        assert await _answers(endpoint, link, 2) == [HELLO, _event(0)]
        link.close()
        endpoint.close()

    asyncio.run(scenario())


def test_credit_holds_tokens_back_until_granted(bench: Bench) -> None:
    async def scenario() -> None:
        endpoint = bench.bind()
        link, peer = await _attached(bench, endpoint)
        for start in range(4):
            endpoint.send(peer, _event(start))
        assert await _answers(endpoint, link, 2) == [_event(0), _event(1)]
        await _sent(link, Heartbeat(credit=1))
        (merged,) = await _answers(endpoint, link, 1)
        assert isinstance(merged, TokenEvents)
        assert merged.events[0].token_ids == (2, 3)
        link.close()
        endpoint.close()

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b"\x80\x04garbage", "are no message"),
        (encode(Heartbeat()), "attach first"),
        (msgspec.msgpack.encode({**msgspec.to_builtins(ATTACH), "wire_version": 99}), "is not 2"),
    ],
    ids=["garbage", "unattached", "version"],
)
def test_wrong_messages_are_answered_and_not_passed_on(
    bench: Bench, payload: bytes, reason: str
) -> None:
    async def scenario() -> None:
        endpoint = bench.bind()
        link = bench.open_link(bench.address)
        async with asyncio.timeout(10):
            while not link.send(payload):  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.002)
        (answer,) = await _answers(endpoint, link, 1)
        assert isinstance(answer, Reply)
        assert not answer.is_ok
        assert reason in answer.message
        link.close()
        endpoint.close()

    asyncio.run(scenario())


def test_silent_peer_is_lost_once_and_its_messages_are_dropped(bench: Bench) -> None:
    async def scenario() -> None:
        endpoint = bench.bind()
        link, peer = await _attached(bench, endpoint)
        for bench.clock[0] in range(11):  # Looks every second, as a loop does.
            assert list(endpoint.lost_peers()) == []
        bench.clock[0] = 11.0
        assert list(endpoint.lost_peers()) == [peer]
        assert list(endpoint.lost_peers()) == []
        endpoint.send(peer, HELLO)
        link.close()
        endpoint.close()

    asyncio.run(scenario())


def test_link_is_lost_when_the_endpoint_dies(bench: Bench) -> None:
    async def scenario() -> None:
        endpoint = bench.bind()
        link, _ = await _attached(bench, endpoint)
        endpoint.close()
        async with asyncio.timeout(10):
            with pytest.raises(LinkLostError):
                await link.receive()
        assert not link.send(encode(Heartbeat()))
        link.close()

    asyncio.run(scenario())


@dataclass
class _Listener:
    events: list[str] = field(default_factory=list)

    def on_attached(self, address: str, hello: Hello) -> None:
        self.events.append(f"attached {hello.instance_id}")

    def on_message(self, address: str, message: ToTokenizer) -> None:
        self.events.append(type(message).__name__)

    def on_lost(self, address: str, reason: str) -> None:
        self.events.append("lost")


def test_connection_attaches_beats_grants_credit_and_comes_back(bench: Bench) -> None:
    async def scenario() -> None:
        listener = _Listener()
        connection = WorkerConnection(
            bench.address,
            open_link=bench.open_link,
            instance_id=InstanceId("t"),
            listener=listener,
            clock=time.monotonic,
            timing=ConnectionTiming(heartbeat_s=0.05, retry_s=0.01, credit_window=4),
        )
        running = asyncio.create_task(connection.run())
        for life in (1, 2):
            endpoint = bench.bind()
            peer = await _serve_attach(endpoint)
            assert listener.events[-1] == "attached w"
            assert connection.is_attached
            for start in range(20):
                endpoint.send(peer, _event(start))
            await _pump(endpoint, partial(_has_tokens, listener, 3 * life))
            assert not endpoint.lost_peers()
            endpoint.close()
            async with asyncio.timeout(10):
                while listener.events[-1] != "lost":  # noqa: ASYNC110 - as above
                    await asyncio.sleep(0.002)
            assert not connection.send(Heartbeat())
        assert listener.events.count("attached w") == listener.events.count("lost") == 2
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scenario())


def test_a_worker_that_begins_to_listen_is_attached_before_the_next_beat(bench: Bench) -> None:
    async def scenario() -> None:
        connection = WorkerConnection(
            bench.address,
            open_link=bench.open_link,
            instance_id=InstanceId("t"),
            listener=_Listener(),
            clock=time.monotonic,
            timing=ConnectionTiming(heartbeat_s=60, silence_limit_s=120, retry_s=0.01),
        )
        running = asyncio.create_task(connection.run())
        await asyncio.sleep(0.05)
        endpoint = bench.bind()
        await _serve_attach(endpoint)
        assert connection.is_attached
        endpoint.close()
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)

    asyncio.run(scenario())


def _has_tokens(listener: _Listener, least: int) -> bool:
    return listener.events.count("TokenEvents") >= least


async def _serve_attach(endpoint: Endpoint) -> PeerId:
    async with asyncio.timeout(10):
        while True:
            for peer, message in endpoint.receive(100, 0):
                if isinstance(message, Attach):
                    endpoint.send(peer, HELLO)
                    await asyncio.sleep(0.05)
                    return peer
            await asyncio.sleep(0.002)


async def _pump(endpoint: Endpoint, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not condition():
            endpoint.receive(100, 0)
            await asyncio.sleep(0.002)


def test_pool_follows_names_and_keeps_attached_connections() -> None:
    assert plan_addresses(["a", "b"], [("b", True), ("c", True), ("d", False)]) == (("a",), ("d",))

    async def scenario() -> None:
        hub = MemoryHub(clock=time.monotonic)
        answers = [("memory://a", "memory://b"), OSError("no name"), ("memory://b",)]

        async def resolve(_name: str) -> tuple[str, ...]:
            answer = answers.pop(0)
            if isinstance(answer, OSError):
                raise answer
            return answer

        def connect(address: str) -> WorkerConnection:
            return WorkerConnection(
                address,
                open_link=hub.open_link,
                instance_id=InstanceId("t"),
                listener=_Listener(),
                clock=time.monotonic,
            )

        connections = ConnectionSet()
        pool = WorkerPool(names=["n"], connect=connect, connections=connections, resolve=resolve)
        await pool.refresh()
        assert sorted(connections.by_address) == ["memory://a", "memory://b"]
        await pool.refresh()
        assert sorted(connections.by_address) == ["memory://a", "memory://b"]
        await pool.refresh()
        assert sorted(connections.by_address) == ["memory://b"]

    asyncio.run(scenario())


def _keys(folder: Path) -> Path:
    folder.mkdir()
    for role in ("server", "client"):
        public, secret = zmq.curve_keypair()
        (folder / f"{role}.pub").write_bytes(public)
        (folder / f"{role}.key").write_bytes(secret + b"\n")
    return folder


def test_curve_lets_known_clients_in_and_nobody_else(tmp_path: Path) -> None:
    async def scenario() -> None:
        folder, strangers = _keys(tmp_path / "keys"), _keys(tmp_path / "strangers")
        keys = read_server_keys(folder)
        endpoint = ZmqEndpoint("tcp://127.0.0.1:*", clock=time.monotonic, keys=keys)
        known_links = ZmqLinks(keys=read_client_keys(folder))
        known = known_links.open_link(endpoint.address)
        await _sent(known, ATTACH)
        assert len(await _received(endpoint, 1)) == 1
        known.close()
        known_links.close()

        stranger_keys = read_client_keys(strangers)
        mixed = type(stranger_keys)(
            secret=stranger_keys.secret,
            public=stranger_keys.public,
            server_public=read_client_keys(folder).server_public,
        )
        for links in (ZmqLinks(keys=mixed), ZmqLinks(keys=stranger_keys), ZmqLinks()):
            link = links.open_link(endpoint.address)
            async with asyncio.timeout(10):
                with pytest.raises(LinkLostError):
                    await link.receive()
            link.close()
            links.close()
        assert endpoint.receive(10, 0.1) == []

        allowed = folder / "client.pub"
        allowed.write_bytes(allowed.read_bytes() + b"\n" + stranger_keys.public)
        rotated_links = ZmqLinks(keys=mixed)
        rotated = rotated_links.open_link(endpoint.address)
        await _sent(rotated, ATTACH)
        assert len(await _received(endpoint, 1)) == 1
        rotated.close()
        rotated_links.close()
        endpoint.close()

    asyncio.run(scenario())


def test_key_files_are_checked_and_never_shown(tmp_path: Path) -> None:
    folder = _keys(tmp_path / "keys")
    (folder / "server.key").write_text("secret but too short")
    with pytest.raises(ConfigError, match=r"server\.key holds no key") as raised:
        read_server_keys(folder)
    assert "too short" not in str(raised.value)
    (folder / "client.pub").unlink()
    with pytest.raises(ConfigError, match=r"client\.pub: No such file"):
        read_server_keys(folder)
    assert isinstance(ServerKeys, type)


@pytest.mark.parametrize(
    ("address", "has_keys", "insecure", "refusal"),
    [
        ("ipc:///run/w", False, False, None),
        ("tcp://127.0.0.1:1", False, False, None),
        ("tcp://localhost:1", False, False, None),
        ("tcp://[::1]:1", False, False, None),
        ("tcp://10.0.0.1:1", True, False, None),
        ("tcp://10.0.0.1:1", False, True, None),
        ("tcp://10.0.0.1:1", False, False, "without protection"),
        ("tcp://0.0.0.0:1", False, False, "without protection"),
        ("tcp://workers:1", False, False, "without protection"),
        ("tcp://127.0.0.1", True, True, "is no address"),
        ("tcp://127.0.0.1:x", True, True, "is no address"),
        ("http://127.0.0.1:1", True, True, "is no address"),
        ("tcp://[127.0.0.1:1]:2", True, True, "is no address"),
        ("", True, True, "is no address"),
    ],
)
def test_unprotected_tcp_stays_on_this_machine(
    address: str, *, has_keys: bool, insecure: bool, refusal: str | None
) -> None:
    def check() -> None:
        check_address(address, flag="--listen", has_keys=has_keys, is_insecure_allowed=insecure)

    if refusal is None:
        check()
        return
    with pytest.raises(ConfigError, match=refusal):
        check()
