"""Owns the typed, frozen snapshot of one service's live objects: the input of plan and status.

Does not own how it is filled (``store`` and the watch do that) nor any decision about it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import Any

from mizzen_operator.container_states import (
    first_waiting,
    last_end,
    last_exit,
    last_failure,
    last_start,
    moment_of,
    own_and_others,
    waiting_state,
)
from mizzen_operator.errors import NAME_CONFLICT
from mizzen_operator.route_answers import ParentAnswer
from mizzen_operator.worker_contract import CONTAINER


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
    ends_at: datetime | None = None
    """When what is being deleted should be gone; of a pod the end of its grace period."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StatefulSetFacts:
    """What plan and status need of a group's StatefulSet beyond its metadata."""

    child: Child
    replicas: int
    ready_replicas: int
    update_revision: str
    """``status.updateRevision``: the controller-revision-hash of the current template."""
    template_annotations: Mapping[str, str] = field(default_factory=dict)
    """Annotations that new pods get."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeploymentFacts:
    """What status needs of a Deployment beyond its metadata."""

    child: Child
    replicas: int
    ready_replicas: int
    updated_replicas: int
    is_observed: bool
    """The Deployment controller has seen the current generation."""
    replica_failure: str = ""
    """Why its controller cannot make pods; empty if it can."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceFacts:
    """A Service and the addresses that a load balancer gave it."""

    child: Child
    type: str = "ClusterIP"
    ingress_addresses: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class RevisionFacts:
    """A ControllerRevision of ours: what the pods of one revision are rendered from."""

    child: Child
    number: int
    data: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleScalerFacts:
    """An InferenceRoleScaler of ours, whoever wrote its scale."""

    child: Child
    generation: int
    replicas: int
    status: Mapping[str, Any]
    """As last written."""


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
    """Of our own container."""
    last_exit: str
    """How our container, or another one that failed, ended last; empty if none did."""
    node_name: str
    started_at: datetime | None = None
    """When our own container began to run."""
    has_started: bool = False
    """Every container runs and its startup probe has succeeded."""
    ready_changed_at: datetime | None = None
    """When it became ready, or stopped being so."""
    end_grace_s: int | None = None
    """Seconds that its end was granted; 0 if it was deleted by force; None if it is not ending."""
    is_held: bool = False
    """It has finalizers: somebody else keeps the object, whatever became of its containers."""
    unreachable_since: datetime | None = None
    """When it was marked not ready because its node stopped answering; None if it was not."""
    end_message: str = ""
    """Termination message of our container's last end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimFacts:
    """A PersistentVolumeClaim, a user's or our own."""

    name: str
    phase: str
    access_modes: tuple[str, ...]
    storage_class: str = ""
    """Empty if it names none and the cluster has no default."""
    requested: str = ""
    """Quantity of storage that it asks for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnClaimFacts:
    """A claim that we made for fetched weights."""

    child: Child
    claim: ClaimFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class JobFacts:
    """A Job that fetches weights."""

    child: Child
    is_complete: bool
    is_failed: bool
    """It makes no more pods: the back-off is used up, or a pod said that trying is no use."""
    failure: str
    """The Job controller's sentence about that; empty unless failed."""
    num_failed: int
    """Pods that ended in failure."""


class Lack(StrEnum):
    """Why the operator does without an optional kind of object; the value is a reason."""

    NOT_INSTALLED = "ApiNotInstalled"
    NOT_ALLOWED = "NotAllowed"
    NO_ANSWER = "NoAnswer"
    NAME_TAKEN = NAME_CONFLICT
    """Known of one service: the name that its object needs is that of somebody else's."""


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
    revisions: tuple[RevisionFacts, ...] = ()
    role_scalers: tuple[RoleScalerFacts, ...] = ()
    pods: tuple[PodFacts, ...] = ()
    own_claims: tuple[OwnClaimFacts, ...] = ()
    jobs: tuple[JobFacts, ...] = ()
    claims: tuple[ClaimFacts, ...] = ()
    """Users' claims."""
    claims_known: bool = False
    """Claims were looked at: one that is not in ``claims`` does not exist."""
    route_answers: Mapping[tuple[str, str], tuple[ParentAnswer, ...]] = field(default_factory=dict)
    """What Gateways' controllers say of routes and pools with our label, by kind and name."""
    lacking: Mapping[str, Lack] = field(default_factory=dict)
    """Optional kinds that this cluster does not have for us, by name."""

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
        created_at=moment_of(meta.get("creationTimestamp")),
        ends_at=moment_of(meta.get("deletionTimestamp")),
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
        template_annotations=_template_annotations(obj["spec"]),
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
        replica_failure=_message_while(status, "ReplicaFailure", "True"),
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


