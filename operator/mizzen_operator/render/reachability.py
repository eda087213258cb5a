"""Owns what rendered NetworkPolicies allow between pods of a namespace, as an enforcer reads them.

Does not own which connections are needed (``wiring``). Only what we render is understood: peers by
label in the namespace of the policy, and peers in a namespace of another name, which match none of
its pods. Who is no pod of that namespace is a stranger: no policy here is about it, and only rules
without peers admit it.
"""

from collections.abc import Iterable, Mapping
from typing import Any

Labels = Mapping[str, str]


def allows(
    policies: Iterable[Mapping[str, Any]],
    source: Labels | None,
    target: Labels | None,
    port: int,
    *,
    protocol: str = "TCP",
) -> bool:
    """Whether a connection from one pod to a port of another passes both pods' policies.

    None is a stranger.
    """
    specs = [policy["spec"] for policy in policies]
    door = (protocol, port)
    return _passes(specs, "Egress", source, target, door) and _passes(
        specs, "Ingress", target, source, door
    )


def _passes(
    specs: Iterable[Mapping[str, Any]],
    direction: str,
    own: Labels | None,
    peer: Labels | None,
    door: tuple[str, int],
) -> bool:
    """Policies add up; a pod that none selects in this direction is open."""
    if own is None:
        return True
    chosen = [
        spec
        for spec in specs
        if direction in spec["policyTypes"] and _selects(spec["podSelector"], own)
    ]
    peers_key = "to" if direction == "Egress" else "from"
    rules = [rule for spec in chosen for rule in spec[direction.lower()]]
    return not chosen or any(
        _admits(rule.get(peers_key), peer) and _opens(rule.get("ports"), door) for rule in rules
    )


def _admits(peers: Iterable[Mapping[str, Any]] | None, pod: Labels | None) -> bool:
    """No list of peers means everybody."""
    return peers is None or any(
        pod is not None and "namespaceSelector" not in peer and _selects(peer["podSelector"], pod)
        for peer in peers
    )


def _opens(ports: Iterable[Mapping[str, Any]] | None, door: tuple[str, int]) -> bool:
    """No list of ports means all."""
    protocol, number = door
    return ports is None or any(
        item["protocol"] == protocol and item.get("port", number) == number for item in ports
    )


def _selects(selector: Mapping[str, Any], pod: Labels) -> bool:
    wanted: Labels = selector["matchLabels"]
    return wanted.items() <= pod.items()
