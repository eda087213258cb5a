"""Owns the Services: the public one, the ranks' meeting place, the way to the group leaders.

Does not own which revisions and cohorts are alive (``planner``).
"""

from typing import Any

from mizzen_operator.render import labels, pod
from mizzen_operator.render.names import leader_service_name, rank_service_name
from mizzen_operator.render.objects import metadata
from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.worker_contract import PORT_ADMIN, PORT_WORKER


def public_service(resolved: Resolved) -> dict[str, Any]:
    """The Service that clients use; it has the name of the InferenceService."""
    wanted = resolved.spec.routing.service
    role = labels.ROLE_TOKENIZER if resolved.tokenizer else labels.ROLE_WORKER
    leader = {} if resolved.tokenizer else {labels.POD_INDEX: "0"}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(resolved, resolved.name, role=role),
        "spec": {
            "type": wanted.type,
            "selector": {**labels.role_selector(resolved, role), **leader},
            "ports": [_port(pod.PORT_NAME_HTTP, wanted.port, pod.PORT_NAME_HTTP)],
        },
    }


def rank_service(resolved: Resolved, revision: str) -> dict[str, Any]:
    """Headless: names for the pods of one revision, also before they are ready."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(
            resolved,
            rank_service_name(resolved, revision),
            role=labels.ROLE_WORKER,
            extra_labels={labels.REVISION: revision},
        ),
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,
            "selector": labels.revision_selector(resolved, revision),
            "ports": [_port(pod.PORT_NAME_ADMIN, PORT_ADMIN, pod.PORT_NAME_ADMIN)],
        },
    }


def leader_service(resolved: Resolved, cohort: str) -> dict[str, Any]:
    """Headless: the ready leaders of one cohort, so that tokenizers meet only pods that fit."""
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(
            resolved,
            leader_service_name(resolved, cohort),
            role=labels.ROLE_WORKER,
            extra_labels={labels.COHORT: cohort},
        ),
        "spec": {
            "clusterIP": "None",
            "selector": labels.leader_selector(resolved, cohort),
            "ports": [_port(pod.PORT_NAME_WORKER, PORT_WORKER, pod.PORT_NAME_WORKER)],
        },
    }


def _port(name: str, number: int, target: str) -> dict[str, Any]:
    return {"name": name, "port": number, "targetPort": target, "protocol": "TCP"}