def revision_facts_of(obj: Mapping[str, Any]) -> RevisionFacts:
    """Facts of an ``apps/v1`` ControllerRevision."""
    return RevisionFacts(
        child=child_of(obj), number=obj.get("revision", 0), data=obj.get("data") or {}
    )


def role_scaler_of(obj: Mapping[str, Any]) -> RoleScalerFacts:
    """Facts of an InferenceRoleScaler."""
    return RoleScalerFacts(
        child=child_of(obj),
        generation=obj["metadata"].get("generation", 0),
        replicas=obj["spec"]["replicas"],
        status=obj.get("status") or {},
    )


def pod_of(obj: Mapping[str, Any]) -> PodFacts:
    """Facts of a ``v1`` Pod."""
    status = obj.get("status") or {}
    by_type = {item["type"]: item for item in status.get("conditions") or ()}
    containers = status.get("containerStatuses") or ()
    # Others are those of a pod template: of the pod, but not of what it serves.
    own, others = own_and_others(status, CONTAINER)
    waiting = waiting_state(waits := first_waiting([*others, *own]))
    whose = f"container {waits['name']}: " if waits in others else ""
    return PodFacts(
        child=child_of(obj),
        phase=status.get("phase", "Pending"),
        is_ready=by_type.get("Ready", {}).get("status") == "True",
        unschedulable_message=_message_while(status, "PodScheduled", "False"),
        waiting_reason=waiting.get("reason", ""),
        waiting_message=f"{whose}{waiting.get('message', '')}",
        restarts=sum(item.get("restartCount", 0) for item in own),
        last_exit=last_failure([waits]) if whose else last_exit(own) or last_failure(others),
        node_name=(obj.get("spec") or {}).get("nodeName", ""),
        started_at=last_start(own),
        has_started=bool(containers) and all(item.get("started") for item in containers),
        ready_changed_at=moment_of(by_type.get("Ready", {}).get("lastTransitionTime")),
        end_grace_s=obj["metadata"].get("deletionGracePeriodSeconds"),
        is_held=bool(obj["metadata"].get("finalizers")),
        unreachable_since=_unreachable_since(by_type),
        end_message=last_end(own).get("message", ""),
    )


def claim_of(obj: Mapping[str, Any]) -> ClaimFacts:
    """Facts of a ``v1`` PersistentVolumeClaim."""
    return ClaimFacts(
        name=obj["metadata"]["name"],
        phase=(obj.get("status") or {}).get("phase", "Pending"),
        access_modes=tuple(obj["spec"].get("accessModes") or ()),
        storage_class=obj["spec"].get("storageClassName") or "",
        requested=((obj["spec"].get("resources") or {}).get("requests") or {}).get("storage", ""),
    )


def own_claim_of(obj: Mapping[str, Any]) -> OwnClaimFacts:
    """Facts of a claim of ours."""
    return OwnClaimFacts(child=child_of(obj), claim=claim_of(obj))


def job_of(obj: Mapping[str, Any]) -> JobFacts:
    """Facts of a ``batch/v1`` Job."""
    status = obj.get("status") or {}
    true = {
        item["type"]: item
        for item in status.get("conditions") or ()
        if item.get("status") == "True"
    }
    failed = true.get("Failed", {})
    return JobFacts(
        child=child_of(obj),
        is_complete="Complete" in true,
        is_failed="Failed" in true,
        failure=f"{failed.get('reason', '')}: {failed.get('message', '')}" if failed else "",
        num_failed=status.get("failed", 0),
    )


def _message_while(status: Mapping[str, Any], kind: str, truth: str) -> str:
    """Message of a condition while it has this status; empty otherwise."""
    found = (item for item in status.get("conditions") or () if item["type"] == kind)
    return next((item.get("message", "") for item in found if item["status"] == truth), "")


def _unreachable_since(by_type: Mapping[str, Mapping[str, Any]]) -> datetime | None:
    """Nodes may not be read, but a pod tells of its own one.

    A kubelet reports Ready and ContainersReady alike (we have no readiness gates). Only the node
    controller sets Ready by itself: to False, on every pod of a node that stopped answering.
    """
    ready, containers = by_type.get("Ready", {}), by_type.get("ContainersReady", {})
    if ready.get("status") == "False" and containers.get("status") == "True":
        return moment_of(ready.get("lastTransitionTime"))
    return None


def _template_annotations(spec: Mapping[str, Any]) -> Mapping[str, str]:
    metadata = (spec.get("template") or {}).get("metadata") or {}
    return metadata.get("annotations") or {}
