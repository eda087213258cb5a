"""Owns which rank a process is and which ranks a node runs. Pure: starts and reads nothing.

A group is ``size`` ranks over ``nodes`` pods; pod n runs the ranks from n * size / nodes on, so
that rank 0, the leader, is in pod 0.
"""

from collections.abc import Mapping

import msgspec

from mizzen_worker.contracts.errors import ConfigError
from mizzen_worker.contracts.operator_names import ENV_NODE_COUNT, FLAG_TENSOR_PARALLEL
from mizzen_worker.contracts.rank_messages import RANK_WIRE_VERSION, Hello


class RankPlace(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's place in its group.

    ``address`` is the leader's socket for the other ranks. ``host`` is this node's address for
    collectives; empty: the one from which the leader is reached. Seconds: ``rendezvous_timeout_s``
    for all ranks to come together, ``heartbeat_limit_s`` of silence that a joined one may keep.
    """

    rank: int
    size: int
    group_id: str
    epoch: str
    address: str
    host: str
    rendezvous_timeout_s: float
    heartbeat_limit_s: float

    @property
    def beat_s(self) -> float:
        """Seconds between two signs of life: several fit into the limit."""
        return self.heartbeat_limit_s / 5

    @property
    def name(self) -> str:
        """This rank, as a person is told of it."""
        return f"rank {self.rank} of {self.size}"


def local_ranks(size: int, *, nodes: int, node_rank: int) -> range:
    """Say which ranks a node runs; raises ``ConfigError`` where nodes cannot share them."""
    if size % nodes:
        msg = (
            f"{FLAG_TENSOR_PARALLEL}: {size} ranks cannot be shared by {nodes} nodes"
            f" ({ENV_NODE_COUNT}); give a multiple of {nodes}"
        )
        raise ConfigError(msg)
    per_node = size // nodes
    return range(node_rank * per_node, (node_rank + 1) * per_node)


def hello_of(place: RankPlace, agreed: Mapping[str, str]) -> Hello:
    """Say who a rank is."""
    return Hello(
        wire_version=RANK_WIRE_VERSION,
        group_id=place.group_id,
        epoch=place.epoch,
        rank=place.rank,
        size=place.size,
        agreed=dict(agreed),
    )


def objection(hello: Hello, own: Hello) -> str | None:
    """Say why a rank may not join ``own``'s group, None when it may.

    Both sides are told this sentence. The order matters: ranks of two releases cannot be held to
    agree on more than their versions, those of two groups or epochs on flags.
    """
    pairs: list[tuple[str, object, object, str]] = [
        (
            "wire version",
            hello.wire_version,
            own.wire_version,
            "run all ranks of a group with one release",
        ),
        ("group", hello.group_id, own.group_id, "a rank must be sent to its own group's leader"),
        ("epoch", hello.epoch, own.epoch, "the older one has to be started anew"),
        (FLAG_TENSOR_PARALLEL, hello.size, own.size, _ALIKE),
    ]
    names = {**own.agreed, **hello.agreed}
    pairs += [(name, hello.agreed.get(name), own.agreed.get(name), _ALIKE) for name in names]
    for what, theirs, ours, remedy in pairs:
        if theirs != ours:
            return f"rank {hello.rank} has {what} {theirs} and the leader {ours}; {remedy}"
    if not 0 < hello.rank < own.size:
        return f"rank {hello.rank} is none of the followers 1 to {own.size - 1}"
    return None


_ALIKE = "give all ranks of a group the same model and flags"
