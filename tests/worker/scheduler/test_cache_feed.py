"""A real loop tells what it caches; a subscriber that comes late and loses messages ends right."""

import random
from pathlib import Path

import pytest
import zmq
from tests.worker.cache.event_mirror import EventMirror
from tests.worker.scheduler.harness import Harness, make_submit

from mizzen_worker.contracts.errors import ConfigError
from mizzen_worker.contracts.ids import InstanceId
from mizzen_worker.ipc.codec import cache_question_codec, from_cache_codec
from mizzen_worker.ipc.curve import (
    ClientKeys,
    protect_client,
    read_client_keys,
    read_server_keys,
)
from mizzen_worker.ipc.event_publisher import EventPublisher
from mizzen_worker.ipc.link import rank_events_address, replay_address
from mizzen_worker.scheduler.cache_feed import CacheFeed

_PATIENCE_MS = 10_000


class _Worker:
    """One life of a worker that tells its events."""

    def __init__(self, address: str, *, life: str = "one", num_kept: int = 40) -> None:
        self.harness = Harness(page_size=4, num_pages=64, num_kept_cache_events=num_kept)
        self.publisher = EventPublisher(address)
        cache = self.harness.loop.cache
        assert cache.event_log is not None
        self.feed = CacheFeed(
            cache=cache, log=cache.event_log, publisher=self.publisher, instance_id=InstanceId(life)
        )
        self.dice = random.Random(7)
        self.num_submitted = 0

    @property
    def hashes(self) -> set[bytes]:
        return set(self.harness.loop.cache.hashes())

    def submit(self) -> None:
        shared = [1 + number % 50 for number in range(self.dice.choice((0, 12, 30)))]
        own = [self.dice.randrange(1, 60) for _ in range(self.dice.randint(1, 40))]
        name = f"r{self.num_submitted}"
        self.num_submitted += 1
        self.harness.submit(make_submit(name, [*shared, *own], max_new_tokens=10))

    def turn(self) -> None:
        self.harness.step()
        self.feed.turn()


class _Subscriber:
    """Reads events from a socket, forgetting some, and asks where it finds that it lacks some."""

    def __init__(self, address: str, keys: ClientKeys | None = None) -> None:
        self.mirror = EventMirror()
        self.dice = random.Random(11)
        self.num_lost = 0
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._events = self._context.socket(zmq.SUB)
        self._events.subscribe(b"")
        self._questions = self._context.socket(zmq.DEALER)
        for socket, place in (
            (self._events, address),
            (self._questions, replay_address(address)),
        ):
            socket.linger = 0
            if keys is not None:
                protect_client(socket, keys)
            socket.connect(place)
        self._decode = from_cache_codec().decode

    def read(self, worker: _Worker) -> None:
        while self._events.poll(0):
            payload = self._events.recv()
            if self.dice.random() < 0.3:
                self.num_lost += 1
            elif not self.mirror.take(self._decode(payload)):
                self.ask(worker.feed)

    def ask(self, feed: CacheFeed) -> None:
        self._questions.send(cache_question_codec().encode(self.mirror.question()))
        for _ in range(_PATIENCE_MS):
            feed.turn()
            if self._questions.poll(1):
                self.mirror.take_replay(self._decode(self._questions.recv()))
                return
        raise AssertionError("no answer")

    def is_heard(self, feed: CacheFeed, patience_ms: int) -> bool:
        self._questions.send(cache_question_codec().encode(self.mirror.question()))
        for _ in range(patience_ms):
            feed.turn()
            if self._questions.poll(1):
                return True
        return False

    def close(self) -> None:
        self._context.destroy(linger=0)


