"""Owns the NetworkPolicies: only the connections that the service needs.

Does not own other rules of the namespace. The kubelet's probes come from the pod's own node, which
every enforcer lets through. Who scrapes the admin port is not known here: policies add up, so the
one that lets a Prometheus in is the user's own (docs/operate.md).
"""

from typing import Any

from mizzen_operator.render import labels
from mizzen_operator.render.names import tokenizer_name, worker_name
from mizzen_operator.render.objects import metadata
from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.worker_contract import PORT_HTTP, PORT_WORKER

_DNS = {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}


def network_policies(resolved: Resolved) -> list[dict[str, Any]]:
    """One policy per role; none when the spec switches them off."""
    if resolved.spec.network_policy == "Off":
        return []
    if resolved.tokenizer is None:
        return [_policy(resolved, labels.ROLE_WORKER, [_from_anyone()], [])]
    to_workers = {"to": [_peer(resolved, labels.ROLE_WORKER)], "ports": [_tcp(PORT_WORKER)]}
    from_tokenizers = {
        "from": [_peer(resolved, labels.ROLE_TOKENIZER)],
        "ports": [_tcp(PORT_WORKER)],
    }
    return [
        _policy(resolved, labels.ROLE_TOKENIZER, [_from_anyone()], [to_workers]),
        _policy(resolved, labels.ROLE_WORKER, [from_tokenizers], []),
    ]


def _policy(
    resolved: Resolved, role: str, ingress: list[dict[str, Any]], egress: list[dict[str, Any]]
) -> dict[str, Any]:
    is_worker = role == labels.ROLE_WORKER
    if is_worker and resolved.nodes > 1:
        # Ranks of one revision talk on ports that their libraries choose.
        ranks = {"podSelector": {"matchLabels": labels.role_selector(resolved, role)}}
        ingress = [*ingress, {"from": [ranks]}]
        egress = [*egress, {"to": [ranks]}]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(
            resolved, worker_name(resolved) if is_worker else tokenizer_name(resolved), role=role
        ),
        "spec": {
            "podSelector": {"matchLabels": labels.role_selector(resolved, role)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": ingress,
            "egress": [_DNS, *egress],
        },
    }


def _from_anyone() -> dict[str, Any]:
    return {"ports": [_tcp(PORT_HTTP)]}


def _peer(resolved: Resolved, role: str) -> dict[str, Any]:
    return {"podSelector": {"matchLabels": labels.role_selector(resolved, role)}}


def _tcp(number: int) -> dict[str, Any]:
    return {"port": number, "protocol": "TCP"}
