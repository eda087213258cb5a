"""Owns what is done for groups that stay: which of their pods end, and which of them start anew.

Does not own when that is (``restarts``, ``pod_ends``) nor which groups stay (``rollout``). Pure.
Groups are healed also while their service's spec is refused, as it was accepted once: then nothing
begins, rolls or is scaled, and a group is written only because its life changes, from its own
stored revision.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from mizzen_operator.observed import Child, Observed
from mizzen_operator.planner.groups import Group, groups_of, lost_at
from mizzen_operator.planner.history import StoredRevision, as_stored, history_of
from mizzen_operator.planner.model import Delete, GroupRestart, Plan
from mizzen_operator.planner.pod_ends import PodEnd, dead_pods, lost_pods, outdated_pods
from mizzen_operator.planner.restarts import Verdict, verdict_on
from mizzen_operator.render.render import rendered_worker_group
from mizzen_operator.spec.model import Restart

MIN_RECHECK_S = 1.0


def healed_only(observed: Observed, restart: Restart, now: datetime) -> Plan:
    """The plan for a service whose spec is refused."""
    groups = groups_of(observed)
    verdicts = {group.name: verdict_on(group, restart, now) for group in groups}
    written = tuple(_written(groups, verdicts, history_of(observed)))
    rendered = frozenset(obj["metadata"]["name"] for obj in written)
    ends = (*lost_pods(groups, restart, now), *pod_ends(groups, verdicts, rendered))
    moments = healing_moments(verdicts, restart, observed)
    return Plan(
        apply=written,
        restarts=tuple(group_restarts(verdicts, groups, rendered)),
        delete=tuple(deleted_pods(ends, observed)),
        requeue_after_s=first_wait_s(moments, now),
    )


def _written(
    groups: Iterable[Group],
    verdicts: Mapping[str, Verdict],
    history: Sequence[StoredRevision],
) -> Iterator[dict[str, Any]]:
    """Groups whose life changes; one whose revision is not stored is left as it is."""
    for group in groups:
        life = verdicts[group.name].life
        resolved = None if life == group.life else as_stored(group, history)
        if resolved is not None:
            yield rendered_worker_group(resolved, group.index, life)


def pod_ends(
    groups: Iterable[Group], verdicts: Mapping[str, Verdict], rendered: frozenset[str]
) -> Iterator[PodEnd]:
    """Pods that end now, of groups that stay; ``rendered`` are those whose life can be written."""
    for group in groups:
        if group.is_leaving:
            continue
        life = verdicts[group.name].life if group.name in rendered else group.life
        yield from outdated_pods(group, life)
        yield from dead_pods(group)


def group_restarts(
    verdicts: Mapping[str, Verdict], groups: Iterable[Group], rendered: frozenset[str]
) -> Iterator[GroupRestart]:
    """The groups that start anew, of those whose life can be written."""
    for group in groups:
        verdict = verdicts[group.name]
        is_new = verdict.life.epoch != group.life.epoch
        if group.name in rendered and is_new and verdict.cause is not None:
            yield GroupRestart(group=group.name, epoch=verdict.life.epoch, cause=verdict.cause)


def healing_moments(
    verdicts: Mapping[str, Verdict], restart: Restart, observed: Observed
) -> Iterator[datetime]:
    """When a group starts anew, or a pod is lost, although no event says so."""
    for verdict in verdicts.values():
        if verdict.not_before is not None:
            yield verdict.not_before
    for pod in observed.pods:
        moment = lost_at(pod, restart)
        if moment is not None:
            yield moment


def first_wait_s(moments: Iterable[datetime], now: datetime) -> float | None:
    """Seconds until the first moment that is still to come; None if there is none."""
    left = [(moment - now).total_seconds() for moment in moments if moment > now]
    return max(MIN_RECHECK_S, min(left)) if left else None


def deleted_pods(ends: Iterable[PodEnd], observed: Observed) -> Iterator[Delete]:
    """One deletion for each pod, the first one named."""
    seen: set[str] = set()
    for end in ends:
        if end.child.uid not in seen:
            seen.add(end.child.uid)
            yield replace(delete_of(end.child, end.reason, observed), grace_s=end.grace_s)


def delete_of(child: Child, reason: str, observed: Observed) -> Delete:
    """The deletion of a child as it was seen."""
    return Delete(
        api_version=child.api_version,
        kind=child.kind,
        namespace=observed.service.namespace,
        name=child.name,
        uid=child.uid,
        resource_version=child.resource_version,
        reason=reason,
    )
