"""Who is let in, what is told to whom, and how each side notices that the other is lost."""

import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
import zmq
from msgspec import structs
from tests.worker.launched import write_keys
from tests.worker.rank_group.groups import follower, hello, leader, place_of

from mizzen_worker.contracts.batch import DecodeRows, ScheduleBatch
from mizzen_worker.contracts.drain import DrainMode
from mizzen_worker.contracts.errors import RankGroupError
from mizzen_worker.contracts.rank_messages import Begin, Ended, Farewell, Sizes, Step, Welcome
from mizzen_worker.ipc.codec import to_follower_codec
from mizzen_worker.ipc.curve import read_client_keys, read_rank_keys
from mizzen_worker.rank_group.follower_link import FollowerLink
from mizzen_worker.rank_group.leader_link import MAX_LAG_STEPS, LeaderLink
from mizzen_worker.rank_group.place import RankPlace
from mizzen_worker.rank_group.step_codec import step_of

pytestmark = pytest.mark.timeout(900)

SIZES = Sizes(max_slots=4, num_pages=8, page_size=4, context_length=64, vocab_size=9)
NONE = np.array([], np.int32)
WELCOME = Welcome(life="life", store_port=7, store_host="10.0.0.1")


def step(number: int) -> Step:
    batch = ScheduleBatch(
        step=number,
        extends=(),
        decodes=DecodeRows(slots=NONE, starts=NONE),
        slot_inits=(),
        page_writes=(),
    )
    return step_of(batch, num_settled=0)


def aside(work: Callable[[], object]) -> "queue.SimpleQueue[object]":
    """Do something in a thread; give where its result, or what it raised, will be."""
    done: queue.SimpleQueue[object] = queue.SimpleQueue()

    def run() -> None:
        try:
            done.put(work())
        except RankGroupError as error:
            done.put(str(error))

    threading.Thread(target=run, daemon=True).start()
    return done


def join(link: FollowerLink, place: RankPlace, **agreed: str) -> "queue.SimpleQueue[object]":
    return aside(lambda: link.join(hello(place, **agreed), lambda _: None))


def nobody_waits(_missing: tuple[int, ...]) -> None:
    pass


@contextmanager
def together(
    folder: Path, *, limit_s: float = 30.0, size: int = 2
) -> Iterator[tuple[LeaderLink, list[FollowerLink], "queue.SimpleQueue[str]"]]:
    """A group whose life has begun."""
    lost: queue.SimpleQueue[str] = queue.SimpleQueue()
    places = [place_of(rank, folder, limit_s=limit_s, size=size) for rank in range(size)]
    first = leader(places[0], lost.put)
    others = [follower(place, lost.put) for place in places[1:]]
    joined = [join(link, place) for link, place in zip(others, places[1:], strict=True)]
    try:
        first.gather(hello(places[0]), nobody_waits)
        first.begin_life(WELCOME)
        assert [one.get() for one in joined] == [WELCOME] * (size - 1)
        yield first, others, lost
    finally:
        for link in (*others, first):
            link.close()


def receive(link: FollowerLink) -> object:
    while (order := link.receive()) is None:
        pass
    return order


def test_orders_come_in_order_and_steps_only_after_all_have_loaded(tmp_path: Path) -> None:
    with together(tmp_path, size=3) as (first, others, _):
        others[0].loaded(SIZES)
        missing: list[tuple[int, ...]] = []

        def on_wait(ranks: tuple[int, ...]) -> None:
            missing.append(ranks)
            if ranks == (2,):
                others[1].loaded(SIZES)

        first.wait_loaded(SIZES, on_wait)
        assert missing[-1] == (2,)
        for number in (1, 2):
            first.send_step(step(number))
        for link in others:
            got = [receive(link) for _ in range(3)]
            assert got == [Begin(), step(1), step(2)]
        parting = aside(first.part)
        for link in others:
            assert receive(link) == Farewell()
            link.part()
        assert parting.get() is None


def test_the_pages_that_every_rank_has_are_the_groups(tmp_path: Path) -> None:
    with together(tmp_path, size=4) as (first, others, _):
        for link, num_pages in zip(others, (9, 5, 8), strict=True):
            link.loaded(structs.replace(SIZES, num_pages=num_pages))
        assert first.wait_loaded(SIZES, nobody_waits) == 5


