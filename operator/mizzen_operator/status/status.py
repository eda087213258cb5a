"""Owns the whole status object of an accepted service, recomputed from live objects in every pass.

Does not own the status of a refused one (``refused``) nor writing it. Pure: the clock is an
argument and shows only where a condition changed.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

from mizzen_operator.observed import Observed
from mizzen_operator.planner.groups import groups_of
from mizzen_operator.planner.model import Plan
from mizzen_operator.render import labels
from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.status.conditions import Verdict, as_conditions, no, yes
from mizzen_operator.status.judge import View, is_tokenizer_complete, judge, view_of
from mizzen_operator.status.running import (
    ACCEPTED,
    AVAILABLE,
    DEGRADED,
    MODEL_READY,
    READY,
    ROUTING_READY,
    group_rows,
)


def service_status(
    resolved: Resolved, observed: Observed, plan: Plan, now: datetime, failure: str = ""
) -> dict[str, Any]:
    """The status of an accepted service; ``failure`` is the last error of a failed reconcile."""
    view = view_of(resolved, observed, groups_of(observed), plan, now)
    verdicts = [yes(ACCEPTED, "Valid", "the spec can be carried out"), *judge(view)]
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
        "selector": _selector_text(resolved),
        "updateRevision": resolved.revision,
        "modelName": resolved.served_name,
        "roles": _roles(view),
        "groups": group_rows(view.groups, observed),
        "conditions": as_conditions(
            verdicts, service.status, generation=service.generation, now=now
        ),
    }


def _ready(view: View, verdicts: Iterable[Verdict]) -> Verdict:
    by_type = {verdict.type: verdict for verdict in verdicts}
    for kind in (ACCEPTED, MODEL_READY, AVAILABLE, ROUTING_READY):
        verdict = by_type[kind]
        if verdict.status != "True":
            return no(READY, verdict.reason, verdict.message)
    desired = view.resolved.groups
    if view.updated_ready_groups < desired:
        progress = by_type["Progressing"]
        reason = "GroupsNotReady" if progress.reason == "Complete" else progress.reason
        return no(
            READY,
            reason,
            f"{view.updated_ready_groups} of {desired} groups are ready at revision "
            f"{view.resolved.revision}",
        )
    if not is_tokenizer_complete(view):
        return no(READY, "TokenizersNotReady", "tokenizer pods are not all ready")
    return yes(READY, "Ready", f"{desired} of {desired} groups are ready")


def _url(resolved: Resolved) -> str:
    port = resolved.spec.routing.service.port
    suffix = "" if port == 80 else f":{port}"
    return f"http://{resolved.name}.{resolved.namespace}.svc{suffix}"


def _selector_text(resolved: Resolved) -> str:
    selector = labels.role_selector(resolved, labels.ROLE_WORKER) | {labels.POD_INDEX: "0"}
    return ",".join(f"{key}={value}" for key, value in sorted(selector.items()))


def _roles(view: View) -> dict[str, Any]:
    desired = view.resolved.groups
    roles: dict[str, Any] = {
        "worker": {
            "desired": desired,
            "groups": len(view.groups),
            "readyGroups": view.ready_groups,
            "updatedGroups": sum(group.revision == view.resolved.revision for group in view.groups),
            "summary": f"{view.ready_groups}/{desired}",
        }
    }
    if view.resolved.tokenizer is not None:
        wanted = 0 if view.resolved.spec.stopped else view.resolved.tokenizer.replicas
        ready = view.tokenizers.ready_replicas if view.tokenizers else 0
        roles["tokenizer"] = {"desired": wanted, "ready": ready, "summary": f"{ready}/{wanted}"}
    return roles
