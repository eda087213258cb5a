"""Owns the status of a service whose spec cannot be carried out: what runs is judged by itself.

Does not own the status of an accepted service (``status``). Pure. What was wanted last is known
only from the last status; what is there is taken from live objects, never from that status.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mizzen_operator.errors import NAME_CONFLICT, Problem
from mizzen_operator.observed import DeploymentFacts, Observed
from mizzen_operator.planner.groups import Group, groups_of
from mizzen_operator.render import labels
from mizzen_operator.status.conditions import (
    MAX_MESSAGE,
    Verdict,
    as_conditions,
    no,
    unknown,
    yes,
)
from mizzen_operator.status.running import (
    ACCEPTED,
    AVAILABLE,
    MODEL_READY,
    PLACED,
    PROGRESSING,
    READY,
    ROUTING_READY,
    address_pending,
    broken_pods,
    degraded,
    describe,
    front_service,
    group_rows,
    living,
    unschedulable,
    why_not_ready,
)

REASON = "SpecRefused"
_KEPT = ("url", "selector", "modelName", "updateRevision")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Remains:
    """What is there of a service without a spec to compare with."""

    observed: Observed
    groups: tuple[Group, ...]
    """Groups that are not leaving."""
    tokenizers: DeploymentFacts | None

    @property
    def ready_groups(self) -> int:
        return sum(group.is_ready for group in self.groups)


def refused_status(
    problems: Sequence[Problem], observed: Observed, now: datetime
) -> dict[str, Any]:
    """The status of a service that cannot work as written; its objects are left alone."""
    service = observed.service
    remains = _remains_of(observed)
    reason, message = problems[0].reason, _message(problems, remains)
    verdicts = [
        no(ACCEPTED, reason, message),
        _model_ready(remains),
        _placed(remains),
        _available(remains),
        no(PROGRESSING, REASON, "nothing is changed while the spec is refused"),
        _routing_ready(remains),
        degraded(observed.pods),
        no(READY, reason, message),
    ]
    kept = {key: service.status[key] for key in _KEPT if key in service.status}
    return {
        **kept,
        "observedGeneration": service.generation,
        "replicas": len(remains.groups),
        "roles": _roles(remains),
        "groups": group_rows(remains.groups, observed),
        "conditions": as_conditions(
            verdicts, service.status, generation=service.generation, now=now
        ),
    }


def _remains_of(observed: Observed) -> _Remains:
    tokenizers = (
        item
        for item in observed.deployments
        if observed.owns(item.child)
        and not item.child.deleting
        and item.child.labels.get(labels.ROLE) == labels.ROLE_TOKENIZER
    )
    return _Remains(
        observed=observed,
        groups=tuple(group for group in groups_of(observed) if not group.is_leaving),
        tokenizers=next(tokenizers, None),
    )


def _message(problems: Sequence[Problem], remains: _Remains) -> str:
    text = "; ".join(problem.sentence() for problem in problems)
    if not remains.groups:
        return text
    # With a name that is taken, the pods may be those of the present spec.
    whose = "that are there" if problems[0].reason == NAME_CONFLICT else "of the last good spec"
    end = f"; the pods {whose} go on"
    return f"{text[: MAX_MESSAGE - len(end)]}{end}"


def _model_ready(remains: _Remains) -> Verdict:
    if remains.ready_groups:
        return yes(MODEL_READY, "Loaded", f"{remains.ready_groups} worker groups have loaded it")
    return unknown(MODEL_READY, REASON, "not judged while the spec is refused")


def _placed(remains: _Remains) -> Verdict:
    stuck = unschedulable(remains.observed.pods)
    if stuck is not None:
        return stuck
    if not remains.groups:
        return yes(PLACED, "NothingToPlace", "there are no worker pods")
    uids = {group.facts.child.uid for group in remains.groups}
    pods = living(remains.observed.pods)
    placed = sum(bool(pod.node_name) and pod.child.owner_uid in uids for pod in pods)
    wanted = sum(group.facts.replicas for group in remains.groups)
    found = f"{placed} of {wanted} worker pods have a node"
    return no(PLACED, "Pending", found) if placed < wanted else yes(PLACED, "Scheduled", found)


def _available(remains: _Remains) -> Verdict:
    if not remains.groups:
        return no(AVAILABLE, REASON, "nothing runs, and the spec is refused")
    if not remains.ready_groups:
        return no(AVAILABLE, "NoReadyGroup", _why_not_ready(remains, labels.ROLE_WORKER))
    if remains.tokenizers is not None and not remains.tokenizers.ready_replicas:
        return no(AVAILABLE, "NoReadyTokenizer", _why_not_ready(remains, labels.ROLE_TOKENIZER))
    return yes(AVAILABLE, "Serving", f"{remains.ready_groups} worker groups are ready")


def _why_not_ready(remains: _Remains, role: str) -> str:
    pods = remains.observed.pods
    broken = broken_pods(pods)
    if broken:
        return describe(broken[0])
    return why_not_ready((pod for pod in pods if pod.child.labels.get(labels.ROLE) == role), role)


def _routing_ready(remains: _Remains) -> Verdict:
    service = front_service(remains.observed)
    if service is None:
        name = remains.observed.service.name
        return no(ROUTING_READY, "ServiceMissing", f"Service {name} is not there")
    if service.type == "LoadBalancer" and not service.ingress_addresses:
        return address_pending(service)
    return yes(ROUTING_READY, "ServiceReady", f"Service {service.child.name} is there")


def _roles(remains: _Remains) -> dict[str, Any]:
    status = remains.observed.service.status
    before: Mapping[str, Any] = status.get("roles") or {}
    groups, ready = remains.groups, remains.ready_groups
    desired = (before.get("worker") or {}).get("desired", len(groups))
    revision = status.get("updateRevision")
    roles: dict[str, Any] = {
        "worker": {
            "desired": desired,
            "groups": len(groups),
            "readyGroups": ready,
            "updatedGroups": sum(group.revision == revision for group in groups),
            "summary": f"{ready}/{desired}",
        }
    }
    tokenizers = remains.tokenizers
    if tokenizers is not None:
        wanted, ready = tokenizers.replicas, tokenizers.ready_replicas
        roles["tokenizer"] = {"desired": wanted, "ready": ready, "summary": f"{ready}/{wanted}"}
    return roles
