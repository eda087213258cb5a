"""Owns what the cell's kernel has seen of connections, and which rule of which policy lets them.

The kernel follows every connection through the cell's network, those between pods of one node too,
and remembers it for minutes after its end, and for days where a killed pod left it open. Not here:
what policies are for.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from tests.devcluster.cluster import Cluster
from tests.devcluster.config import GATEWAY, ClusterConfig, plan_nodes

from mizzen_operator.render.reachability import Labels, allows

_FIELD = re.compile(r"\b(src|dst|sport)=(\S+)")
NUM_FIELDS = 6
"""Of a connection as it was begun, then of its answers."""


@dataclass(frozen=True, slots=True, order=True)
class Connection:
    """Who spoke to which port of whom, a Service's address already translated to a pod's."""

    protocol: str
    """As policies write it: TCP or UDP."""
    source: str
    target: str
    port: int


@dataclass(frozen=True, slots=True, order=True)
class Rule:
    """One port of one rule of a policy."""

    policy: str
    direction: str
    protocol: str
    port: int


def parse(text: str) -> Iterator[Connection]:
    """Connections of TCP and UDP in the form of ``/proc/net/nf_conntrack``."""
    for line in text.splitlines():
        protocol = line.split()[2].upper()
        fields = _FIELD.findall(line)
        if protocol in ("TCP", "UDP") and len(fields) == NUM_FIELDS:
            values = [value for _, value in fields]
            yield Connection(protocol, source=values[0], target=values[3], port=int(values[5]))


def seen_connections(cluster: Cluster) -> frozenset[Connection]:
    """All that the cell's kernel remembers now."""
    return frozenset(parse(Path(f"/proc/{cluster.pid}/net/nf_conntrack").read_text()))


def machine_addresses(cluster: Cluster) -> frozenset[str]:
    """Where kubelets, cluster DNS and clients outside are met: whatever is no pod."""
    nodes = plan_nodes(ClusterConfig(nodes=len(cluster.node_names)))
    gates = (str(next(ip_network(node.pod_network).hosts())) for node in nodes)
    return frozenset((GATEWAY, *(node.address for node in nodes), *gates))


def is_allowed(
    policies: Iterable[Mapping[str, Any]], connection: Connection, pods: Mapping[str, Labels]
) -> bool:
    """Whether policies let a connection pass; ``pods`` are those of their namespace by address."""
    return allows(
        policies,
        pods.get(connection.source),
        pods.get(connection.target),
        connection.port,
        protocol=connection.protocol,
    )


def rules_of(policies: Iterable[Mapping[str, Any]]) -> Iterator[tuple[Rule, dict[str, Any]]]:
    """Every port that a policy opens, with a policy that opens nothing else."""
    for policy in policies:
        spec = policy["spec"]
        for direction in spec["policyTypes"]:
            key = direction.lower()
            for body in spec.get(key, ()):
                for port in body["ports"]:
                    only = {key: [{**body, "ports": [port]}], "policyTypes": [direction]}
                    selector = {"podSelector": spec["podSelector"]}
                    name = policy["metadata"]["name"]
                    rule = Rule(name, direction, port["protocol"], port["port"])
                    yield rule, {"spec": {**selector, **only}}


def is_let_by(
    rule: Rule, policy: Mapping[str, Any], connection: Connection, pods: Mapping[str, Labels]
) -> bool:
    """Whether the one rule of a policy is what lets a connection out of its source, or in."""
    own = pods.get(connection.source if rule.direction == "Egress" else connection.target, {})
    chosen = policy["spec"]["podSelector"]["matchLabels"]
    return chosen.items() <= own.items() and is_allowed([policy], connection, pods)
