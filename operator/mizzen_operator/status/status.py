"""Owns the whole status object of an accepted service, recomputed from live objects in every pass.

Does not own the status of a refused one (``refused``) nor writing it. Pure: the clock is an
argument and shows only where a condition changed.
"""

from collections import Counter
from collections.abc import Iterable
from datetime import datetime
from typing import Any

from mizzen_operator.observed import Observed
from mizzen_operator.planner.groups import groups_of
from mizzen_operator.planner.model import Plan
from mizzen_operator.render import labels
from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.spec.scale import RoleScale
from mizzen_operator.status.conditions import Verdict, as_conditions, no, yes
from mizzen_operator.status.groups import (
    group_rows,
    hold_up_of_group,
    tokenizer_counts,
    worker_counts,
)
from mizzen_operator.status.judge import View, is_tokenizer_complete, judge, view_of
from mizzen_operator.status.refused import refusal_text
from mizzen_operator.status.running import (
    ACCEPTED,
    AVAILABLE,
    COMPLETE,
    DEGRADED,
    FITS,
    MODEL_READY,
    READY,
    ROUTING_READY,
)
from mizzen_operator.status.scalers import selector_text
from mizzen_operator.status.weights import resolved_model

MAX_BLOCKED_BY = 256


def service_status(
    resolved: Resolved, observed: Observed, plan: Plan, now: datetime, failure: str = ""
) -> dict[str, Any]:
    """The status of an accepted service; ``failure`` is the last error of a failed reconcile."""
    view = view_of(resolved, observed, groups_of(observed), plan, now)
    verdicts = [_accepted(view), *judge(view)]
    if failure:
        verdicts = [
            yes(DEGRADED, "ReconcileError", failure) if item.type == DEGRADED else item
            for item in verdicts
        ]
    verdicts.append(_ready(view, verdicts))
    service = observed.service
    return {
        "observedGeneration": service.generation,
        "url": _url(resolved),
        "replicas": len(view.groups),
        "selector": selector_text(resolved.uid, labels.ROLE_WORKER),
        **_revisions(view),
        "modelName": resolved.served_name,
        "resolvedModel": resolved_model(resolved, plan.weights),
        "roles": _roles(view),
        "groups": group_rows((*view.groups, *view.leaving), view.kept_out, view.lives),
        "conditions": as_conditions(
            verdicts, service.status, generation=service.generation, now=now
        ),
    }


def _accepted(view: View) -> Verdict:
    problems = tuple(view.plan.templates.refused.values())
    if problems:
        text = refusal_text(problems, goes_on=bool(view.groups))
        return no(ACCEPTED, problems[0].reason, text)
    return yes(ACCEPTED, "Valid", "the spec can be carried out")


def _ready(view: View, verdicts: Iterable[Verdict]) -> Verdict:
    by_type = {verdict.type: verdict for verdict in verdicts}
    for kind in (ACCEPTED, MODEL_READY, FITS, AVAILABLE, ROUTING_READY):
        verdict = by_type.get(kind)
        if verdict is not None and not _lets_be_ready(verdict):
            return no(READY, verdict.reason, verdict.message)
    desired = view.resolved.groups
    if view.updated_ready_groups < desired:
        progress = by_type["Progressing"]
        reason = "GroupsNotReady" if progress.reason == COMPLETE else progress.reason
        return no(
            READY,
            reason,
            f"{view.updated_ready_groups} of {desired} groups are ready at revision "
            f"{view.resolved.revision}{_first_wait(view)}",
        )
    if not is_tokenizer_complete(view):
        return no(READY, "TokenizersNotReady", "tokenizer pods are not all ready")
    return yes(READY, "Ready", f"{desired} of {desired} groups are ready")


def _lets_be_ready(verdict: Verdict) -> bool:
    # What is not known of the fit holds nothing up.
    return verdict.status == "True" or (verdict.type == FITS and verdict.status == "Unknown")


def _first_wait(view: View) -> str:
    """What the first group that shall be ready waits for."""
    barred = view.kept_out.get(labels.ROLE_WORKER)
    for group in view.groups:
        if group.revision == view.resolved.revision and not group.is_ready:
            held = hold_up_of_group(group, barred)
            return f"; {group.name} waits for {held.text}" if held else ""
    return ""


def _url(resolved: Resolved) -> str:
    port = resolved.spec.routing.service.port
    suffix = "" if port == 80 else f":{port}"
    return f"http://{resolved.name}.{resolved.namespace}.svc{suffix}"


def _roles(view: View) -> dict[str, Any]:
    resolved, groups = view.resolved, (*view.groups, *view.leaving)
    counts = worker_counts(
        groups, view.observed, desired=resolved.groups, revision=resolved.revision
    )
    roles = {"worker": counts | _scale_row(resolved.worker_scale)}
    if resolved.tokenizer is not None:
        counts = tokenizer_counts(view.tokenizers, view.observed, desired=resolved.tokenizers)
        roles["tokenizer"] = counts | _scale_row(resolved.tokenizer_scale)
    return roles


def _scale_row(scale: RoleScale) -> dict[str, int]:
    """What a role scaler is made anew from (``planner/scale``)."""
    return {"asked": scale.asked, "propagated": scale.propagated}


def _revisions(view: View) -> dict[str, Any]:
    """Where a roll-out comes from, where it goes and how far it is; else the one revision."""
    wanted = view.resolved.revision
    former = Counter(group.revision for group in view.groups if group.revision != wanted)
    if not former:
        return {"currentRevision": wanted, "updateRevision": wanted}
    current = min(former, key=lambda revision: (-former[revision], revision))
    rollout = {
        "from": current,
        "to": wanted,
        "updated": f"{view.updated_ready_groups}/{view.resolved.groups}",
    }
    if view.plan.blocked_by:
        rollout["blockedBy"] = view.plan.blocked_by[:MAX_BLOCKED_BY]
    return {"currentRevision": current, "updateRevision": wanted, "rollout": rollout}
