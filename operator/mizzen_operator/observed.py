"""Owns the typed, frozen snapshot of one service's live objects: the input of plan and status.

Does not own how it is filled (``store`` and the watch do that) nor any decision about it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ObservedService:
    """Metadata and last written status of the InferenceService itself."""

    name: str
    namespace: str
    uid: str
    generation: int
    deleting: bool = False
    status: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Child:
    """Metadata of one object that we created; enough for pruning and preconditions."""

    api_version: str
    kind: str
    name: str
    uid: str
    resource_version: str
    owner_uid: str
    """UID of the controller owner reference; empty if there is none."""
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    deleting: bool = False
    created_at: datetime | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StatefulSetFacts:
    """What plan and status need of a group's StatefulSet beyond its metadata."""

    child: Child
    replicas: int
    ready_replicas: int
    update_revision: str
    """``status.updateRevision``: the controller-revision-hash of the current template."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentFacts:
    """What status needs of a Deployment beyond its metadata."""

    child: Child
    replicas: int
    ready_replicas: int
    updated_replicas: int
    is_observed: bool
    """The Deployment controller has seen the current generation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceFacts:
    """A Service and the addresses that a load balancer gave it."""

    child: Child
    type: str = "ClusterIP"
    ingress_addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PodFacts:
    """One pod of the service, found by label (its owner is a StatefulSet or a ReplicaSet)."""

    child: Child
    phase: str
    is_ready: bool
    unschedulable_message: str
    """The scheduler's message while PodScheduled is False; empty otherwise."""
    waiting_reason: str
    """Reason of the first container that waits, such as CrashLoopBackOff; empty otherwise."""
    waiting_message: str
    restarts: int
    last_exit: str
    """Reason and exit code of the container's last end; empty if it never ended."""
    node_name: str
    started_at: datetime | None = None
    """When its youngest container began to run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimFacts:
    """A user's PersistentVolumeClaim."""

    name: str
    phase: str
    access_modes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """Everything seen of one service at one moment.

    ``children`` holds every owned object of every kind we may create, the typed ones below
    included, because pruning needs them all; pods belong to other controllers and are only in
    ``pods``.
    """

    service: ObservedService
    children: tuple[Child, ...] = ()
    stateful_sets: tuple[StatefulSetFacts, ...] = ()
    deployments: tuple[DeploymentFacts, ...] = ()
    services: tuple[ServiceFacts, ...] = ()
    pods: tuple[PodFacts, ...] = ()
    claims: tuple[ClaimFacts, ...] = ()
    claims_known: bool = False
    """Claims were looked at: one that is not in ``claims`` does not exist."""

    def owns(self, child: Child) -> bool:
        """Whether the service is the object's controller; a label or a name proves nothing."""
        return child.owner_uid == self.service.uid

    def deployment(self, name: str) -> DeploymentFacts | None:
        """The service's own Deployment of this name."""
        found = (item for item in self.deployments if item.child.name == name)
        return next((item for item in found if self.owns(item.child)), None)


def child_of(obj: Mapping[str, Any]) -> Child:
    """Metadata of an API object; works for partial (metadata-only) objects too."""
    meta = obj["metadata"]
    references = meta.get("ownerReferences") or ()
    owner_uids = [str(ref["uid"]) for ref in references if ref.get("controller")]
    return Child(
        api_version=obj["apiVersion"],
        kind=obj["kind"],
        name=meta["name"],
        uid=meta["uid"],
        resource_version=meta["resourceVersion"],
        owner_uid=owner_uids[0] if owner_uids else "",
        labels=meta.get("labels") or {},
        annotations=meta.get("annotations") or {},
        deleting="deletionTimestamp" in meta,
        created_at=_moment(meta.get("creationTimestamp")),
    )


def service_of(obj: Mapping[str, Any]) -> ObservedService:
    """The InferenceService's own metadata and last status."""
    meta = obj["metadata"]
    return ObservedService(
        name=meta["name"],
        namespace=meta["namespace"],
        uid=meta["uid"],
        generation=meta["generation"],
        deleting="deletionTimestamp" in meta,
        status=obj.get("status") or {},
    )


def stateful_set_of(obj: Mapping[str, Any]) -> StatefulSetFacts:
    """Facts of an ``apps/v1`` StatefulSet."""
    status = obj.get("status") or {}
    return StatefulSetFacts(
        child=child_of(obj),
        replicas=obj["spec"].get("replicas", 1),
        ready_replicas=status.get("readyReplicas", 0),
        update_revision=status.get("updateRevision", ""),
    )


def deployment_of(obj: Mapping[str, Any]) -> DeploymentFacts:
    """Facts of an ``apps/v1`` Deployment."""
    status = obj.get("status") or {}
    return DeploymentFacts(
        child=child_of(obj),
        replicas=obj["spec"].get("replicas", 1),
        ready_replicas=status.get("readyReplicas", 0),
        updated_replicas=status.get("updatedReplicas", 0),
        is_observed=status.get("observedGeneration", 0) >= obj["metadata"].get("generation", 0),
    )


def service_facts_of(obj: Mapping[str, Any]) -> ServiceFacts:
    """Facts of a ``v1`` Service."""
    balancer = (obj.get("status") or {}).get("loadBalancer") or {}
    addresses = [item.get("hostname") or item.get("ip") for item in balancer.get("ingress") or ()]
    return ServiceFacts(
        child=child_of(obj),
        type=(obj.get("spec") or {}).get("type", "ClusterIP"),
        ingress_addresses=tuple(address for address in addresses if address),
    )


def pod_of(obj: Mapping[str, Any]) -> PodFacts:
    """Facts of a ``v1`` Pod."""
    status = obj.get("status") or {}
    by_type = {item["type"]: item for item in status.get("conditions") or ()}
    scheduled = by_type.get("PodScheduled", {})
    containers = status.get("containerStatuses") or ()
    waiting = _first_waiting(containers)
    return PodFacts(
        child=child_of(obj),
        phase=status.get("phase", "Pending"),
        is_ready=by_type.get("Ready", {}).get("status") == "True",
        unschedulable_message=(
            scheduled.get("message", "") if scheduled.get("status") == "False" else ""
        ),
        waiting_reason=waiting.get("reason", ""),
        waiting_message=waiting.get("message", ""),
        restarts=sum(item.get("restartCount", 0) for item in containers),
        last_exit=_last_exit(containers),
        node_name=(obj.get("spec") or {}).get("nodeName", ""),
        started_at=_last_start(containers),
    )


def claim_of(obj: Mapping[str, Any]) -> ClaimFacts:
    """Facts of a ``v1`` PersistentVolumeClaim."""
    return ClaimFacts(
        name=obj["metadata"]["name"],
        phase=(obj.get("status") or {}).get("phase", "Pending"),
        access_modes=tuple(obj["spec"].get("accessModes") or ()),
    )


def _first_waiting(containers: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    for item in containers:
        waiting = (item.get("state") or {}).get("waiting")
        if waiting:
            return dict(waiting)
    return {}


def _last_start(containers: Sequence[Mapping[str, Any]]) -> datetime | None:
    running = [(item.get("state") or {}).get("running") or {} for item in containers]
    moments = [_moment(state.get("startedAt")) for state in running]
    return max((moment for moment in moments if moment is not None), default=None)


def _last_exit(containers: Sequence[Mapping[str, Any]]) -> str:
    for item in containers:
        for state in (item.get("state") or {}, item.get("lastState") or {}):
            ended = state.get("terminated")
            if ended:
                return f"{ended.get('reason', 'Error')}, exit code {ended.get('exitCode', '?')}"
    return ""


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
