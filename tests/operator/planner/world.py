"""Owns a small world in which plans are carried out and groups start, fail and end.

It does what the API server and the StatefulSet controller do as far as a plan can see: it refuses
a delete whose preconditions are stale, and a deleted group stays until it has drained.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any

from mizzen_operator.observed import (
    Child,
    DeploymentFacts,
    Observed,
    ObservedService,
    PodFacts,
    RevisionFacts,
    StatefulSetFacts,
)
from mizzen_operator.planner.groups import Group, groups_of
from mizzen_operator.planner.model import Delete, Plan
from mizzen_operator.planner.plan import plan
from mizzen_operator.render import labels
from mizzen_operator.spec.resolve import Resolved

START = datetime(2026, 1, 1, tzinfo=UTC)


@dataclass
class World:
    """All objects of one service."""

    service: Resolved
    now: datetime = START
    children: dict[tuple[str, str], Child] = field(default_factory=dict)
    replicas: dict[str, int] = field(default_factory=dict)
    ready: dict[str, int] = field(default_factory=dict)
    stored: dict[str, tuple[int, Mapping[str, Any]]] = field(default_factory=dict)
    """Number and data of each ControllerRevision."""
    pods: list[PodFacts] = field(default_factory=list)
    updated: dict[str, int] = field(default_factory=dict)
    tokenizer_cohort: str = ""
    """Cohort of the tokenizer pods that are ready; empty if none is."""
    num_writes: int = 0
    next_id: int = 0

    def _id(self) -> str:
        self.next_id += 1
        return str(self.next_id)

    def observed(self) -> Observed:
        """The snapshot that a reconcile would see."""
        sets = [child for key, child in self.children.items() if key[0] == "StatefulSet"]
        deployments = [child for key, child in self.children.items() if key[0] == "Deployment"]
        return Observed(
            service=ObservedService(
                name=self.service.name,
                namespace=self.service.namespace,
                uid=self.service.uid,
                generation=self.service.generation,
            ),
            children=tuple(self.children.values()),
            stateful_sets=tuple(
                StatefulSetFacts(
                    child=child,
                    replicas=self.replicas[child.name],
                    ready_replicas=self.ready.get(child.name, 0),
                    update_revision="r1",
                )
                for child in sets
            ),
            deployments=tuple(
                DeploymentFacts(
                    child=child,
                    replicas=self.replicas[child.name],
                    ready_replicas=self.ready.get(child.name, 0),
                    updated_replicas=self.updated.get(child.name, 0),
                    is_observed=True,
                )
                for child in deployments
            ),
            revisions=tuple(
                RevisionFacts(child=child, number=number, data=data)
                for name, (number, data) in self.stored.items()
                if (child := self.children.get(("ControllerRevision", name))) is not None
            ),
            pods=(*self.pods, *self._tokenizer_pods()),
        )

    def _tokenizer_pods(self) -> list[PodFacts]:
        if not self.tokenizer_cohort:
            return []
        child = foreign(
            "tokenizer-pod",
            "Pod",
            "replica-set",
            **{labels.ROLE: labels.ROLE_TOKENIZER, labels.COHORT: self.tokenizer_cohort},
        )
        return [ready_pod(child)]

    def groups(self) -> list[Group]:
        """The worker groups now."""
        return groups_of(self.observed())

    def plan(self) -> Plan:
        """The plan for the world as it is."""
        return plan(self.service, self.observed(), self.now)

    def carry_out(self, wanted: Plan) -> None:
        """Apply what differs, delete what is still as it was seen."""
        for obj in wanted.apply:
            self._apply(obj)
        for item in wanted.delete:
            if item.kind == "Pod":
                self._end_pod(item)
                continue
            child = self.children[item.kind, item.name]
            assert (child.uid, child.resource_version) == (item.uid, item.resource_version)
            self.num_writes += 1
            if item.kind == "StatefulSet":
                self._change(item.name, deleting=True)
            else:
                del self.children[item.kind, item.name]
                if item.kind == "Deployment":
                    self.tokenizer_cohort = ""

    def _end_pod(self, item: Delete) -> None:
        (pod,) = (pod for pod in self.pods if pod.child.uid == item.uid)
        assert pod.child.resource_version == item.resource_version
        self.num_writes += 1
        self.pods.remove(pod)
        if item.grace_s != 0:
            self.pods.append(replace(pod, child=replace(pod.child, deleting=True)))

    def _apply(self, obj: Mapping[str, Any]) -> None:
        meta = obj["metadata"]
        key = (obj["kind"], meta["name"])
        known = self.children.get(key)
        if known and known.annotations == meta["annotations"]:
            return
        assert known is None or not known.deleting, f"{key} is ending"
        self.num_writes += 1
        self.children[key] = Child(
            api_version=obj["apiVersion"],
            kind=obj["kind"],
            name=meta["name"],
            uid=known.uid if known else f"uid-{self._id()}",
            resource_version=self._id(),
            owner_uid=meta["ownerReferences"][0]["uid"],
            labels=meta["labels"],
            annotations=meta["annotations"],
            created_at=known.created_at if known else self.now,
        )
        if key[0] == "ControllerRevision":
            _, data = self.stored.get(key[1], (0, obj["data"]))
            assert data == obj["data"], "the API server lets nobody change it"
            self.stored[key[1]] = (obj["revision"], data)
        if key[0] in ("StatefulSet", "Deployment"):
            self.replicas[key[1]] = obj["spec"]["replicas"]
            if key[0] == "Deployment":
                self.updated[key[1]] = 0

    def _change(self, name: str, *, deleting: bool = False) -> None:
        child = self.children["StatefulSet", name]
        self.children["StatefulSet", name] = replace(
            child, resource_version=self._id(), deleting=child.deleting or deleting
        )

    def set_ready(self, name: str, *, ready: bool) -> None:
        """A group's pods become ready, or one of them stops being so."""
        self.ready[name] = self.replicas[name] - (0 if ready else 1)
        self._change(name)

    def end(self, name: str) -> None:
        """A leaving group has drained and is gone."""
        assert self.children["StatefulSet", name].deleting
        del self.children["StatefulSet", name]
        self.ready.pop(name, None)

    def settle(self, broken: frozenset[str] = frozenset()) -> None:
        """Everything that is under way comes to its end; groups of broken revisions never start."""
        self.now += timedelta(seconds=10)
        for group in self.groups():
            if group.is_leaving:
                self.end(group.name)
            elif not group.is_ready and group.revision not in broken:
                self.set_ready(group.name, ready=True)
        self._settle_tokenizers()

    def _settle_tokenizers(self) -> None:
        """New tokenizer pods become ready where a group of their cohort is; then old ones go."""
        ready_cohorts = {group.cohort for group in self.groups() if group.is_ready}
        for (kind, name), child in self.children.items():
            cohort = child.labels.get(labels.COHORT, "")
            if kind == "Deployment" and (cohort in ready_cohorts or not self.replicas[name]):
                self.ready[name] = self.updated[name] = self.replicas[name]
                self.tokenizer_cohort = cohort if self.replicas[name] else ""

    def is_serving(self) -> bool:
        """Ready tokenizers have a ready group of their own cohort."""
        cohorts = {group.cohort for group in self.groups() if group.is_ready}
        return self.tokenizer_cohort in cohorts

    def run(self, broken: frozenset[str] = frozenset(), max_rounds: int = 60) -> int:
        """Plan and settle until nothing is written and nothing moves; the number of rounds."""
        for rounds in range(max_rounds):
            before = (self.num_writes, self._moving(broken))
            self.carry_out(self.plan())
            self.settle(broken)
            if before == (self.num_writes, False):
                return rounds
        message = f"still moving after {max_rounds} rounds: {[g.name for g in self.groups()]}"
        raise AssertionError(message)

    def _moving(self, broken: frozenset[str]) -> bool:
        return any(
            group.is_leaving or (not group.is_ready and group.revision not in broken)
            for group in self.groups()
        )


def adopt(world: World, child: Child) -> None:
    """Put an object into the world that the planner did not make."""
    world.children[child.kind, child.name] = child


def foreign(name: str, kind: str, owner_uid: str, **more: str) -> Child:
    """An object of somebody else, or an orphan of ours."""
    return Child(
        api_version="v1",
        kind=kind,
        name=name,
        uid=f"uid-{name}",
        resource_version="1",
        owner_uid=owner_uid,
        labels={labels.SERVICE_UID: owner_uid, **more},
    )


def ready_pod(child: Child) -> PodFacts:
    """A pod that runs well."""
    return PodFacts(
        child=child,
        phase="Running",
        is_ready=True,
        unschedulable_message="",
        waiting_reason="",
        waiting_message="",
        restarts=0,
        last_exit="",
        node_name="n1",
    )