def test_a_subscriber_that_comes_late_and_loses_messages_ends_with_what_is_cached(
    tmp_path: Path,
) -> None:
    address = f"ipc://{tmp_path}/events"
    worker = _Worker(address)
    for _ in range(60):
        worker.submit()
        worker.turn()
    subscriber = _Subscriber(address)
    mirror = subscriber.mirror
    subscriber.ask(worker.feed)
    assert mirror.num_snapshots == 1
    assert mirror.hashes == worker.hashes != set()
    for number in range(300):
        if number % 3 == 0:
            worker.submit()
        worker.turn()
        subscriber.read(worker)
    subscriber.ask(worker.feed)
    assert mirror.hashes == worker.hashes
    assert mirror.num_replayed > 0
    assert subscriber.num_lost > 0

    # Away for longer than the ring remembers: a snapshot and no replay.
    num_snapshots = mirror.num_snapshots
    for _ in range(200):
        worker.submit()
        worker.turn()
    subscriber.ask(worker.feed)
    assert mirror.num_snapshots == num_snapshots + 1
    assert mirror.hashes == worker.hashes
    worker.harness.run()
    subscriber.ask(worker.feed)
    assert mirror.hashes == worker.hashes
    worker.publisher.close()

    # Another life of the worker numbers from 0 again, and is not taken for the same.
    second = _Worker(address, life="two")
    second.submit()
    second.harness.run()
    subscriber.ask(second.feed)
    assert mirror.hashes == second.hashes
    assert mirror.instance_id == "two"
    second.publisher.close()
    subscriber.close()


def test_a_question_that_is_none_is_not_answered_and_hurts_nobody(tmp_path: Path) -> None:
    address = f"ipc://{tmp_path}/events"
    worker = _Worker(address)
    subscriber = _Subscriber(address)
    subscriber._questions.send(b"\xc1 no message")
    worker.submit()
    worker.harness.run()
    subscriber.ask(worker.feed)
    assert subscriber.mirror.hashes == worker.hashes != set()
    worker.publisher.close()
    subscriber.close()


def test_events_take_the_keys_of_the_worker(tmp_path: Path) -> None:
    folders = []
    for name in ("keys", "strangers"):
        folder = tmp_path / name
        folder.mkdir()
        for role in ("server", "client"):
            public, secret = zmq.curve_keypair()
            (folder / f"{role}.pub").write_bytes(public)
            (folder / f"{role}.key").write_bytes(secret)
        folders.append(folder)
    ours, strangers = folders
    address = f"ipc://{tmp_path}/events"
    worker = _Worker(f"ipc://{tmp_path}/unused")
    publisher = EventPublisher(address, keys=read_server_keys(ours))
    cache = worker.harness.loop.cache
    assert cache.event_log is not None
    feed = CacheFeed(
        cache=cache, log=cache.event_log, publisher=publisher, instance_id=InstanceId("one")
    )
    stranger_keys = read_client_keys(strangers)
    mixed = ClientKeys(
        secret=stranger_keys.secret,
        public=stranger_keys.public,
        server_public=read_client_keys(ours).server_public,
    )
    for keys in (None, mixed):
        stranger = _Subscriber(address, keys)
        assert not stranger.is_heard(feed, patience_ms=200)
        stranger.close()
    known = _Subscriber(address, read_client_keys(ours))
    worker.submit()
    worker.harness.run()
    known.ask(feed)
    assert known.mirror.hashes == worker.hashes != set()
    known.close()
    publisher.close()
    worker.publisher.close()


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("tcp://0.0.0.0:5557", "tcp://0.0.0.0:5558"),
        ("tcp://[::1]:5557", "tcp://[::1]:5558"),
        ("ipc:///run/events", "ipc:///run/events.replay"),
    ],
)
def test_replays_have_the_next_address(address: str, expected: str) -> None:
    assert replay_address(address) == expected


def test_each_rank_has_an_address_of_its_own() -> None:
    for address in ("tcp://127.0.0.1:5557", "ipc:///run/events"):
        own = [rank_events_address(address, rank) for rank in range(4)]
        assert len({*own, *map(replay_address, own)}) == 8


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:0", "tcp://127.0.0.1:65535"])
def test_an_address_without_a_next_port_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="needs a port from 1 on"):
        EventPublisher(address)
