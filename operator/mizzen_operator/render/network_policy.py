"""Owns the NetworkPolicies: only the connections that the service needs.

Does not own other rules of the namespace. The kubelet's probes come from the pod's own node, which
every enforcer lets through. Who scrapes the admin port is known only where the spec names the
namespace of the Prometheus: policies add up, so else the one that lets it in is the user's own
(docs/operate.md).
"""

from typing import Any

from mizzen_operator.render import labels
from mizzen_operator.render.names import group_name, tokenizer_name, worker_name
from mizzen_operator.render.objects import metadata
from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.worker_contract import PORT_ADMIN, PORT_HTTP, PORT_WORKER

_DNS = {"ports": [{"port": 53, "protocol": "UDP"}, {"port": 53, "protocol": "TCP"}]}


def network_policies(resolved: Resolved, *, have_followers: bool) -> list[dict[str, Any]]:
    """One policy per role; none when the spec switches them off.

    ``have_followers``: some living group has pods that tokenizers have no business with. What ranks
    need among themselves is in ``group_policies``.
    """
    if resolved.spec.network_policy == "Off":
        return []
    if resolved.tokenizer is None:
        return [_policy(resolved, labels.ROLE_WORKER, [_from_anyone()], [])]
    workers = (
        _selecting(labels.leader_selector(resolved, ""))
        if have_followers
        else _peer(resolved, labels.ROLE_WORKER)
    )
    to_workers = {"to": [workers], "ports": [_tcp(PORT_WORKER)]}
    from_tokenizers = {
        "from": [_peer(resolved, labels.ROLE_TOKENIZER)],
        "ports": [_tcp(PORT_WORKER)],
    }
    return [
        _policy(resolved, labels.ROLE_TOKENIZER, [_from_anyone()], [to_workers]),
        _policy(resolved, labels.ROLE_WORKER, [from_tokenizers], []),
    ]


def group_policies(resolved: Resolved, index: int) -> list[dict[str, Any]]:
    """The policy of one group of several pods: its ranks talk to each other and to no other group.

    On every port, because collectives take those that the system chooses. Whether there are to be
    policies is not asked here: a former revision does not know what the spec says of it now.
    """
    if resolved.nodes == 1:
        return []
    group = labels.group_selector(resolved, index)
    return [
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": metadata(
                resolved,
                group_name(resolved, index),
                role=labels.ROLE_WORKER,
                extra_labels={
                    labels.REVISION: resolved.revision,
                    labels.GROUP_INDEX: str(index),
                },
            ),
            "spec": {
                **_selecting(group),
                "policyTypes": ["Ingress", "Egress"],
                "ingress": [{"from": [_selecting(group)]}],
                "egress": [{"to": [_selecting(group)]}],
            },
        }
    ]


def _policy(
    resolved: Resolved, role: str, ingress: list[dict[str, Any]], egress: list[dict[str, Any]]
) -> dict[str, Any]:
    is_worker = role == labels.ROLE_WORKER
    name = worker_name(resolved) if is_worker else tokenizer_name(resolved)
    return policy(resolved, role, name, ingress=ingress, egress=egress)


def policy(
    resolved: Resolved,
    role: str,
    name: str,
    *,
    ingress: list[dict[str, Any]],
    egress: list[dict[str, Any]],
) -> dict[str, Any]:
    """The policy of all pods of one role; DNS and a Prometheus that is named are always let."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(resolved, name, role=role),
        "spec": {
            "podSelector": {"matchLabels": labels.role_selector(resolved, role)},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [*ingress, *_from_prometheus(resolved)],
            "egress": [_DNS, *egress],
        },
    }


def _from_anyone() -> dict[str, Any]:
    return {"ports": [_tcp(PORT_HTTP)]}


def _from_prometheus(resolved: Resolved) -> list[dict[str, Any]]:
    asked = resolved.spec.observability
    if asked is None or asked.prometheus_namespace is None:
        return []
    # The API server puts this label on every namespace.
    named = {"kubernetes.io/metadata.name": asked.prometheus_namespace}
    return [{"from": [{"namespaceSelector": {"matchLabels": named}}], "ports": [_tcp(PORT_ADMIN)]}]


def _peer(resolved: Resolved, role: str) -> dict[str, Any]:
    return _selecting(labels.role_selector(resolved, role))


def _selecting(pods: dict[str, str]) -> dict[str, Any]:
    return {"podSelector": {"matchLabels": pods}}


def _tcp(number: int) -> dict[str, Any]:
    return {"port": number, "protocol": "TCP"}
