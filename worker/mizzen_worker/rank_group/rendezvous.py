"""Owns how the ranks of one life find each other for collectives; owns no link and no tensors.

The leader's store listens at an address of its node, at a port that the system chooses and that
only ranks are told of, over their authenticated link. A life's name is in every key: what is left
of another life meets nobody. Neither store nor collectives are encrypted: between pods the
NetworkPolicy is their guard.
"""

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import urlsplit

import torch
from torch._C._distributed_c10d import (  # their public names are not typed as exported
    PrefixStore,
    ProcessGroup,
    ProcessGroupGloo,
    Store,
    TCPStore,
)

from mizzen_worker.contracts.errors import RankGroupError
from mizzen_worker.rank_group.place import RankPlace

_LOOPBACK = "127.0.0.1"
_CPU = torch.device("cpu")
_RETRY_S = 1.0
_MAX_COLLECTIVE_S = 24 * 3600.0
"""No limit of its own: heartbeats notice who is lost, and the launcher who is stuck."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosts:
    """Addresses for collectives: the leader's node's and this one's."""

    leader: str
    own: str


def find_hosts(place: RankPlace, on_wait: Callable[[str], None]) -> Hosts:
    """Look the leader up, again and again until the deadline: its name appears with its pod.

    On one machine everything is on its loopback. Raises ``RankGroupError``.
    """
    parts = urlsplit(place.address)
    if parts.scheme != "tcp" or parts.hostname is None:
        return Hosts(leader=_LOOPBACK, own=_LOOPBACK)
    ends_at_s = time.monotonic() + place.rendezvous_timeout_s
    while True:
        try:
            leader, own = _route_to(parts.hostname, parts.port or 0)
        except OSError as error:
            if time.monotonic() >= ends_at_s:
                msg = (
                    f"{place.name} cannot find {parts.hostname}: {error}; is it the name of the"
                    " leader's pod?"
                )
                raise RankGroupError(msg) from error
            on_wait(f"{parts.hostname} is not found yet: {error}")
            time.sleep(_RETRY_S)
            continue
        if place.rank == 0:
            return Hosts(leader=leader, own=place.host or leader)
        return Hosts(leader=leader, own=place.host or own)


def bound_address(place: RankPlace, hosts: Hosts) -> str:
    """Where the leader binds its socket: not at a name, and at no other interface."""
    parts = urlsplit(place.address)
    if parts.scheme != "tcp":
        return place.address
    host = f"[{hosts.leader}]" if ":" in hosts.leader else hosts.leader
    return f"tcp://{host}:{parts.port}"


def open_store(host: str, place: RankPlace) -> TCPStore:
    """Make the leader's store; its ``port`` is for the ranks; raises ``RankGroupError``."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, 0), family=family)
        return TCPStore(
            host,
            int(listener.getsockname()[1]),
            is_master=True,
            timeout=timedelta(seconds=place.rendezvous_timeout_s),
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
    except (OSError, RuntimeError) as error:
        msg = f"{place.name} cannot listen at {host}: {error}; is it an address of this node?"
        raise RankGroupError(msg) from error


def reach_store(host: str, port: int, place: RankPlace) -> TCPStore:
    """Connect to the leader's store; raises ``RankGroupError``."""
    try:
        return TCPStore(
            host, port, is_master=False, timeout=timedelta(seconds=place.rendezvous_timeout_s)
        )
    except RuntimeError as error:
        msg = (
            f"{place.name} cannot reach the leader's store at {host}:{port}: {error}; ranks must"
            " be allowed to connect to each other at every port"
        )
        raise RankGroupError(msg) from error


def join_collectives(
    store: Store, life: str, own_host: str, place: RankPlace, device: torch.device = _CPU
) -> ProcessGroup:
    """Connect to all ranks of a life; raises ``RankGroupError``. ``store`` must outlive it.

    Where ``device`` is a GPU, the group exchanges tensors of GPUs too: its ranks connect there at
    the first exchange.
    """
    keys = PrefixStore(f"{place.group_id}/{place.epoch}/{life}", store)
    kind = ProcessGroup.BackendType.GLOO
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]  # noqa: SLF001
    options._timeout = timedelta(seconds=place.rendezvous_timeout_s)  # noqa: SLF001
    try:
        # No public way names the address; what there is guesses it from the host's name.
        options._devices = [ProcessGroupGloo.create_device(hostname=own_host)]  # noqa: SLF001
        gloo = ProcessGroupGloo(keys, place.rank, place.size, options)
        gloo._set_default_timeout(timedelta(seconds=_MAX_COLLECTIVE_S))  # noqa: SLF001
        group = ProcessGroup(keys, place.rank, place.size)
        group._set_default_backend(kind)  # noqa: SLF001
        group._register_backend(_CPU, kind, gloo)  # noqa: SLF001
        if device.type == "cuda":
            _add_nccl(group, keys, place)
    except RuntimeError as error:
        msg = f"{place.name} cannot reach the other ranks from {own_host}: {error}"
        raise RankGroupError(msg) from error
    return group


def _add_nccl(group: ProcessGroup, keys: PrefixStore, place: RankPlace) -> None:
    # A build of torch for CPUs has none.
    from torch._C._distributed_c10d import ProcessGroupNCCL  # noqa: PLC0415

    kind = ProcessGroup.BackendType.NCCL
    options = ProcessGroupNCCL.Options()
    options._timeout = timedelta(seconds=_MAX_COLLECTIVE_S)  # noqa: SLF001
    nccl = ProcessGroupNCCL(PrefixStore("nccl", keys), place.rank, place.size, options)
    group._register_backend(torch.device("cuda"), kind, nccl)  # noqa: SLF001


def _route_to(host: str, port: int) -> tuple[str, str]:
    """Address of a host, and this node's address on the way to it; sends nothing."""
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.connect(address)
        return str(address[0]), str(probe.getsockname()[0])
