"""Owns the order of a rank's membership: meet, connect collectives, load, take part, end.

Owns neither the scheduler nor the model: the one who opens a membership loads its runner between
``collective`` and ``lead`` or ``follow``. Whoever fails in between says so with ``fail``.
"""

import logging
import os
import secrets
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch._C._distributed_c10d import Store

from mizzen_worker.contracts.batch import Runner
from mizzen_worker.contracts.errors import RankGroupError
from mizzen_worker.contracts.rank_messages import Welcome
from mizzen_worker.ipc.curve import ClientKeys, ServerKeys, read_rank_keys
from mizzen_worker.ipc.parent_link import ParentLink, Report
from mizzen_worker.ipc.pulse import Pulse
from mizzen_worker.layers.collective import Collective, NcclCollective, ProcessGroupCollective
from mizzen_worker.observability.metric_names import GROUP_JOINED, GROUP_SIZE
from mizzen_worker.observability.recorder import Recorder
from mizzen_worker.observability.samples import Sample
from mizzen_worker.rank_group.follower_link import FollowerLink
from mizzen_worker.rank_group.leader_link import AskedDrain, LeaderLink, waiting_text
from mizzen_worker.rank_group.leader_runner import LeaderRunner, OnTurn, follow
from mizzen_worker.rank_group.place import RankPlace, hello_of
from mizzen_worker.rank_group.rendezvous import (
    Hosts,
    bound_address,
    find_hosts,
    join_collectives,
    open_store,
    reach_store,
)
from mizzen_worker.rank_group.step_codec import sizes_of

logger = logging.getLogger(__name__)

_CPU = torch.device("cpu")
_LAST_MOMENT_S = 1.0
"""For a loop that is not blocked to hand its requests back, once a rank is lost."""

OnWait = Callable[[str, int], None]
"""Told again and again what is waited for, and how many ranks are there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leadership:
    """Rank 0's membership, from the moment that all ranks are together."""

    place: RankPlace
    link: LeaderLink
    collective: Collective
    store: Store
    """Held: collectives look each other up in it."""

    def lead(self, runner: Runner, on_wait: OnWait) -> LeaderRunner:
        """Wait until all ranks have loaded; raises ``RankGroupError``."""
        num_pages = self.link.wait_loaded(
            sizes_of(runner.limits),
            lambda missing: on_wait(
                f"waits for {len(missing)} of {self.place.size} ranks to load", self.link.num_joined
            ),
        )
        return LeaderRunner(runner, self.link, num_pages)

    def turn(self) -> AskedDrain | None:
        """Look after the group, once an iteration; raises ``RankGroupError``."""
        return self.link.turn()

    def metrics(self) -> tuple[Sample, ...]:
        """How many ranks there are, and should be."""
        recorder = Recorder("group")
        recorder.set(GROUP_SIZE, self.place.size)
        recorder.set(GROUP_JOINED, self.link.num_joined)
        return recorder.samples()

    def part(self) -> None:
        """End all ranks with success."""
        self.link.part()
        self.link.close()

    def fail(self, reason: str) -> None:
        """End all ranks at once."""
        self.link.fail(f"{self.place.name}: {reason}")
        self.link.close()
        _give_up(self.collective)


@dataclass(frozen=True, slots=True, kw_only=True)
class Followership:
    """Another rank's membership, from the moment that all ranks are together."""

    place: RankPlace
    link: FollowerLink
    collective: Collective
    store: Store

    def follow(self, runner: Runner, turn: OnTurn) -> None:
        """Replay the leader's steps to its farewell; see ``leader_runner.follow``."""
        self.link.loaded(sizes_of(runner.limits))
        follow(self.link, runner, turn)
        self.link.part()
        self.link.close()

    def fail(self, reason: str) -> None:
        """Tell the leader why this rank ends."""
        self.link.fail(reason)
        self.link.close()
        _give_up(self.collective)


