"""Owns one worker group whose pods start, end and fail, over the pure rules alone.

It does what the StatefulSet controller and kubelets do: a missing pod is made from the template as
it is, an ended container is started again, and a lost node confirms no end.
"""

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from tests.operator.planner.world import foreign, ready_pod

from mizzen_operator.observed import Child, Observed, ObservedService, PodFacts, StatefulSetFacts
from mizzen_operator.planner.groups import Group, groups_of
from mizzen_operator.planner.pod_ends import BROKEN_GROUP_GRACE_S, lost_pods, outdated_pods
from mizzen_operator.planner.restarts import Verdict, verdict_on
from mizzen_operator.render import labels
from mizzen_operator.render.group_life import GroupLife, with_life
from mizzen_operator.spec.model import Restart

OWN_GRACE_S = 330


@dataclass
class GroupWorld:
    """A StatefulSet of ``size`` pods, all ready at first."""

    size: int
    restart: Restart = field(default_factory=Restart)
    now: datetime = datetime(2026, 1, 1, tzinfo=UTC)
    life: GroupLife = field(default_factory=GroupLife)
    pods: dict[int, PodFacts] = field(default_factory=dict)
    lost_ranks: set[int] = field(default_factory=set)
    """Ranks whose present pod is on a node that answers no more."""
    broken_ranks: set[int] = field(default_factory=set)
    """Ranks that end again and again before they are ready."""
    late_ranks: set[int] = field(default_factory=set)
    """Ranks whose image is still being pulled."""
    num_writes: int = 0
    num_pods: int = 0

    def __post_init__(self) -> None:
        self.settle()

    def group(self) -> Group:
        """The group as a plan sees it."""
        pods = tuple(self.pods.values())
        ready = sum(pod.is_ready for pod in pods)
        child = Child(
            api_version="apps/v1",
            kind="StatefulSet",
            name="g-0",
            uid="set",
            resource_version="1",
            owner_uid="service",
            labels={labels.ROLE: labels.ROLE_WORKER, labels.GROUP_INDEX: "0"},
            annotations=self._written()["metadata"].get("annotations", {}),
        )
        facts = StatefulSetFacts(
            child=child,
            replicas=self.size,
            ready_replicas=ready,
            update_revision="",
            template_annotations=self._written()["spec"]["template"]["metadata"]["annotations"],
        )
        service = ObservedService(name="s", namespace="n", uid="service", generation=1)
        (group,) = groups_of(Observed(service=service, stateful_sets=(facts,), pods=pods))
        return group

    def _written(self) -> dict:
        return with_life({"metadata": {}, "spec": {"template": {"metadata": {}}}}, self.life)

    def look(self) -> Verdict:
        """One pass of the operator, carried out."""
        group = self.group()
        verdict = verdict_on(group, self.restart, self.now)
        self.num_writes += verdict.life != self.life
        self.life = verdict.life
        ends = [*lost_pods([group], self.restart, self.now), *outdated_pods(group, self.life)]
        for end in ends:
            self.num_writes += 1
            rank = int(end.child.name.rpartition("-")[2])
            self.delete(rank, OWN_GRACE_S if end.grace_s is None else end.grace_s)
        return verdict

    def settle(self, seconds: float = 0) -> None:
        """Time passes, and everybody but the operator does what there is to do."""
        self.now += timedelta(seconds=seconds)
        for rank in range(self.size):
            pod = self.pods.get(rank)
            if pod is not None and pod.child.deleting and rank not in self.lost_ranks:
                del self.pods[rank]
            if rank not in self.pods:
                self._make(rank)
        if {int(pod.child.name[-1]) for pod in self.pods.values()} & self.broken_ranks:
            for rank in self.broken_ranks:
                self.end_container(rank)
            return
        if not self.late_ranks:
            for rank, pod in self.pods.items():
                if not pod.child.deleting and pod.phase == "Running":
                    self.pods[rank] = replace(pod, is_ready=True)

    def _make(self, rank: int) -> None:
        self.num_pods += 1
        self.lost_ranks.discard(rank)
        child = foreign(f"g-0-{rank}", "Pod", "set")
        annotations = {labels.EPOCH: str(self.life.epoch)}
        child = replace(child, uid=f"pod-{self.num_pods}", annotations=annotations)
        self.pods[rank] = replace(ready_pod(child), is_ready=False)

    def delete(self, rank: int, grace_s: int = OWN_GRACE_S) -> None:
        """Somebody deletes the pod of a rank; an earlier end wins."""
        pod = self.pods[rank]
        if grace_s == 0:
            del self.pods[rank]
            self._make(rank)
            return
        ends_at = self.now + timedelta(seconds=grace_s)
        if pod.child.ends_at is None or ends_at < pod.child.ends_at:
            child = replace(pod.child, deleting=True, ends_at=ends_at)
            self.pods[rank] = replace(pod, child=child, end_grace_s=grace_s)

    def end_container(self, rank: int) -> None:
        """A container ends and its kubelet starts it again."""
        if rank in self.pods and rank not in self.lost_ranks:
            pod = self.pods[rank]
            self.pods[rank] = replace(pod, restarts=pod.restarts + 1, is_ready=False)

    def fail(self, rank: int) -> None:
        """A pod is evicted by its node and stays as it ended."""
        if rank in self.pods and not self.pods[rank].child.deleting:
            self.pods[rank] = replace(self.pods[rank], phase="Failed", is_ready=False)

    def epochs(self) -> set[int]:
        """Epochs of the pods that are there."""
        return {int(pod.child.annotations[labels.EPOCH]) for pod in self.pods.values()}

    def uids(self) -> set[str]:
        return {pod.child.uid for pod in self.pods.values()}

    def run(self, max_rounds: int = 400) -> int:
        """Look and let time pass until nothing is written and all is ready; number of restarts."""
        before = self.life.epoch
        for _ in range(max_rounds):
            writes = self.num_writes
            self.look()
            if writes == self.num_writes and self.group().is_ready:
                return self.life.epoch - before
            self.settle(BROKEN_GROUP_GRACE_S)
        message = f"not at rest: {self.life}, {self.pods}"
        raise AssertionError(message)