def test_other_sizes_end_the_group_with_a_reason(tmp_path: Path) -> None:
    with together(tmp_path) as (first, (other,), _):
        other.loaded(structs.replace(SIZES, page_size=9))
        with pytest.raises(RankGroupError, match=r"rank 1 has a runner with .*page_size=9"):
            first.wait_loaded(SIZES, nobody_waits)
        first.fail("rank 0 of 2: that is why")
        with pytest.raises(RankGroupError, match="rank 0 of 2: that is why"):
            receive(other)


def test_a_leader_waits_for_a_follower_that_lags_and_drops_nothing(tmp_path: Path) -> None:
    with together(tmp_path) as (first, (other,), _):
        sent: list[int] = []

        def send() -> None:
            for number in range(1, 3 * MAX_LAG_STEPS + 1):
                first.send_step(step(number))
                sent.append(number)

        sending = aside(send)
        for number in range(1, 3 * MAX_LAG_STEPS + 1):
            assert receive(other) == step(number)
            assert len(sent) < number + MAX_LAG_STEPS
            other.replayed()
        assert sending.get() is None


def test_a_drain_reaches_the_leader_once(tmp_path: Path) -> None:
    with together(tmp_path, size=3) as (first, others, _):
        for link in others:
            link.wish_drain(DrainMode.FINISH, 9.0)
        while (wish := first.turn()) is None:
            pass
        assert wish.rank in (1, 2)
        assert (wish.mode, wish.deadline_s) == (DrainMode.FINISH, 9.0)


def test_what_a_rank_says_of_its_end_is_told_to_the_others(tmp_path: Path) -> None:
    with together(tmp_path, limit_s=4.0) as (first, (other,), lost):
        other.fail("the device is unplugged")
        while not (told := aside(first.turn).get()):
            pass
        assert told == "rank 1 of 2 is lost: the device is unplugged"
        assert lost.get() == "rank 1 of 2 is lost: the device is unplugged"


def test_a_closed_connection_is_noticed_without_waiting_for_silence(tmp_path: Path) -> None:
    places = [place_of(rank, tmp_path) for rank in (0, 1)]
    lost: queue.SimpleQueue[str] = queue.SimpleQueue()
    first, other = leader(places[0]), follower(places[1], lost.put)
    joined = join(other, places[1])
    first.gather(hello(places[0]), nobody_waits)
    first.begin_life(WELCOME)
    joined.get()
    first.close()
    with pytest.raises(RankGroupError, match="rank 0 of 2 is lost: its connection has ended"):
        receive(other)
    other.close()


def test_silence_is_noticed_by_both_while_their_loops_are_away(tmp_path: Path) -> None:
    """The pulses' threads notice, for the loops may be blocked in a collective."""
    for silent in (0, 1):
        folder = tmp_path / str(silent)
        folder.mkdir()
        with together(folder, limit_s=1.0) as (first, (other,), lost):
            link = (first, other)[silent]
            link._pulse.stop()
            assert lost.get().startswith(f"rank {silent} of 2 is lost: silent for ")


def test_ranks_of_another_epoch_or_with_other_flags_are_told_why(tmp_path: Path) -> None:
    places = [place_of(rank, tmp_path) for rank in (0, 1)]
    first = leader(places[0])
    gathering = aside(lambda: first.gather(hello(places[0]), nobody_waits))
    for place, agreed, words in (
        (place_of(1, tmp_path, epoch="2"), {}, "rank 1 has epoch 2 and the leader 3"),
        (place_of(1, tmp_path, epoch="4"), {}, "rank 1 has epoch 4 and the leader 3"),
        (places[1], {"model": "other"}, "rank 1 has model other and the leader sha"),
    ):
        link = follower(place)
        told = join(link, place, **agreed).get()
        assert isinstance(told, str)
        assert told.startswith(words)
        link.close()
    other = follower(places[1])
    joined = join(other, places[1])
    assert gathering.get() is None
    first.begin_life(WELCOME)
    joined.get()
    other.close()
    first.close()