def show_life(parent: ParentLink, place: RankPlace) -> None:
    """Let the launcher notice a frozen process: the other ranks of its node cannot end it."""
    parent.live()  # From now on: what freezes before the first beat would never be noticed.
    Pulse(parent.live, interval_s=place.beat_s).start()


def lead_group(
    place: RankPlace,
    agreed: Mapping[str, str],
    *,
    curve_dir: Path | None,
    parent: ParentLink,
    on_wait: OnWait,
    device: torch.device = _CPU,
) -> Leadership:
    """Bring the ranks of a group together; raises ``RankGroupError`` or ``ConfigError``.

    ``device`` is this rank's: its kind says over what tensors are exchanged.
    """
    hosts = find_hosts(place, lambda reason: on_wait(reason, 1))
    keys = _keys(place, curve_dir)
    link = LeaderLink(
        place,
        bound=bound_address(place, hosts),
        keys=None if keys is None else keys[0],
        clock=time.monotonic,
        on_lost=lambda reason: _end_soon(parent, reason),
    )
    try:
        link.gather(
            hello_of(place, agreed),
            lambda missing: on_wait(waiting_text(place, missing), link.num_joined),
        )
        store = open_store(hosts.leader, place)
        life = secrets.token_hex(8)
        link.begin_life(Welcome(life=life, store_port=store.port, store_host=hosts.leader))
        collective = _collective(store, life, hosts, place, device)
    except BaseException as error:
        link.fail(str(error))
        link.close()
        raise
    return Leadership(place=place, link=link, collective=collective, store=store)


def join_group(
    place: RankPlace,
    agreed: Mapping[str, str],
    *,
    curve_dir: Path | None,
    parent: ParentLink,
    on_wait: OnWait,
    device: torch.device = _CPU,
) -> Followership:
    """Join a group; as ``lead_group``."""
    hosts = find_hosts(place, lambda reason: on_wait(reason, 1))
    keys = _keys(place, curve_dir)
    link = FollowerLink(
        place,
        keys=None if keys is None else keys[1],
        clock=time.monotonic,
        on_lost=lambda reason: _end_soon(parent, reason),
    )
    try:
        welcome = link.join(
            hello_of(place, agreed),
            lambda reason: on_wait(f"waits for its group at {place.address}: {reason}", 1),
        )
        store = reach_store(welcome.store_host, welcome.store_port, place)
        collective = _collective(store, welcome.life, hosts, place, device)
    except BaseException as error:
        link.fail(str(error))
        link.close()
        raise
    return Followership(place=place, link=link, collective=collective, store=store)


def _keys(place: RankPlace, curve_dir: Path | None) -> tuple[ServerKeys, ClientKeys] | None:
    is_tcp = place.address.startswith("tcp://")
    return read_rank_keys(curve_dir) if is_tcp and curve_dir is not None else None


def _collective(
    store: Store, life: str, hosts: Hosts, place: RankPlace, device: torch.device
) -> Collective:
    group = join_collectives(store, life, hosts.own, place, device)
    logger.info("ranks are together", extra={"rank": place.rank, "of": place.size, "life": life})
    if device.type != "cuda":
        return ProcessGroupCollective(group)
    collective = NcclCollective(group)
    try:
        torch.cuda.set_device(device)
        collective.warm_up(device)
    except RuntimeError as error:
        collective.abort()
        msg = (
            f"{place.name} cannot reach the other ranks' GPUs: {error}; does every rank have one of"
            " its own, and all the same version of NCCL?"
        )
        raise RankGroupError(msg) from error
    return collective


def _give_up(collective: Collective) -> None:
    """Let nothing on a GPU hold up the end of this process: it may wait for a rank that is gone."""
    if isinstance(collective, NcclCollective):
        collective.abort()


def _end_soon(parent: ParentLink, reason: str) -> None:
    """End this process, whatever its loop is blocked in."""
    logger.error("ending", extra={"reason": reason})
    time.sleep(_LAST_MOMENT_S)
    parent.report(Report(state="failed", num_beats=0, detail=reason))
    os._exit(1)
