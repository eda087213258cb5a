"""How ranks come together, with real stores and collectives."""

import queue
import threading
from pathlib import Path
from unittest.mock import create_autospec

import pytest
import torch
from tests.worker.rank_group.groups import AGREED, place_of

from mizzen_worker.ipc.parent_link import ParentLink
from mizzen_worker.rank_group import membership
from mizzen_worker.rank_group.membership import Followership, Leadership, join_group, lead_group
from mizzen_worker.rank_group.place import RankPlace
from mizzen_worker.rank_group.rendezvous import Hosts

pytestmark = pytest.mark.timeout(900)


def test_a_leader_whose_name_has_another_address_by_now_is_reached(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rank looks the name up when it starts; the leader may come minutes later, elsewhere."""

    def found(place: RankPlace, _on_wait: object) -> Hosts:
        return Hosts(leader="127.0.0.1" if place.rank == 0 else "127.0.0.9", own="127.0.0.1")

    monkeypatch.setattr(membership, "find_hosts", found)
    parent = create_autospec(ParentLink, instance=True)
    joined: queue.SimpleQueue[Followership | Exception] = queue.SimpleQueue()

    def wait(_reason: str, _num_joined: int) -> None:
        pass

    def join() -> None:
        place = place_of(1, tmp_path, timeout_s=5)
        try:
            joined.put(join_group(place, AGREED, curve_dir=None, parent=parent, on_wait=wait))
        except Exception as error:  # noqa: BLE001 - shown by the test
            joined.put(error)

    threading.Thread(target=join, daemon=True).start()
    place = place_of(0, tmp_path, timeout_s=5)
    leader = lead_group(place, AGREED, curve_dir=None, parent=parent, on_wait=wait)
    follower = joined.get()
    assert isinstance(follower, Followership), follower
    _exchange(leader, follower)
    follower.link.close()
    leader.link.close()


def _exchange(leader: Leadership, follower: Followership) -> None:
    values = [torch.tensor([1.0]), torch.tensor([2.0])]
    second = threading.Thread(target=follower.collective.copy_from_leader, args=(values[1],))
    second.start()
    leader.collective.copy_from_leader(values[0])
    second.join()
    assert values[1].item() == 1.0
