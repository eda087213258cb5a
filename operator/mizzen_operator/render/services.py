"""Owns the Services: the public one, the ranks' meeting place, the way to the group leaders.

Does not own which revisions and cohorts are alive (``planner``).
"""

from typing import Any

from mizzen_operator.render import labels, pod
from mizzen_operator.render.names import leader_service_name, rank_service_name
from mizzen_operator.render.objects import metadata
from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.worker_contract import PORT_ADMIN, PORT_RANKS, PORT_WORKER


def public_service(resolved: Resolved) -> dict[str, Any]:
    """The Service that clients use; it has the name of the InferenceService."""
    wanted = resolved.spec.routing.service
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(resolved, resolved.name, role=front_role(resolved)),
        "spec": {
            "type": wanted.type,
            "selector": front_selector(resolved),
            "ports": [_port(pod.PORT_NAME_HTTP, wanted.port, pod.PORT_NAME_HTTP)],
        },
    }


def front_role(resolved: Resolved) -> str:
    """Role of the pods that clients talk to."""
    return labels.ROLE_TOKENIZER if resolved.tokenizer else labels.ROLE_WORKER


def front_selector(resolved: Resolved) -> dict[str, str]:
    """Labels of the pods that clients talk to."""
    leader = {} if resolved.tokenizer else {labels.POD_INDEX: "0"}
    return {**labels.role_selector(resolved, front_role(resolved)), **leader}


def rank_service(resolved: Resolved, revision: str) -> dict[str, Any]:
    """Headless: names for the pods of one revision, also before they are ready."""
    meet = resolved.nodes > 1
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
            "ports": [
                _port(pod.PORT_NAME_ADMIN, PORT_ADMIN, pod.PORT_NAME_ADMIN),
                *([_port(pod.PORT_NAME_RANKS, PORT_RANKS, pod.PORT_NAME_RANKS)] if meet else []),
            ],
        },
    }


def leader_service(
    resolved: Resolved, cohort: str, *, is_open: bool, key_generation: str
) -> dict[str, Any]:
    """Headless: the ready leaders of one cohort, so that tokenizers meet only pods that fit.

    If ``is_open``, those of every cohort: its tokenizers only have streams to bring to an end.
    It exists as long as pods of the cohort do, and so it tells which keys are in use.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(
            resolved,
            leader_service_name(resolved, cohort),
            role=labels.ROLE_WORKER,
            extra_labels={labels.COHORT: cohort, **labels.of_keys(key_generation)},
        ),
        "spec": {
            "clusterIP": "None",
            "selector": labels.leader_selector(resolved, "" if is_open else cohort),
            "ports": [_port(pod.PORT_NAME_WORKER, PORT_WORKER, pod.PORT_NAME_WORKER)],
        },
    }


def _port(name: str, number: int, target: str) -> dict[str, Any]:
    return {"name": name, "port": number, "targetPort": target, "protocol": "TCP"}
