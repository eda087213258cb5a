"""Measures the wire: ``python -m tests.bench.bench_ipc`` (operator:worker on the path).

Round trip of a small message over ipc:// through both real ends, and token events per second from
an endpoint through its outbox, codec and socket into a connection.
"""

import argparse
import asyncio
import statistics
import tempfile
import threading
import time
from pathlib import Path

from tests.bench.report import publish

from mizzen_worker.contracts.ids import Generation, InstanceId, RequestId, TokenId
from mizzen_worker.contracts.messages import (
    WIRE_VERSION,
    Attach,
    Control,
    ControlVerb,
    Heartbeat,
    Reply,
    TokenEvent,
    TokenEvents,
)
from mizzen_worker.ipc.codec import to_tokenizer_codec, to_worker_codec
from mizzen_worker.ipc.peers import MAX_CREDIT
from mizzen_worker.ipc.zmq_channel import ZmqEndpoint
from mizzen_worker.ipc.zmq_link import ZmqLink, ZmqLinks

ENCODE, DECODE = to_worker_codec().encode, to_tokenizer_codec().decode


def _serve(
    endpoint: ZmqEndpoint, stop: threading.Event, events: TokenEvents, num_steps: int
) -> None:
    """Answer controls; on a heartbeat send every step's events as fast as the socket takes them."""
    while not stop.is_set():
        for peer, message in endpoint.receive(100, 0.2):
            if isinstance(message, Control):
                endpoint.send(peer, Reply(control_id=message.control_id, is_ok=True, message=""))
            elif isinstance(message, Heartbeat):
                for _ in range(num_steps):
                    endpoint.send(peer, events)
    endpoint.close()


async def _send(link: ZmqLink, message: object) -> None:
    while not link.send(ENCODE(message)):  # type: ignore[arg-type]  # noqa: ASYNC110
        await asyncio.sleep(0.001)


async def _round_trips(link: ZmqLink, count: int) -> list[float]:
    times = []
    for number in range(count):
        begun = time.perf_counter()
        await _send(link, Control(control_id=number, verb=ControlVerb.DESCRIBE))
        for payload in await link.receive():
            DECODE(payload)
        times.append(time.perf_counter() - begun)
    return times


async def _events_per_s(link: ZmqLink, num_events: int) -> float:
    await _send(link, Heartbeat(credit=MAX_CREDIT))
    begun, got = time.perf_counter(), 0
    while got < num_events:
        for payload in await link.receive():
            message = DECODE(payload)
            got += len(message.events) if isinstance(message, TokenEvents) else 0
    return num_events / (time.perf_counter() - begun)


def _step(num_requests: int) -> TokenEvents:
    return TokenEvents(
        events=tuple(
            TokenEvent(RequestId(f"{index:032x}"), Generation(0), 7, (TokenId(12345),))
            for index in range(num_requests)
        )
    )


async def _measure(num_requests: int, num_steps: int, num_trips: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        address = f"ipc://{folder}/w"
        endpoint = ZmqEndpoint(address, clock=time.monotonic)
        stop = threading.Event()
        thread = threading.Thread(
            target=_serve, args=(endpoint, stop, _step(num_requests), num_steps)
        )
        thread.start()
        links = ZmqLinks()
        link = links.open_link(address)
        try:
            await _send(
                link, Attach(wire_version=WIRE_VERSION, instance_id=InstanceId("b"), credit=0)
            )
            await _round_trips(link, 100)
            trips = await _round_trips(link, num_trips)
            rate = await _events_per_s(link, num_requests * num_steps)
        finally:
            link.close()
            links.close()
            stop.set()
            thread.join()
    return {
        "round trip, median µs": statistics.median(trips) * 1e6,
        "round trip, 99th percentile µs": statistics.quantiles(trips, n=100)[98] * 1e6,
        f"token events/s, {num_requests} a step": rate,
    }


def main() -> None:
    """Measure, print, and write JSON where asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--trips", type=int, default=2000)
    parser.add_argument("--json", type=Path, default=Path("out/bench/ipc.json"))
    given = parser.parse_args()
    results = asyncio.run(_measure(given.requests, given.steps, given.trips))
    publish(
        "ipc", [{"measured": name, "value": value} for name, value in results.items()], given.json
    )


if __name__ == "__main__":
    main()
