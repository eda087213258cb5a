"""A group of ranks inside one test: real links over a socket file, followers in threads."""

import threading
import time
from collections.abc import Callable
from pathlib import Path

from mizzen_worker.contracts.batch import Runner
from mizzen_worker.contracts.rank_messages import Hello, Welcome
from mizzen_worker.ipc.curve import ClientKeys, ServerKeys
from mizzen_worker.rank_group.follower_link import FollowerLink
from mizzen_worker.rank_group.leader_link import LeaderLink
from mizzen_worker.rank_group.leader_runner import LeaderRunner, follow
from mizzen_worker.rank_group.place import RankPlace, hello_of
from mizzen_worker.rank_group.step_codec import sizes_of

AGREED = {"model": "sha", "--page-size": "16"}


def place_of(
    rank: int,
    folder: Path,
    *,
    size: int = 2,
    epoch: str = "3",
    timeout_s: float = 60.0,
    limit_s: float = 30.0,
) -> RankPlace:
    return RankPlace(
        rank=rank,
        size=size,
        group_id="g",
        epoch=epoch,
        address=f"ipc://{folder}/ranks",
        host="",
        rendezvous_timeout_s=timeout_s,
        heartbeat_limit_s=limit_s,
    )


def hello(place: RankPlace, **agreed: str) -> Hello:
    return hello_of(place, {**AGREED, **agreed})


def leader(
    place: RankPlace,
    lost: Callable[[str], None] = lambda _: None,
    keys: ServerKeys | None = None,
    bound: str | None = None,
) -> LeaderLink:
    return LeaderLink(
        place, bound=bound or place.address, keys=keys, clock=time.monotonic, on_lost=lost
    )


def follower(
    place: RankPlace,
    lost: Callable[[str], None] = lambda _: None,
    keys: ClientKeys | None = None,
) -> FollowerLink:
    return FollowerLink(place, keys=keys, clock=time.monotonic, on_lost=lost)


class Group:
    """A leader's runner, and followers that replay it to its farewell."""

    def __init__(self, runner: Runner, others: list[Runner], folder: Path) -> None:
        size = 1 + len(others)
        self._threads = [
            threading.Thread(target=self._follow, args=(rank, other, folder, size))
            for rank, other in enumerate(others, 1)
        ]
        self.failures: list[BaseException] = []
        place = place_of(0, folder, size=size)
        self.link = leader(place)
        for thread in self._threads:
            thread.start()
        self.link.gather(hello(place), lambda _: None)
        self.link.begin_life(Welcome(life="life", store_port=1, store_host="127.0.0.1"))
        num_pages = self.link.wait_loaded(sizes_of(runner.limits), lambda _: None)
        self.runner = LeaderRunner(runner, self.link, num_pages)

    def end(self) -> None:
        """Part, and raise what a follower met."""
        self.link.part()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()
        self.link.close()
        for failure in self.failures:
            raise failure

    def _follow(self, rank: int, runner: Runner, folder: Path, size: int) -> None:
        place = place_of(rank, folder, size=size)
        link = follower(place)
        try:
            link.join(hello(place), lambda _: None)
            link.loaded(sizes_of(runner.limits))
            follow(link, runner, lambda **_: None)
            link.part()
        except BaseException as failure:  # noqa: BLE001 - raised again by ``end``
            self.failures.append(failure)
            link.fail(str(failure))
        finally:
            link.close()
