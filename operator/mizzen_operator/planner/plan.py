"""Owns the plan of one reconcile: (resolved, observed, now) → Plan; pure.

Does not own carrying it out (``cluster``). Invariants: what is deleted is named with the UID and
resource version it was seen with; an object that is not owned by this service is never touched;
planning again after nothing changed gives the same plan.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from mizzen_operator.observed import Child, Observed
from mizzen_operator.planner.groups import (
    Group,
    budget_of,
    groups_of,
    lost_groups,
    waiting_since,
)
from mizzen_operator.planner.handover import (
    TokenizerCohorts,
    are_tokenizers_held,
    deployed_cohort,
    protected_groups,
    tokenizer_cohorts,
)
from mizzen_operator.planner.healing import (
    delete_of,
    deleted_pods,
    first_wait_s,
    group_restarts,
    healing_moments,
    pod_ends,
)
from mizzen_operator.planner.history import (
    StoredRevision,
    former_groups,
    history_of,
    kept_names,
    number_of,
    unreadable_names,
)
from mizzen_operator.planner.holds import (
    NO_OBJECTION,
    TemplateAnswers,
    is_everything_held,
    is_of_held_role,
    step_within,
    without_held,
)
from mizzen_operator.planner.keys import (
    key_generations,
    keys_wanted,
    leader_services_in_use,
    unused_keys,
)
from mizzen_operator.planner.memory_fit import MemoryFit, fetched_fit
from mizzen_operator.planner.model import Plan
from mizzen_operator.planner.pod_ends import lost_pods
from mizzen_operator.planner.restarts import Verdict, verdict_on
from mizzen_operator.planner.rollout import Goal, Step, next_step
from mizzen_operator.planner.weights import WeightsState
from mizzen_operator.planner.weights_objects import weights_plan
from mizzen_operator.render import labels
from mizzen_operator.render.kinds import CHILD_KINDS
from mizzen_operator.render.render import RenderContext, render
from mizzen_operator.spec.model import Restart
from mizzen_operator.spec.resolve import Resolved

_KINDS = frozenset(child.kind for child in CHILD_KINDS)


def plan(
    resolved: Resolved,
    observed: Observed,
    now: datetime,
    templates: TemplateAnswers = NO_OBJECTION,
) -> Plan:
    """What to do now; ``templates`` says which roles may not change."""
    restart = resolved.spec.worker.restart
    groups = [_as_it_will_be(group, restart, now) for group in groups_of(observed)]
    held = templates.held
    history = history_of(observed)
    weights = weights_plan(resolved, observed, history, groups)
    tokenizers = tokenizer_cohorts(resolved, observed, history, now)
    goal = _goal(resolved, groups, tokenizers, now)
    fit = fetched_fit(resolved, weights.noted)
    waits_for = _waits_for(weights.state, fit)
    gate = {labels.ROLE_WORKER: waits_for} if waits_for and resolved.groups else {}
    step = step_within(next_step(groups, goal), resolved, {**gate, **held})
    is_rolling = _is_rolling(groups, resolved)
    if observed.service.deleting:
        return Plan(blocked_by="the service is being deleted")
    if resolved.spec.paused:
        return Plan(
            blocked_by="spec.paused is true",
            is_rolling=is_rolling,
            templates=templates,
            weights=weights.state,
            fit=fit,
        )
    lost = tuple(lost_pods(groups, restart, now))
    if is_everything_held(resolved, observed, groups, held):
        return Plan(
            delete=tuple(deleted_pods(lost, observed)),
            requeue_after_s=_next_deadline_s((), {}, resolved, observed, now),
            blocked_by="; ".join(held.values()),
            is_rolling=is_rolling,
            is_refused=bool(templates.refused),
            templates=templates,
            weights=weights.state,
            fit=fit,
        )
    removed = {group.name for group, _ in step.remove}
    remaining = [group for group in groups if group.name not in removed]
    verdicts = {group.name: verdict_on(group, restart, now) for group in remaining}
    context = _context(resolved, history, groups, step, tokenizers)
    lives = {name: verdict.life for name, verdict in verdicts.items()}
    generations = key_generations(observed)
    context = replace(
        context,
        key_generations=generations,
        lives=lives,
        fetch=weights.context,
        fetched=weights.noted,
    )
    objects = render(resolved, context)
    wanted = {(obj["kind"], obj["metadata"]["name"]) for obj in objects}
    wanted |= {("StatefulSet", group.name) for group in groups}
    wanted |= leader_services_in_use(observed, context.cohorts)
    if resolved.spec.network_policy != "Off":
        # Ranks of a leaving group need each other until the last stream has moved on.
        wanted |= {("NetworkPolicy", group.name) for group in groups}
    kept = kept_names(resolved, history, groups) | unreadable_names(observed)
    wanted |= {("ControllerRevision", name) for name in kept} | weights.kept
    objects = tuple(obj for obj in objects if obj["kind"] not in observed.lacking)
    is_early = _are_tokenizers_early(resolved, observed, remaining, waits_for)
    if is_early or are_tokenizers_held(resolved, observed, remaining):
        objects = tuple(obj for obj in objects if obj["kind"] != "Deployment")
    orphans = [
        replace(
            delete_of(child, "no longer needed", observed),
            keys=unused_keys(resolved, child, generations, context.cohorts),
        )
        for child in without_held(_orphans(observed, wanted), held)
    ]
    applied = tuple(obj for obj in objects if not is_of_held_role(obj["metadata"]["labels"], held))
    rendered = frozenset(obj["metadata"]["name"] for obj in applied if obj["kind"] == "StatefulSet")
    ends = (
        *lost,
        *(() if labels.ROLE_WORKER in held else pod_ends(remaining, verdicts, rendered)),
    )
    return Plan(
        apply=applied,
        restarts=tuple(group_restarts(verdicts, remaining, rendered)),
        delete=(
            *(delete_of(group.facts.child, reason, observed) for group, reason in step.remove),
            *(orphan for orphan in orphans if not orphan.keys),
            *deleted_pods(ends, observed),
            # Last: a Secret that may not be deleted holds up nothing else.
            *(orphan for orphan in orphans if orphan.keys),
        ),
        keys=keys_wanted(resolved, observed, applied),
        requeue_after_s=_next_deadline_s(groups, verdicts, resolved, observed, now),
        blocked_by=step.waits_for or "; ".join(held.values()),
        is_rolling=is_rolling,
        templates=templates,
        weights=weights.state,
        fit=fit,
    )


def _as_it_will_be(group: Group, restart: Restart, now: datetime) -> Group:
    """A group that is started anew now serves nobody, so a roll-out may not count on it."""
    is_restarted = verdict_on(group, restart, now).life.epoch != group.life.epoch
    return replace(group, is_ready=group.is_ready and not is_restarted)


def _waits_for(weights: WeightsState | None, fit: MemoryFit | None) -> str:
    """Why worker groups may not be made yet, nor others give way to them: they need weights, and
    memory for these. Empty if they may."""
    if weights is not None and not weights.is_ready:
        return weights.waits_for
    return "" if fit is None else fit.waits_for


def _are_tokenizers_early(
    resolved: Resolved, observed: Observed, groups: Iterable[Group], waits_for: str
) -> bool:
    """Whether tokenizer pods would be made before the weights, whose tokenizer they read, or for
    workers that cannot come. Those of groups that run are made again if somebody deletes them."""
    if not waits_for or resolved.spec.stopped:
        return False
    deployed = deployed_cohort(resolved, observed)
    is_served = any(group.cohort == resolved.cohort and not group.is_leaving for group in groups)
    return deployed != resolved.cohort and bool(deployed or not is_served)


def _goal(
    resolved: Resolved, groups: list[Group], tokenizers: TokenizerCohorts, now: datetime
) -> Goal:
    return Goal(
        revision=resolved.revision,
        desired=resolved.groups,
        budget=budget_of(resolved.spec.worker.rollout, resolved.groups),
        protected=protected_groups(resolved, groups, tokenizers),
        lost=lost_groups(groups, resolved.spec.worker.restart, now),
    )


def _context(
    resolved: Resolved,
    history: Sequence[StoredRevision],
    groups: list[Group],
    step: Step,
    tokenizers: TokenizerCohorts,
) -> RenderContext:
    removed = {group.name for group, _ in step.remove}
    staying = [group for group in groups if group.name not in removed and not group.is_leaving]
    living = [group.index for group in staying if group.revision == resolved.revision]
    # Services of a group stay until its last pod has ended, drains included.
    return RenderContext(
        groups=tuple(sorted({*living, *step.create})),
        number=number_of(resolved, history),
        former=former_groups(resolved, history, staying),
        revisions=frozenset(group.revision for group in groups),
        cohorts=frozenset(group.cohort for group in groups) | tokenizers.former,
        open_cohorts=tokenizers.open,
    )


def _is_rolling(groups: list[Group], resolved: Resolved) -> bool:
    current = [group for group in groups if group.revision == resolved.revision]
    return (
        len(current) != len(groups)
        or [group.is_ready for group in current] != [True] * resolved.groups
    )


def _next_deadline_s(
    groups: Iterable[Group],
    verdicts: Mapping[str, Verdict],
    resolved: Resolved,
    observed: Observed,
    now: datetime,
) -> float | None:
    """Seconds until the first group is late, or starts anew, or a pod is lost: no event says so."""
    deadline = timedelta(seconds=resolved.spec.engine.startup_deadline_seconds)
    starts = [
        waiting_since(group) for group in groups if not group.is_ready and not group.is_leaving
    ]
    late = [start + deadline for start in starts if start is not None]
    restart = resolved.spec.worker.restart
    return first_wait_s((*late, *healing_moments(verdicts, restart, observed)), now)


def _orphans(observed: Observed, wanted: set[tuple[str, str]]) -> Iterable[Child]:
    """Our objects that nothing wants any more, of kinds that can be deleted."""
    for child in observed.children:
        is_ours = observed.owns(child) and child.kind in _KINDS - set(observed.lacking)
        if is_ours and not child.deleting and (child.kind, child.name) not in wanted:
            yield child
