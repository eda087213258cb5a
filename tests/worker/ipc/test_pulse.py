"""A long step does not make fronts believe that its worker is gone."""

import asyncio
import threading
from pathlib import Path

from mizzen_worker.contracts.ids import InstanceId
from mizzen_worker.contracts.messages import WIRE_VERSION, Attach, Heartbeat
from mizzen_worker.ipc.codec import to_tokenizer_codec, to_worker_codec
from mizzen_worker.ipc.link import Link
from mizzen_worker.ipc.pulse import Pulse
from mizzen_worker.ipc.zmq_channel import ZmqEndpoint
from mizzen_worker.ipc.zmq_link import ZmqLinks

ATTACH = Attach(wire_version=WIRE_VERSION, instance_id=InstanceId("t"), credit=2)
encode, decode = to_worker_codec().encode, to_tokenizer_codec().decode


async def _attach(endpoint: ZmqEndpoint, link: Link) -> None:
    async with asyncio.timeout(10):
        while not link.send(encode(ATTACH)):  # noqa: ASYNC110 - a link has no other word for it
            await asyncio.sleep(0.002)
        while not endpoint.receive(10, 0):  # noqa: ASYNC110 - nor an endpoint
            await asyncio.sleep(0.002)


async def _heard(link: Link, limit_s: float) -> list[object]:
    found: list[object] = []
    try:
        async with asyncio.timeout(limit_s):
            while not found:
                found.extend(decode(payload) for payload in await link.receive())
    except TimeoutError:
        pass
    return found


def test_peers_hear_from_a_worker_whose_loop_is_away_and_only_then(tmp_path: Path) -> None:
    now = [0.0]
    address = f"ipc://{tmp_path}/w"

    async def scenario() -> None:
        endpoint = ZmqEndpoint(address, clock=lambda: now[0])
        links = ZmqLinks()
        link = links.open_link(address)
        await _attach(endpoint, link)
        endpoint.beat_for_loop(2.0)
        assert await _heard(link, 0.2) == []
        now[0] = 2.0
        beating = threading.Thread(target=endpoint.beat_for_loop, args=(2.0,))
        beating.start()
        assert await _heard(link, 10) == [Heartbeat()]
        beating.join()
        endpoint.receive(10, 0)
        endpoint.beat_for_loop(2.0)
        assert await _heard(link, 0.2) == []
        link.close()
        endpoint.close()
        endpoint.beat_for_loop(0.0)
        links.close()

    asyncio.run(scenario())


def test_a_loop_that_waits_for_messages_speaks_for_itself(tmp_path: Path) -> None:
    endpoint = ZmqEndpoint(f"ipc://{tmp_path}/w", clock=lambda: 0.0)
    waiting = threading.Thread(target=endpoint.receive, args=(1, 1.0))
    waiting.start()
    try:
        while not endpoint._lock.locked() and waiting.is_alive():
            pass
        endpoint.beat_for_loop(0.0)  # Returns although the lock is taken.
        assert waiting.is_alive()
    finally:
        waiting.join()
        endpoint.close()


def test_a_pulse_beats_until_it_is_stopped() -> None:
    beaten = threading.Semaphore(0)
    pulse = Pulse(beaten.release, interval_s=0.001)
    pulse.start()
    for _ in range(3):
        assert beaten.acquire(timeout=10)
    pulse.stop()
    while beaten.acquire(blocking=False):
        pass
    assert not beaten.acquire(timeout=0.02)


def test_a_pulse_that_never_began_can_be_stopped() -> None:
    Pulse(lambda: None, interval_s=1).stop()
