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
from mizzen_operator.planner.history import as_stored, history_of
from mizzen_operator.render import labels
from mizzen_operator.status.conditions import (
    MAX_MESSAGE,
    Verdict,
    as_conditions,
    no,
    unknown,
    yes,
)
from mizzen_operator.status.groups import group_rows, tokenizer_counts, worker_counts
from mizzen_operator.status.holdups import living
from mizzen_operator.status.keptout import KeptOut, kept_out
from mizzen_operator.status.references import missing_secret
from mizzen_operator.status.running import (
    ACCEPTED,
    AVAILABLE,
    MODEL_READY,
    PLACED,
    PROGRESSING,
    READY,
    RESOLVED_REFS,
    ROUTING_READY,
    address_pending,
    degraded,
    front_service,
    tokenizer_deployment,
    unschedulable,
    why_not_ready,
)

REASON = "SpecRefused"
NOT_JUDGED = "not judged while the spec is refused"
_KEPT = (
    "url",
    "selector",
    "modelName",
    "resolvedModel",
    "currentRevision",
    "updateRevision",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Remains:
    """What is there of a service without a spec to compare with."""

    observed: Observed
    groups: tuple[Group, ...]
    """Groups that are not leaving."""
    leaving: tuple[Group, ...]
    tokenizers: DeploymentFacts | None
    kept_out: Mapping[str, KeptOut]
    """Why pods cannot be made, by role."""

    @property
    def ready_groups(self) -> int:
        return sum(group.is_ready for group in self.groups)


def refused_status(
    problems: Sequence[Problem], observed: Observed, now: datetime
) -> dict[str, Any]:
    """The status of a service that cannot work as written; its objects are left alone."""
    service = observed.service
    remains = _remains_of(observed)
    reason = problems[0].reason
    message = refusal_text(problems, goes_on=bool(remains.groups))
    verdicts = [
        no(ACCEPTED, reason, message),
        missing_secret(observed.pods) or unknown(RESOLVED_REFS, REASON, NOT_JUDGED),
        _model_ready(remains),
        _placed(remains),
        _available(remains),
        no(PROGRESSING, REASON, "nothing is rolled out while the spec is refused"),
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
        "groups": group_rows((*remains.groups, *remains.leaving), remains.kept_out, {}),
        "conditions": as_conditions(
            verdicts, service.status, generation=service.generation, now=now
        ),
    }


def _remains_of(observed: Observed) -> _Remains:
    found = groups_of(observed)
    return _Remains(
        observed=observed,
        groups=tuple(group for group in found if not group.is_leaving),
        leaving=tuple(group for group in found if group.is_leaving),
        tokenizers=tokenizer_deployment(observed),
        kept_out=kept_out(observed),
    )


def refusal_text(problems: Sequence[Problem], *, goes_on: bool) -> str:
    """Every problem, and that pods go on where there are some; fits into a condition."""
    text = "; ".join(problem.sentence() for problem in problems)
    if not goes_on:
        return text
    # With a name that is taken, the pods may be those of the present spec.
    whose = "that are there" if problems[0].reason == NAME_CONFLICT else "of the last good spec"
    end = f"; the pods {whose} go on"
    return f"{text[: MAX_MESSAGE - len(end)]}{end}"


def _model_ready(remains: _Remains) -> Verdict:
    if remains.ready_groups:
        return yes(MODEL_READY, "Loaded", f"{remains.ready_groups} worker groups have loaded it")
    return unknown(MODEL_READY, REASON, NOT_JUDGED)


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
    if remains.tokenizers is None and _need_tokenizers(remains):
        missing = "the Deployment of the tokenizers is not there, and the spec is refused"
        return no(AVAILABLE, "NoReadyTokenizer", missing)
    return yes(AVAILABLE, "Serving", f"{remains.ready_groups} worker groups are ready")


def _need_tokenizers(remains: _Remains) -> bool:
    """Whether clients reach the groups that are there through tokenizers alone."""
    history = history_of(remains.observed)
    stored = (as_stored(group, history) for group in remains.groups)
    return any(former is not None and former.tokenizer is not None for former in stored)


def _why_not_ready(remains: _Remains, role: str) -> str:
    barred = remains.kept_out.get(role)
    return why_not_ready(remains.observed, role, barred=barred.text if barred else "")


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
    groups = (*remains.groups, *remains.leaving)
    desired = (before.get("worker") or {}).get("desired", len(remains.groups))
    revision = status.get("updateRevision", "")
    counts = worker_counts(groups, remains.observed, desired=desired, revision=revision)
    roles = {"worker": counts | _scale_row(before, "worker")}
    tokenizers = remains.tokenizers
    if tokenizers is not None:
        counts = tokenizer_counts(tokenizers, remains.observed, desired=tokenizers.replicas)
        roles["tokenizer"] = counts | _scale_row(before, "tokenizer")
    return roles


def _scale_row(before: Mapping[str, Any], role: str) -> dict[str, int]:
    """Kept for the time after the refusal."""
    row = before.get(role) or {}
    return {key: row[key] for key in ("asked", "propagated") if key in row}
