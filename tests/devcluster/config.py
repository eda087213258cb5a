"""Owns the shape of a local cluster: its name, nodes and every address in it; pure.

Not here: where files live (folders.py), what the components' files say (component_files.py).

Invariants: all addresses lie in 198.18.0.0/16 (reserved for benchmarks, routed nowhere) and
10.96.0.0/16, and exist inside the cell only.
"""

import re
from dataclasses import dataclass

NETWORK = "198.18.0.0/16"
GATEWAY = "198.18.0.1"
SERVICE_NETWORK = "10.96.0.0/16"
KUBERNETES_SERVICE = "10.96.0.1"
DNS_SERVICE = "10.96.0.10"
API_PORT = 6443
MAX_NODES = 32

_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,18}[a-z0-9])?")


class ConfigError(ValueError):
    """A cluster was asked for that cannot be built; the message names the field and the remedy."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterConfig:
    """What a caller may choose about a cluster.

    zones and racks are dealt to the nodes in turn, so two zones over four nodes give two each.
    """

    name: str = "demo"
    nodes: int = 1
    gpus_per_node: int = 8
    zones: tuple[str, ...] = ("zone-a", "zone-b")
    racks: tuple[str, ...] = ("rack-1", "rack-2")
    api_port: int = 0
    node_grace_seconds: int = 10
    """How long a node may be silent before it counts as lost."""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise ConfigError(
                f"name: {self.name!r} is not usable: take 1 to 20 lower-case letters, digits, '-'"
            )
        if not 1 <= self.nodes <= MAX_NODES:
            raise ConfigError(f"nodes: {self.nodes} is not between 1 and {MAX_NODES}")
        if self.gpus_per_node < 0:
            raise ConfigError(f"gpus_per_node: {self.gpus_per_node} is negative: take 0 or more")
        if not self.zones or not self.racks:
            raise ConfigError("zones and racks: at least one of each is needed")
        if self.node_grace_seconds < 10:
            raise ConfigError(
                f"node_grace_seconds: {self.node_grace_seconds} is less than 10: kubelets are heard"
                " of every 4 s"
            )
        if not 0 <= self.api_port < 65536:
            raise ConfigError(f"api_port: {self.api_port} is no port: take 0 for a free one")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """One real node: its name, its addresses, what it claims to have."""

    index: int
    gpus: int
    zone: str
    rack: str

    @property
    def name(self) -> str:
        return f"node{self.index}"

    @property
    def address(self) -> str:
        """Where its kubelet listens."""
        return f"198.18.0.{10 + self.index}"

    @property
    def pod_network(self) -> str:
        """Where its pods get their addresses."""
        return f"198.18.{1 + self.index}.0/24"

    @property
    def labels(self) -> dict[str, str]:
        return {
            "topology.kubernetes.io/zone": self.zone,
            "topology.mizzen.dev/rack": self.rack,
        }


def plan_nodes(config: ClusterConfig) -> tuple[NodeConfig, ...]:
    """Return the real nodes that a cluster has."""
    return tuple(
        NodeConfig(
            index=index,
            gpus=config.gpus_per_node,
            zone=config.zones[index % len(config.zones)],
            rack=config.racks[index % len(config.racks)],
        )
        for index in range(config.nodes)
    )
