"""Owns the plan of one reconcile: (resolved, observed, now) → Plan; pure.

Does not own carrying it out (``cluster``). Invariants: what is deleted is named with the UID and
resource version it was seen with; an object that is not owned by this service is never touched;
planning again after nothing changed gives the same plan.
"""

from collections.abc import Iterable
from datetime import datetime

from mizzen_operator.observed import Child, Observed, PodFacts
from mizzen_operator.planner.groups import Group, budget_of, groups_of, waiting_since
from mizzen_operator.planner.handover import are_tokenizers_held, protected_groups
from mizzen_operator.planner.model import Delete, KeysWanted, Plan
from mizzen_operator.planner.rollout import Goal, Step, next_step
from mizzen_operator.render.kinds import CHILD_KINDS
from mizzen_operator.render.render import RenderContext, keys_metadata, render
from mizzen_operator.spec.resolve import Resolved

MIN_RECHECK_S = 1.0
_KINDS = frozenset(child.kind for child in CHILD_KINDS)


def plan(resolved: Resolved, observed: Observed, now: datetime) -> Plan:
    """What to do now."""
    groups = groups_of(observed)
    step = next_step(groups, _goal(resolved, observed, groups))
    is_rolling = _is_rolling(groups, resolved)
    if observed.service.deleting:
        return Plan(blocked_by="the service is being deleted")
    if resolved.spec.paused:
        return Plan(blocked_by="spec.paused is true", is_rolling=is_rolling)
    removed = {group.name for group, _ in step.remove}
    remaining = [group for group in groups if group.name not in removed]
    objects = render(resolved, _context(resolved, groups, remaining, step))
    wanted = {(obj["kind"], obj["metadata"]["name"]) for obj in objects}
    wanted |= {("StatefulSet", group.name) for group in groups}
    keys = keys_metadata(resolved)
    if are_tokenizers_held(resolved, observed, remaining):
        objects = tuple(obj for obj in objects if obj["kind"] != "Deployment")
    return Plan(
        apply=objects,
        delete=(
            *(_delete(group.facts.child, reason, observed) for group, reason in step.remove),
            *(_delete(child, "no longer needed", observed) for child in _orphans(observed, wanted)),
            *_dead_pods(remaining, observed),
        ),
        keys=KeysWanted(metadata=keys) if keys else None,
        requeue_after_s=_next_deadline_s(remaining, resolved, observed, now),
        blocked_by=step.waits_for,
        is_rolling=is_rolling,
    )


def _goal(resolved: Resolved, observed: Observed, groups: list[Group]) -> Goal:
    return Goal(
        revision=resolved.revision,
        desired=resolved.groups,
        budget=budget_of(resolved.spec.worker.rollout, resolved.groups),
        protected=protected_groups(resolved, observed, groups),
    )


def _context(
    resolved: Resolved, groups: list[Group], remaining: list[Group], step: Step
) -> RenderContext:
    living = [
        group.index
        for group in remaining
        if group.revision == resolved.revision and not group.is_leaving
    ]
    # Services of a group stay until its last pod has ended, drains included.
    return RenderContext(
        groups=tuple(sorted({*living, *step.create})),
        revisions=frozenset(group.revision for group in groups),
        cohorts=frozenset(group.cohort for group in groups),
    )


def _is_rolling(groups: list[Group], resolved: Resolved) -> bool:
    current = [group for group in groups if group.revision == resolved.revision]
    return (
        len(current) != len(groups)
        or [group.is_ready for group in current] != [True] * resolved.groups
    )


def _next_deadline_s(
    groups: list[Group], resolved: Resolved, observed: Observed, now: datetime
) -> float | None:
    """Seconds until the first group that starts will be late, which no event announces."""
    deadline_s = resolved.spec.engine.startup_deadline_seconds
    starts = [
        waiting_since(group, observed.pods)
        for group in groups
        if not group.is_ready and not group.is_leaving
    ]
    left = [deadline_s - (now - start).total_seconds() for start in starts if start is not None]
    return min((max(MIN_RECHECK_S, seconds) for seconds in left if seconds > 0), default=None)


def _orphans(observed: Observed, wanted: set[tuple[str, str]]) -> Iterable[Child]:
    """Our objects that nothing wants any more."""
    for child in observed.children:
        is_ours = observed.owns(child) and child.kind in _KINDS
        if is_ours and not child.deleting and (child.kind, child.name) not in wanted:
            yield child


def _dead_pods(groups: list[Group], observed: Observed) -> Iterable[Delete]:
    """Pods that a StatefulSet with OnDelete would leave dead: old template and not running.

    Their controller replaces pods of its current template by itself, and a ready pod of an older
    template keeps serving.
    """
    by_uid = {group.facts.child.uid: group for group in groups if not group.is_leaving}
    for pod in observed.pods:
        group = by_uid.get(pod.child.owner_uid)
        if group is not None and _is_dead(pod, group):
            yield _delete(pod.child, "it failed and its template is outdated", observed)


def _is_dead(pod: PodFacts, group: Group) -> bool:
    revision = pod.child.labels.get("controller-revision-hash", "")
    update_revision = group.facts.update_revision
    is_outdated = bool(revision and update_revision) and revision != update_revision
    has_failed = bool(pod.waiting_reason and pod.waiting_reason != "ContainerCreating") or (
        bool(pod.unschedulable_message)
    )
    return is_outdated and has_failed and not pod.is_ready and not pod.child.deleting


def _delete(child: Child, reason: str, observed: Observed) -> Delete:
    return Delete(
        api_version=child.api_version,
        kind=child.kind,
        namespace=observed.service.namespace,
        name=child.name,
        uid=child.uid,
        resource_version=child.resource_version,
        reason=reason,
    )
