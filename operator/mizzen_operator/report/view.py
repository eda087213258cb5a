"""Owns what people are told of one service: typed rows made of its snapshot and written status.

Conditions are the operator's own words, read from the status; numbers and pods are live, computed
by the operator's own functions. Where the two disagree, a note says so. Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from mizzen_operator.observed import Observed, PodFacts
from mizzen_operator.planner.groups import Group, groups_of
from mizzen_operator.render import labels
from mizzen_operator.report.events import EventFacts
from mizzen_operator.report.waits import Wait, wait_of
from mizzen_operator.spec.scaler_crd import SCALER_KIND
from mizzen_operator.status.groups import DRAINING, group_state
from mizzen_operator.status.running import (
    AVAILABLE,
    READY,
    is_as_wished,
    tokenizer_deployment,
)

OPERATOR_SELECTOR = "app.kubernetes.io/name=mizzen-operator"
_FIND_OPERATOR = f"kubectl get pods -A -l {OPERATOR_SELECTOR}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceFound:
    """All that was read of one service."""

    topology: str
    replicas: int
    observed: Observed
    events: tuple[EventFacts, ...] = ()
    """About the service, its objects and its pods; newest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionRow:
    """One condition as the operator wrote it."""

    type: str
    status: str
    reason: str
    message: str
    since: datetime | None
    is_as_wished: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class PodRow:
    """One pod."""

    name: str
    node: str
    is_ready: bool
    restarts: int
    created_at: datetime | None
    waits_for: Wait | None
    events: tuple[EventFacts, ...]
    """Warnings about it, newest first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRow:
    """One worker group, or the pods that are left of one."""

    name: str
    revision: str
    state: str
    ready_pods: int
    pods_wanted: int
    is_updated: bool
    pods: tuple[PodRow, ...]

    @property
    def is_ready(self) -> bool:
        """Whether it serves and is to stay."""
        return self.state == "Ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleRow:
    """One role: worker groups, or tokenizer pods."""

    role: str
    desired: int
    ready: int
    updated: int
    restarts: int
    groups: tuple[GroupRow, ...] = ()
    pods: tuple[PodRow, ...] = ()
    """Of a role without groups."""
    scaled_by: str = ""
    """Who wants this many, where it is not the service's own field."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceReport:
    """One service."""

    namespace: str
    name: str
    topology: str
    model_name: str
    url: str
    revision: str
    is_being_deleted: bool
    notes: tuple[str, ...]
    """Why the written status cannot be trusted now; empty if it can."""
    conditions: tuple[ConditionRow, ...]
    roles: tuple[RoleRow, ...]
    warnings: tuple[EventFacts, ...]
    """Newest first."""

    def condition(self, kind: str) -> ConditionRow | None:
        """The condition of this type."""
        return next((row for row in self.conditions if row.type == kind), None)

    @property
    def is_ready(self) -> bool:
        """Whether all is as wished, by a status that can be trusted."""
        ready = self.condition(READY)
        is_said = ready is not None and ready.status == "True"
        return is_said and not self.notes and not self.is_being_deleted

    @property
    def is_as_wished(self) -> bool:
        """Ready, and no other condition asks for a look either."""
        return self.is_ready and all(row.is_as_wished for row in self.conditions)

    @property
    def is_serving(self) -> bool:
        """Whether one whole serving path is ready, as far as the status tells."""
        available = self.condition(AVAILABLE)
        return available is not None and available.status == "True"


def report_of(found: ServiceFound, now: datetime) -> ServiceReport:
    """The report about one service."""
    observed, status = found.observed, found.observed.service.status
    roles = _roles(found, now)
    return ServiceReport(
        namespace=observed.service.namespace,
        name=observed.service.name,
        topology=found.topology,
        model_name=status.get("modelName", ""),
        url=status.get("url", ""),
        revision=status.get("updateRevision", ""),
        is_being_deleted=observed.service.deleting,
        notes=tuple(_notes(observed, roles)),
        conditions=tuple(_condition(item) for item in status.get("conditions") or ()),
        roles=roles,
        warnings=tuple(event for event in found.events if event.is_warning),
    )


def newest_first(events: Iterable[EventFacts]) -> tuple[EventFacts, ...]:
    """Events by the time of their last repetition."""
    return tuple(
        sorted(
            events,
            key=lambda event: (event.last_at is not None, event.last_at, event.about_name),
            reverse=True,
        )
    )


def _condition(item: Mapping[str, Any]) -> ConditionRow:
    changed = item.get("lastTransitionTime")
    return ConditionRow(
        type=item["type"],
        status=item["status"],
        reason=item.get("reason", ""),
        message=item.get("message", ""),
        since=datetime.fromisoformat(changed) if changed else None,
        is_as_wished=is_as_wished(item["type"], item["status"], item.get("reason", "")),
    )


