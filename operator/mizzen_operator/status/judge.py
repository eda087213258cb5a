"""Owns the judgement of every condition but Ready and Accepted, from live objects only.

Does not own the conditions' form (``conditions``) nor the rest of the status (``status``).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime

from mizzen_operator.observed import ClaimFacts, DeploymentFacts, Observed
from mizzen_operator.planner.claims import users_claim
from mizzen_operator.planner.groups import Group, waiting_since
from mizzen_operator.planner.model import Plan
from mizzen_operator.planner.restarts import Verdict as LifeVerdict
from mizzen_operator.planner.restarts import verdict_on
from mizzen_operator.render import labels
from mizzen_operator.render.names import tokenizer_name, worker_name
from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.spec.scaler_crd import SCALER_KIND
from mizzen_operator.status.conditions import Verdict, no, unknown, yes
from mizzen_operator.status.holdups import living
from mizzen_operator.status.keptout import KeptOut, as_one, kept_out
from mizzen_operator.status.lives import exhausted
from mizzen_operator.status.memory_fit import (
    INSUFFICIENT_MEMORY,
    fits,
    is_refused,
    stopped_by_memory,
)
from mizzen_operator.status.monitoring import monitoring_ready
from mizzen_operator.status.references import (
    CLAIM_NOT_FOUND,
    claim_not_found,
    resolved_refs,
    weights_claim,
)
from mizzen_operator.status.routes import routes_problem, routes_told
from mizzen_operator.status.running import (
    AVAILABLE,
    COMPLETE,
    MODEL_READY,
    PLACED,
    PROGRESSING,
    ROUTING_READY,
    address_pending,
    degraded,
    front_service,
    unschedulable,
    why_not_ready,
)
from mizzen_operator.status.updates import update_available
from mizzen_operator.status.weights import (
    WEIGHTS_NOT_READY,
    are_awaited,
    fetched_model_ready,
    given_up,
    stopped_by_weights,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What the judgements look at, computed once per pass."""

    resolved: Resolved
    observed: Observed
    groups: tuple[Group, ...]
    """Groups of the service that are not leaving."""
    leaving: tuple[Group, ...]
    tokenizers: DeploymentFacts | None
    plan: Plan
    now: datetime
    kept_out: Mapping[str, KeptOut]
    """Why pods cannot be made, by role."""
    lives: Mapping[str, LifeVerdict]
    """On the lives of the groups, by name."""

    @property
    def ready_groups(self) -> int:
        """Ready groups of any revision."""
        return sum(group.is_ready for group in self.groups)

    @property
    def updated_ready_groups(self) -> int:
        """Ready groups of the wanted revision."""
        revision = self.resolved.revision
        return sum(group.is_ready and group.revision == revision for group in self.groups)


def view_of(
    resolved: Resolved, observed: Observed, groups: Iterable[Group], plan: Plan, now: datetime
) -> View:
    """Everything the judgements need."""
    found = list(groups)
    restart = resolved.spec.worker.restart
    return View(
        resolved=resolved,
        observed=observed,
        groups=tuple(group for group in found if not group.is_leaving),
        leaving=tuple(group for group in found if group.is_leaving),
        tokenizers=observed.deployment(tokenizer_name(resolved)) if resolved.tokenizer else None,
        plan=plan,
        now=now,
        kept_out=kept_out(observed, plan.templates),
        lives={group.name: verdict_on(group, restart, now) for group in found},
    )


def judge(view: View) -> list[Verdict]:
    """All conditions but Accepted, Degraded by a failed reconcile, and Ready."""
    return [
        resolved_refs(view.resolved, view.observed),
        _model_ready(view),
        *fits(view.plan.fit),
        _placed(view),
        _available(view),
        _progressing(view),
        _routing_ready(view),
        given_up(view.plan.weights)
        or exhausted(view.groups, view.lives, view.resolved.spec.worker.restart)
        or degraded(view.observed.pods),
        *monitoring_ready(view.resolved, view.observed),
        *update_available(view.resolved),
    ]


def is_tokenizer_complete(view: View) -> bool:
    """Every wanted tokenizer pod is ready and of the current template; true without tokenizers."""
    wanted, facts = view.resolved.tokenizer, view.tokenizers
    if wanted is None:
        return True
    return (
        facts is not None
        and facts.is_observed
        and facts.updated_replicas >= facts.replicas
        and facts.ready_replicas >= facts.replicas
    )


def _model_ready(view: View) -> Verdict:
    if view.plan.weights is not None:
        return fetched_model_ready(view.plan.weights, view.updated_ready_groups)
    source = weights_claim(view.resolved)
    if view.ready_groups:
        return yes(MODEL_READY, "Loaded", f"{view.ready_groups} worker groups have loaded it")
    if not view.observed.claims_known:
        return unknown(MODEL_READY, "NotLookedAt", f"claim {source.claim_name} is not read yet")
    claim = users_claim(view.resolved, view.observed)
    if claim is None:
        return no(MODEL_READY, CLAIM_NOT_FOUND, claim_not_found(view.resolved))
    if claim.phase != "Bound":
        return no(
            MODEL_READY,
            "VolumePending",
            f"claim {claim.name}{_of_class(claim)} is {claim.phase}; kubectl describe pvc "
            f"{claim.name} says why",
        )
    return yes(MODEL_READY, "ClaimBound", f"the weights are on claim {claim.name}")


def _of_class(claim: ClaimFacts) -> str:
    return f" of storage class {claim.storage_class}" if claim.storage_class else ""


