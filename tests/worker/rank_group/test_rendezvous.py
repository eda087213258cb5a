"""Ranks of one life find each other at the addresses they were given; two lives never meet."""

import threading
from pathlib import Path

import pytest
import torch
from msgspec import structs
from tests.worker.rank_group.groups import place_of
from torch._C._distributed_c10d import ProcessGroup, Store

from mizzen_worker.contracts.errors import RankGroupError
from mizzen_worker.layers.collective import ProcessGroupCollective
from mizzen_worker.rank_group import rendezvous
from mizzen_worker.rank_group.place import RankPlace
from mizzen_worker.rank_group.rendezvous import (
    Hosts,
    bound_address,
    find_hosts,
    join_collectives,
    open_store,
    reach_store,
)

pytestmark = pytest.mark.timeout(900)


def listening_addresses() -> set[str]:
    """Addresses at which this process's ports listen (IPv4), as the kernel shows them."""
    found = set()
    for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]:
        words = line.split()
        if words[3] == "0A":
            found.add(words[1])
    return found


def join_all(places: list[RankPlace], lives: list[str], hosts: list[str]) -> list[object]:
    """Let every rank join from a thread of its own; give its group, or what it raised."""
    store = open_store(hosts[0], places[0])
    outcomes: list[object] = [None] * len(places)

    def join(number: int) -> None:
        own: Store = store if number == 0 else reach_store(hosts[0], store.port, places[number])
        try:
            outcomes[number] = join_collectives(own, lives[number], hosts[number], places[number])
        except RankGroupError as error:
            outcomes[number] = error

    threads = [threading.Thread(target=join, args=(number,)) for number in range(len(places))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return outcomes


def test_ranks_exchange_from_the_addresses_they_were_given(tmp_path: Path) -> None:
    before = listening_addresses()
    places = [place_of(rank, tmp_path) for rank in (0, 1)]
    groups = join_all(places, ["life", "life"], ["127.0.0.1", "127.0.0.2"])
    opened = {address.partition(":")[0] for address in listening_addresses() - before}
    assert opened <= {"0100007F", "0200007F"}
    sums = [torch.full((2, 3), float(rank + 1)) for rank in (0, 1)]

    def exchange(rank: int) -> None:
        group = groups[rank]
        assert isinstance(group, ProcessGroup)
        ProcessGroupCollective(group).sum_over_ranks(sums[rank])

    threads = [threading.Thread(target=exchange, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(one, torch.full((2, 3), 3.0)) for one in sums)


@pytest.mark.parametrize("other", ["epoch", "life"])
def test_ranks_of_two_epochs_or_lives_never_meet(tmp_path: Path, other: str) -> None:
    places = [place_of(rank, tmp_path, timeout_s=1.0) for rank in (0, 1)]
    lives = ["life", "life"]
    if other == "epoch":
        places[1] = structs.replace(places[1], epoch="4")
    else:
        lives[1] = "another"
    outcomes = join_all(places, lives, ["127.0.0.1", "127.0.0.1"])
    for rank, outcome in enumerate(outcomes):
        assert str(outcome).startswith(f"rank {rank} of 2 cannot reach the other ranks from 127.")


def test_a_node_finds_its_own_address_by_the_way_to_the_leader(tmp_path: Path) -> None:
    place = place_of(1, tmp_path)
    assert find_hosts(place, print) == Hosts(leader="127.0.0.1", own="127.0.0.1")
    place = structs.replace(place, address="tcp://127.0.0.3:77")
    hosts = find_hosts(place, print)
    assert hosts.leader == "127.0.0.3"
    assert hosts.own.startswith("127.0.0.")
    named = structs.replace(place, host="127.0.0.9")
    assert find_hosts(named, print).own == "127.0.0.9"
    by_name = structs.replace(place, address="tcp://localhost:77", rank=0)
    hosts = find_hosts(by_name, print)
    assert hosts.own == hosts.leader
    assert bound_address(by_name, Hosts(leader="::1", own="::1")) == "tcp://[::1]:77"


def test_a_name_that_is_not_there_yet_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = [OSError("Name or service not known"), ("10.0.0.1", "10.0.0.2")]
    told: list[str] = []

    def route(_host: str, _port: int) -> tuple[str, str]:
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        if isinstance(answer, OSError):
            raise answer
        return answer  # type: ignore[return-value]

    monkeypatch.setattr(rendezvous, "_route_to", route)
    monkeypatch.setattr(rendezvous, "_RETRY_S", 0.0)
    place = structs.replace(place_of(1, tmp_path), address="tcp://group-0.ranks:77")
    assert find_hosts(place, told.append) == Hosts(leader="10.0.0.1", own="10.0.0.2")
    assert told == ["group-0.ranks is not found yet: Name or service not known"]
    answers[:] = [OSError("Name or service not known")]
    late = structs.replace(place, rendezvous_timeout_s=0.0)
    with pytest.raises(RankGroupError, match=r"rank 1 of 2 cannot find group-0\.ranks: Name or"):
        find_hosts(late, told.append)


def test_an_address_of_another_node_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RankGroupError, match=r"rank 0 of 2 cannot listen at 192\.0\.2\.1: .*node"):
        open_store("192.0.2.1", place_of(0, tmp_path))