def _notes(observed: Observed, roles: Sequence[RoleRow]) -> Iterable[str]:
    """Signs that the operator does not keep the status up to date."""
    service, status = observed.service, observed.service.status
    if service.deleting:
        return
    if not status.get("conditions"):
        yield f"the operator has not looked at it yet; does it run? {_FIND_OPERATOR}"
        return
    seen = status.get("observedGeneration", 0)
    if seen < service.generation:
        yield (
            f"the operator has seen generation {seen} only, the spec is at {service.generation}; "
            f"does it run? {_FIND_OPERATOR}"
        )
    for scaler in observed.role_scalers:
        if scaler.status.get("observedGeneration", 0) < scaler.generation:
            yield (
                f"the operator has not seen yet that {SCALER_KIND} {scaler.child.name} asks for "
                f"{scaler.replicas}; does it run? {_FIND_OPERATOR}"
            )
    for role in roles:
        written = (status.get("roles") or {}).get(role.role) or {}
        said = written.get("readyGroups", written.get("ready", 0))
        if said > role.ready:
            yield (
                f"the status speaks of {said} ready {role.role}s, {role.ready} are ready now: if "
                f"this stays, the operator does not run; {_FIND_OPERATOR}"
            )


def _roles(found: ServiceFound, now: datetime) -> tuple[RoleRow, ...]:
    worker = _worker_role(found, now)
    tokenizer = _tokenizer_role(found, now)
    return (worker,) if tokenizer is None else (worker, tokenizer)


def _worker_role(found: ServiceFound, now: datetime) -> RoleRow:
    observed, status = found.observed, found.observed.service.status
    revision = status.get("updateRevision", "")
    groups = groups_of(observed)
    rows = [_group(group, found, revision, now) for group in groups]
    written = (status.get("roles") or {}).get(labels.ROLE_WORKER) or {}
    rows += _remnants(found, {group.facts.child.uid for group in groups}, revision, now)
    staying = [group for group in groups if not group.is_leaving]
    return RoleRow(
        role=labels.ROLE_WORKER,
        desired=written.get("desired", found.replicas),
        ready=sum(group.is_ready for group in staying),
        updated=sum(group.revision == revision for group in staying),
        restarts=sum(pod.restarts for row in rows for pod in row.pods),
        groups=tuple(rows),
        scaled_by=_scaled_by(found, labels.ROLE_WORKER, written),
    )


def _scaled_by(found: ServiceFound, role: str, written: Mapping[str, Any]) -> str:
    asked, own = written.get("asked"), written.get("propagated")
    names = (
        item.child.name
        for item in found.observed.role_scalers
        if item.child.labels.get(labels.ROLE) == role
    )
    if asked == own:
        return ""
    return f"{SCALER_KIND} {next(names, role)} asks for {asked}, the InferenceService for {own}"


def _group(group: Group, found: ServiceFound, revision: str, now: datetime) -> GroupRow:
    own = group.pods
    return GroupRow(
        name=group.name,
        revision=group.revision,
        state=group_state(group, own),
        ready_pods=group.facts.ready_replicas,
        pods_wanted=group.facts.replicas,
        is_updated=group.revision == revision,
        pods=_pods(own, found.events, now),
    )


def _remnants(
    found: ServiceFound, known: set[str], revision: str, now: datetime
) -> Iterable[GroupRow]:
    """Worker pods whose StatefulSet is gone: they drain, and hold their GPUs until they end."""
    by_owner: dict[str, list[PodFacts]] = {}
    for pod in found.observed.pods:
        is_worker = pod.child.labels.get(labels.ROLE) == labels.ROLE_WORKER
        if is_worker and pod.child.owner_uid not in known:
            by_owner.setdefault(pod.child.owner_uid, []).append(pod)
    for pods in by_owner.values():
        first = min(pods, key=lambda pod: pod.child.name).child
        own_revision = first.labels.get(labels.REVISION, "")
        yield GroupRow(
            name=first.name.rpartition("-")[0],
            revision=own_revision,
            state=DRAINING,
            ready_pods=sum(pod.is_ready for pod in pods),
            pods_wanted=0,
            is_updated=own_revision == revision,
            pods=_pods(pods, found.events, now),
        )


def _tokenizer_role(found: ServiceFound, now: datetime) -> RoleRow | None:
    observed = found.observed
    role = labels.ROLE_TOKENIZER
    written = (observed.service.status.get("roles") or {}).get(role)
    facts = tokenizer_deployment(observed)
    own = [pod for pod in observed.pods if pod.child.labels.get(labels.ROLE) == role]
    if facts is None and written is None and not own:
        return None
    rows = _pods(own, found.events, now)
    desired = facts.replicas if facts else (written or {}).get("desired", 0)
    return RoleRow(
        role=role,
        desired=desired,
        ready=facts.ready_replicas if facts else 0,
        updated=facts.updated_replicas if facts else 0,
        restarts=sum(row.restarts for row in rows),
        pods=rows,
        scaled_by=_scaled_by(found, role, written or {}),
    )


def _pods(
    pods: Iterable[PodFacts], events: Sequence[EventFacts], now: datetime
) -> tuple[PodRow, ...]:
    by_name = sorted(pods, key=lambda pod: pod.child.name)
    return tuple(
        _pod(pod, [event for event in events if event.about_uid == pod.child.uid], now)
        for pod in by_name
    )


def _pod(pod: PodFacts, events: Sequence[EventFacts], now: datetime) -> PodRow:
    return PodRow(
        name=pod.child.name,
        node=pod.node_name,
        is_ready=pod.is_ready and not pod.child.deleting,
        restarts=pod.restarts,
        created_at=pod.child.created_at,
        waits_for=wait_of(pod, events, now),
        events=tuple(event for event in events if event.is_warning),
    )