def _placed(view: View) -> Verdict:
    wanted = view.resolved.groups * view.resolved.nodes
    uids = {group.facts.child.uid for group in view.groups}
    placed = sum(
        bool(pod.node_name) and pod.child.owner_uid in uids for pod in living(view.observed.pods)
    )
    is_short = placed < wanted or not is_tokenizer_complete(view)
    barred = as_one(view.kept_out.values()) if is_short else None
    stuck = unschedulable(view.observed.pods)
    if stuck is not None:
        return replace(stuck, message=f"{stuck.message}; {barred.text}") if barred else stuck
    if barred is not None:
        return no(PLACED, barred.reason, barred.text)
    if view.resolved.groups == 0:
        return yes(PLACED, "NothingToPlace", "no pods are wanted")
    if are_awaited(view.plan.weights) and not view.groups:
        return yes(PLACED, "NothingToPlace", "no pods are wanted before the weights are there")
    if is_refused(view.plan.fit) and not view.groups:
        return yes(PLACED, "NothingToPlace", "no pods are wanted that lack memory")
    found = f"{placed} of {wanted} worker pods have a node"
    return no(PLACED, "Pending", found) if placed < wanted else yes(PLACED, "Scheduled", found)


def _available(view: View) -> Verdict:
    if view.resolved.spec.stopped:
        return no(AVAILABLE, "Stopped", "spec.stopped is true")
    if view.resolved.groups == 0 and view.ready_groups == 0:
        return no(AVAILABLE, "ScaledToZero", _zero_wish(view))
    if view.ready_groups == 0:
        return _without_ready_group(view)
    if view.resolved.tokenizer and not (view.tokenizers and view.tokenizers.ready_replicas):
        return no(AVAILABLE, "NoReadyTokenizer", _why_not_ready(view, labels.ROLE_TOKENIZER))
    return yes(AVAILABLE, "Serving", f"{view.ready_groups} worker groups are ready")


def _without_ready_group(view: View) -> Verdict:
    if not view.groups and are_awaited(view.plan.weights):
        return no(AVAILABLE, WEIGHTS_NOT_READY, view.plan.blocked_by)
    if not view.groups and is_refused(view.plan.fit):
        return no(AVAILABLE, INSUFFICIENT_MEMORY, view.plan.blocked_by)
    return no(AVAILABLE, "NoReadyGroup", _why_not_ready(view, labels.ROLE_WORKER))


def _why_not_ready(view: View, role: str) -> str:
    barred = view.kept_out.get(role)
    return why_not_ready(
        view.observed,
        role,
        barred=barred.text if barred else "",
        blocked_by=view.plan.blocked_by,
    )


def _progressing(view: View) -> Verdict:
    stopped = _stopped_progress(view)
    if stopped is not None:
        return stopped
    late = [group.name for group in view.groups if _is_late(view, group)]
    if late:
        return no(
            PROGRESSING,
            "ProgressDeadlineExceeded",
            f"{late[0]} is not ready after {view.resolved.spec.engine.startup_deadline_seconds} s "
            "(spec.engine.startupDeadlineSeconds)",
        )
    if view.plan.is_rolling:
        done = f"{view.updated_ready_groups} of {view.resolved.groups} groups are ready at revision"
        blocked = f"; {view.plan.blocked_by}" if view.plan.blocked_by else ""
        return yes(PROGRESSING, "RollingOut", f"{done} {view.resolved.revision}{blocked}")
    if view.resolved.groups == 0:
        # Tokenizer pods never become ready without a worker, so nothing is waited for.
        return no(PROGRESSING, COMPLETE, f"nothing is left to do: {_zero_wish(view)}")
    if not is_tokenizer_complete(view):
        return yes(PROGRESSING, "TokenizersStarting", "tokenizer pods are not all ready")
    return no(PROGRESSING, COMPLETE, "nothing is left to do")


def _zero_wish(view: View) -> str:
    """Who wants no groups."""
    resolved = view.resolved
    if resolved.spec.stopped:
        return "spec.stopped is true"
    if resolved.worker_scale.propagated == 0:
        return "spec.replicas is 0"
    return f"spec.replicas of {SCALER_KIND} {worker_name(resolved)} is 0"


def _stopped_progress(view: View) -> Verdict | None:
    """Why nothing goes on by itself: a person wants it so, or has to change something."""
    if view.resolved.spec.paused:
        return no(PROGRESSING, "Paused", "spec.paused is true: objects are left as they are")
    refused = view.plan.templates.refused
    if refused and (labels.ROLE_WORKER in refused or not view.plan.is_rolling):
        return no(PROGRESSING, "TemplateRefused", view.plan.blocked_by)
    if not view.plan.is_rolling:
        return None
    return stopped_by_weights(view.plan.weights) or stopped_by_memory(view.plan.fit)


def _is_late(view: View, group: Group) -> bool:
    if group.is_ready or group.revision != view.resolved.revision:
        return False
    start = waiting_since(group)
    deadline_s = view.resolved.spec.engine.startup_deadline_seconds
    return start is not None and (view.now - start).total_seconds() >= deadline_s


def _routing_ready(view: View) -> Verdict:
    wanted = view.resolved.spec.routing.service
    found = front_service(view.observed)
    if found is None:
        return no(ROUTING_READY, "ServiceMissing", f"Service {view.resolved.name} is not there yet")
    if wanted.type == "LoadBalancer" and not found.ingress_addresses:
        return address_pending(found)
    told = f"Service {view.resolved.name} port {wanted.port}"
    return routes_problem(view.resolved, view.observed) or yes(
        ROUTING_READY, "ServiceReady", f"{told}{routes_told(view.resolved, view.observed)}"
    )
