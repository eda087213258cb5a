"""Owns reading worker groups out of the snapshot, and the budgets of a roll-out in groups.

Does not own what is done with them (``rollout``).
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from mizzen_operator.observed import Observed, PodFacts, StatefulSetFacts
from mizzen_operator.render import labels
from mizzen_operator.spec.model import Rollout


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """One worker group as it is now."""

    name: str
    revision: str
    cohort: str
    index: int
    is_ready: bool
    """All of its pods are ready and it is not being deleted."""
    is_leaving: bool
    facts: StatefulSetFacts


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Bounds of a roll-out, in groups."""

    surge: int
    unavailable: int


def groups_of(observed: Observed) -> list[Group]:
    """All worker groups of the service, the leaving ones too, sorted by name."""
    found = [
        _group(facts)
        for facts in observed.stateful_sets
        if observed.owns(facts.child)
        and facts.child.labels.get(labels.ROLE) == labels.ROLE_WORKER
        and facts.child.labels.get(labels.GROUP_INDEX, "").isdigit()
    ]
    return sorted(found, key=lambda group: group.name)


def _group(facts: StatefulSetFacts) -> Group:
    child = facts.child
    return Group(
        name=child.name,
        revision=child.labels.get(labels.REVISION, ""),
        cohort=child.labels.get(labels.COHORT, ""),
        index=int(child.labels[labels.GROUP_INDEX]),
        is_ready=not child.deleting
        and facts.replicas > 0
        and facts.ready_replicas >= facts.replicas,
        is_leaving=child.deleting,
        facts=facts,
    )


def waiting_since(group: Group, pods: Iterable[PodFacts]) -> datetime | None:
    """When the group's present attempt to become ready began; None when that is not known.

    A group that was ready and restarts a container begins anew, so it is not late at once.
    """
    own = [pod for pod in pods if pod.child.owner_uid == group.facts.child.uid]
    moments = (
        group.facts.child.created_at,
        *(pod.child.created_at for pod in own),
        *(pod.started_at for pod in own),
    )
    return max((moment for moment in moments if moment is not None), default=None)


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
