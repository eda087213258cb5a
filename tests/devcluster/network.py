"""Owns the cell's network: one bridge without ports that carries the addresses, and no way out.

Runs inside the cell. Pods get a point-to-point link each from the CNI plugin; nothing here ever
adds a default route or a link to the machine's own network.
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.devcluster.config import GATEWAY, SERVICE_NETWORK, NodeConfig

_LINK = "mizzen0"


def lay_network(nodes: Sequence[NodeConfig]) -> None:
    """Give the cell its addresses and its one route for Services."""
    _ip("link set lo up")
    _ip(f"link add {_LINK} type bridge")
    _ip(f"link set {_LINK} up")
    for address in (GATEWAY, *(node.address for node in nodes)):
        _ip(f"address add {address}/32 dev {_LINK}")
    # A Service's address needs some route before it is rewritten to a pod's.
    _ip(f"route add {SERVICE_NETWORK} dev {_LINK} src {GATEWAY}")
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1\n")


def _ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True, capture_output=True, text=True)
