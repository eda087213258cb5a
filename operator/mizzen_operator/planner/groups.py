"""Owns reading worker groups out of the snapshot, and the budgets of a roll-out in groups.

Does not own what is done with them (``rollout``).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from mizzen_operator.observed import Observed, PodFacts, StatefulSetFacts
from mizzen_operator.render import labels
from mizzen_operator.render.group_life import GroupLife, epoch_of, life_of
from mizzen_operator.spec.model import Restart, Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One worker group as it is now."""

    name: str
    revision: str
    cohort: str
    index: int
    is_ready: bool
    """All of its pods are ready and of one epoch, and neither it nor one of them is going."""
    is_leaving: bool
    facts: StatefulSetFacts
    life: GroupLife
    pods: tuple[PodFacts, ...]
    """Its own, the ending ones too, by name."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Bounds of a roll-out, in groups."""

    surge: int
    unavailable: int


def groups_of(observed: Observed) -> list[Group]:
    """All worker groups of the service, the leaving ones too, sorted by name."""
    pods: dict[str, list[PodFacts]] = {}
    for pod in observed.pods:
        pods.setdefault(pod.child.owner_uid, []).append(pod)
    found = [
        _group(facts, pods.get(facts.child.uid, ()))
        for facts in observed.stateful_sets
        if observed.owns(facts.child)
        and facts.child.labels.get(labels.ROLE) == labels.ROLE_WORKER
        and facts.child.labels.get(labels.GROUP_INDEX, "").isdigit()
    ]
    return sorted(found, key=lambda group: group.name)


def _group(facts: StatefulSetFacts, pods: Iterable[PodFacts]) -> Group:
    child = facts.child
    life = life_of(facts.template_annotations, child.annotations)
    own = tuple(sorted(pods, key=lambda pod: pod.child.name))
    # The StatefulSet counts a ready pod until it is gone, although it takes no requests any more.
    is_whole = not any(pod.child.deleting or is_outdated(pod, life) for pod in own)
    return Group(
        name=child.name,
        revision=child.labels.get(labels.REVISION, ""),
        cohort=child.labels.get(labels.COHORT, ""),
        index=int(child.labels[labels.GROUP_INDEX]),
        is_ready=is_whole
        and not child.deleting
        and facts.replicas > 0
        and facts.ready_replicas >= facts.replicas,
        is_leaving=child.deleting,
        facts=facts,
        life=life,
        pods=own,
    )


def is_outdated(pod: PodFacts, life: GroupLife) -> bool:
    """Whether a pod is of an epoch before: it goes, and works with none of this one."""
    return epoch_of(pod.child.annotations) < life.epoch


def waiting_since(group: Group) -> datetime | None:
    """When the group's present attempt to become ready began; None when that is not known.

    A group that was ready and restarts a container begins anew, so it is not late at once.
    """
    moments = (
        group.facts.child.created_at,
        *(pod.child.created_at for pod in group.pods),
        *(pod.started_at for pod in group.pods),
    )
    return max((moment for moment in moments if moment is not None), default=None)


def lost_at(pod: PodFacts, restart: Restart) -> datetime | None:
    """From when on an ending pod is lost: nothing confirms its end; None while that is not known.

    Its grace period does not count on a node that stopped answering: nothing there heeds it. A pod
    that nobody deleted is never lost: while its node is only cut off it may serve on, and when to
    evict pods of such nodes is for Kubernetes, which stops that where too many nodes seem lost.
    """
    if not pod.child.deleting or pod.child.ends_at is None:
        return None
    ends = (pod.child.ends_at, pod.unreachable_since)
    return min(end for end in ends if end) + timedelta(seconds=restart.node_lost_seconds)


def is_lost(pod: PodFacts, restart: Restart, now: datetime) -> bool:
    """Whether that time has come."""
    moment = lost_at(pod, restart)
    return moment is not None and moment <= now


def lost_groups(groups: Iterable[Group], restart: Restart, now: datetime) -> frozenset[str]:
    """Names of leaving groups that have pods, all of them lost."""
    return frozenset(
        group.name
        for group in groups
        if group.is_leaving and group.pods and all(is_lost(pod, restart, now) for pod in group.pods)
    )


def budget_of(rollout: Rollout, desired: int) -> Budget:
    """Percentages of ``desired`` as groups: surge rounds up, unavailable down.

    Both may round to 0, with which nothing could ever move: then one group may be missing.
    """
    surge = _count(rollout.max_surge, desired, round_up=True)
    unavailable = _count(rollout.max_unavailable, desired, round_up=False)
    if surge == 0 and unavailable == 0:
        unavailable = 1
    return Budget(surge=surge, unavailable=min(unavailable, desired))


def _count(value: int | str, desired: int, *, round_up: bool) -> int:
    if isinstance(value, int):
        return value
    exact = int(value.rstrip("%")) * desired / 100
    return math.ceil(exact) if round_up else math.floor(exact)