def test_a_rank_that_comes_again_before_the_group_begins_takes_its_place(tmp_path: Path) -> None:
    places = [place_of(rank, tmp_path, size=3) for rank in range(3)]
    first = leader(places[0])
    gathering = aside(lambda: first.gather(hello(places[0]), nobody_waits))
    older, newer, third = follower(places[1]), follower(places[1]), follower(places[2])
    told = join(older, places[1])
    while first.num_joined == 1:
        time.sleep(0)
    joined = [join(newer, places[1])]
    assert told.get() == "another rank 1 came after it"
    joined.append(join(third, places[2]))
    assert gathering.get() is None
    first.begin_life(WELCOME)
    assert [one.get().life for one in joined] == ["life", "life"]  # type: ignore[attr-defined]
    for link in (older, newer, third, first):
        link.close()


def test_a_leader_that_fails_right_behind_its_welcome_says_why(tmp_path: Path) -> None:
    places = [place_of(rank, tmp_path) for rank in (0, 1)]
    first, other = leader(places[0]), follower(places[1])
    gathering = aside(lambda: first.gather(hello(places[0]), nobody_waits))

    def on_wait(_reason: str) -> None:
        if first.num_joined == 2:
            assert gathering.get() is None
            first.begin_life(WELCOME)
            first.fail("rank 0 of 2: no such host")
            time.sleep(0.1)  # Both are there when the follower looks next.

    with pytest.raises(RankGroupError, match="rank 0 of 2: no such host"):
        other.join(hello(places[1]), on_wait)
    other.close()
    first.close()


def test_who_comes_to_a_group_that_has_begun_waits_for_the_next_life(tmp_path: Path) -> None:
    with together(tmp_path, limit_s=4.0):
        place = place_of(1, tmp_path, timeout_s=3.0)
        late = follower(place)
        told = join(late, place).get()
        late.close()
    assert "waited 3 s for" in str(told)
    assert "the group has begun without this rank; it starts anew when" in str(told)


def test_a_rank_of_an_earlier_life_ends_and_is_none_of_the_next(tmp_path: Path) -> None:
    places = [place_of(rank, tmp_path) for rank in (0, 1)]
    first, other = leader(places[0]), follower(places[1])
    joined = join(other, places[1])
    first.gather(hello(places[0]), nobody_waits)
    first.begin_life(WELCOME)
    joined.get()
    first.close()
    again = leader(place_of(0, tmp_path, timeout_s=3.0))
    gathering = aside(lambda: again.gather(hello(places[0]), nobody_waits))
    with pytest.raises(RankGroupError, match=r"connection has ended|group's present life"):
        receive(other)
    assert str(gathering.get()).startswith("rank 1 of 2 did not come")
    other.close()
    again.close()


def test_bytes_that_are_no_message_are_answered_and_change_nothing(tmp_path: Path) -> None:
    with together(tmp_path) as (first, (other,), _):
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        stranger = context.socket(zmq.DEALER)
        stranger.linger = 0
        stranger.connect(place_of(0, tmp_path).address)
        decode = to_follower_codec().decode
        for payload, words in ((b"\x80\x04N.", "are no message"), (b"\x91\xa4beat", "no rank of")):
            stranger.send(payload)
            while not stranger.poll(10):
                first.turn()
            answer = decode(stranger.recv())
            assert isinstance(answer, Ended)
            assert words in answer.reason
        stranger.close()
        context.term()
        first.send_step(step(1))
        assert receive(other) == step(1)


def test_only_who_has_the_roles_own_keys_is_a_rank(tmp_path: Path) -> None:
    keys = write_keys(tmp_path / "keys")
    place = place_of(0, tmp_path)
    server, client = read_rank_keys(keys)
    first = leader(place, keys=server, bound="tcp://127.0.0.1:*")
    address = first._socket.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").decode()  # type: ignore[union-attr]
    gathering = aside(lambda: first.gather(hello(place), nobody_waits))
    reach = structs.replace(place_of(1, tmp_path, timeout_s=1.5), address=address)
    tokenizer = follower(reach, keys=read_client_keys(keys))
    told = join(tokenizer, reach).get()
    tokenizer.close()
    assert "the peer does not know this client's CURVE key" in str(told)
    rank = follower(reach, keys=client)
    joined = join(rank, reach)
    assert gathering.get() is None
    first.begin_life(WELCOME)
    assert joined.get().life == "life"  # type: ignore[attr-defined]
    rank.close()
    first.close()
