"""Owns which pods of worker groups are deleted, and how: outdated, dead and lost ones; pure.

Does not own groups as a whole (``rollout``) nor when one starts anew (``restarts``).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime

from mizzen_operator.observed import Child, PodFacts
from mizzen_operator.planner.groups import Group, is_lost, is_outdated
from mizzen_operator.render.group_life import GroupLife
from mizzen_operator.spec.model import Restart

BY_FORCE_S = 0
BROKEN_GROUP_GRACE_S = 10
"""A group that lost a rank can finish nothing: its pods only give back what they were asked."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PodEnd:
    """A pod to be deleted."""

    child: Child
    reason: str
    grace_s: int | None = None
    """Seconds until it is killed; None leaves its own time to it, 0 does not wait for its node."""


def lost_pods(groups: Iterable[Group], restart: Restart, now: datetime) -> Iterator[PodEnd]:
    """Ending pods whose node does not confirm their end, to be removed by force, once.

    A StatefulSet makes no new pod before the old one is confirmed to have ended, so it would wait
    for such a node for ever. That the old one may still run there does no harm: a group shares no
    state with any other (weights are mounted read-only, scratch volumes are the pod's own, no
    volume is for one writer), addresses lead to the new pod only, and ranks of a later epoch do
    not let it in. Its kubelet ends it when it is back.
    """
    for group in groups:
        for pod in group.pods:
            # Finalizers are others' to remove; they hold the object whatever is asked for.
            is_asked_for = pod.is_held or pod.end_grace_s == BY_FORCE_S
            if is_lost(pod, restart, now) and not is_asked_for:
                yield PodEnd(
                    child=pod.child, reason="its node does not confirm its end", grace_s=BY_FORCE_S
                )


def outdated_pods(group: Group, life: GroupLife) -> Iterator[PodEnd]:
    """Pods of an epoch before ``life``'s, also those that are ending at leisure."""
    for pod in group.pods:
        is_ending = pod.end_grace_s is not None and pod.end_grace_s <= BROKEN_GROUP_GRACE_S
        if is_outdated(pod, life) and not is_ending:
            yield PodEnd(
                child=pod.child,
                reason=f"its group starts anew as epoch {life.epoch}",
                grace_s=BROKEN_GROUP_GRACE_S,
            )


def dead_pods(group: Group) -> Iterator[PodEnd]:
    """Pods that a StatefulSet with OnDelete would leave dead: old template and not running.

    Their controller replaces pods of its current template by itself, and a ready pod of an older
    template keeps serving.
    """
    for pod in group.pods:
        if _is_dead(pod, group):
            yield PodEnd(child=pod.child, reason="it failed and its template is outdated")


def _is_dead(pod: PodFacts, group: Group) -> bool:
    revision = pod.child.labels.get("controller-revision-hash", "")
    update_revision = group.facts.update_revision
    is_old = bool(revision and update_revision) and revision != update_revision
    has_failed = bool(pod.waiting_reason and pod.waiting_reason != "ContainerCreating") or (
        bool(pod.unschedulable_message)
    )
    return is_old and has_failed and not pod.is_ready and not pod.child.deleting
