"""Owns the cell's network: one bridge without ports that carries the addresses, and no way out.

Runs inside the cell. Pods get a point-to-point link each from the CNI plugin; nothing here ever
adds a default route or a link to the machine's own network.
"""

import ipaddress
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
    rules = hairpin_rules(nodes)
    subprocess.run(["nft", "-f", "-"], input=rules, check=True, capture_output=True, text=True)


def hairpin_rules(nodes: Sequence[NodeConfig]) -> str:
    """Return firewall rules that let a pod reach itself through its Service.

    kube-proxy has such rules for the pods of its own node only, and here one kube-proxy serves all
    nodes. A rule cannot compare two addresses, so every pod address is listed beside itself.
    """
    pairs = ", ".join(
        f"{address} . {address}"
        for node in nodes
        for address in ipaddress.ip_network(node.pod_network).hosts()
    )
    return f"""table ip {_LINK} {{
    set itself {{
        type ipv4_addr . ipv4_addr
        elements = {{ {pairs} }}
    }}
    chain postrouting {{
        type nat hook postrouting priority srcnat + 1; policy accept;
        ct status dnat ip saddr . ip daddr @itself masquerade
    }}
}}
"""


def _ip(arguments: str) -> None:
    subprocess.run(["ip", *arguments.split()], check=True, capture_output=True, text=True)
