"""Owns the judgement of every condition but Ready and Accepted, from live objects only.

Does not own the conditions' form (``conditions``) nor the rest of the status (``status``).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime

from mizzen_operator.observed import DeploymentFacts, Observed
from mizzen_operator.planner.groups import Group, waiting_since
from mizzen_operator.planner.model import Plan
from mizzen_operator.render import labels
from mizzen_operator.render.names import tokenizer_name
from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.status.conditions import Verdict, no, unknown, yes
from mizzen_operator.status.running import (
    AVAILABLE,
    MODEL_READY,
    PLACED,
    PROGRESSING,
    ROUTING_READY,
    address_pending,
    broken_pods,
    degraded,
    describe,
    front_service,
    living,
    unschedulable,
    why_not_ready,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What the judgements look at, computed once per pass."""

    resolved: Resolved
    observed: Observed
    groups: tuple[Group, ...]
    """Groups of the service that are not leaving."""
    tokenizers: DeploymentFacts | None
    plan: Plan
    now: datetime

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
    return View(
        resolved=resolved,
        observed=observed,
        groups=tuple(group for group in groups if not group.is_leaving),
        tokenizers=observed.deployment(tokenizer_name(resolved)) if resolved.tokenizer else None,
        plan=plan,
        now=now,
    )


def judge(view: View) -> list[Verdict]:
    """All conditions but Accepted, Degraded by a failed reconcile, and Ready."""
    return [
        _model_ready(view),
        _placed(view),
        _available(view),
        _progressing(view),
        _routing_ready(view),
        degraded(view.observed.pods),
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
    source = view.resolved.spec.model.source.pvc
    assert source is not None, "the rules let only a claim through"
    if view.ready_groups:
        return yes(MODEL_READY, "Loaded", f"{view.ready_groups} worker groups have loaded it")
    if not view.observed.claims_known:
        return unknown(MODEL_READY, "NotLookedAt", f"claim {source.claim_name} is not read yet")
    claim = next((item for item in view.observed.claims if item.name == source.claim_name), None)
    if claim is None:
        return no(
            MODEL_READY,
            "ClaimNotFound",
            f"spec.model.source.pvc.claimName: claim {source.claim_name} does not exist in "
            f"namespace {view.resolved.namespace}; create it or correct the name",
        )
    if claim.phase != "Bound":
        return no(
            MODEL_READY,
            "VolumePending",
            f"claim {claim.name} is {claim.phase}; kubectl describe pvc {claim.name} says why",
        )
    return yes(MODEL_READY, "ClaimBound", f"the weights are on claim {claim.name}")


def _placed(view: View) -> Verdict:
    stuck = unschedulable(view.observed.pods)
    if stuck is not None:
        return stuck
    if view.resolved.groups == 0:
        return yes(PLACED, "NothingToPlace", "no pods are wanted")
    wanted = view.resolved.groups * view.resolved.nodes
    uids = {group.facts.child.uid for group in view.groups}
    placed = sum(
        bool(pod.node_name) and pod.child.owner_uid in uids for pod in living(view.observed.pods)
    )
    if placed < wanted:
        return no(PLACED, "Pending", f"{placed} of {wanted} worker pods have a node")
    return yes(PLACED, "Scheduled", f"{placed} of {wanted} worker pods have a node")


def _available(view: View) -> Verdict:
    if view.resolved.spec.stopped:
        return no(AVAILABLE, "Stopped", "spec.stopped is true")
    if view.resolved.groups == 0 and view.ready_groups == 0:
        return no(AVAILABLE, "ScaledToZero", "spec.replicas is 0")
    if view.ready_groups == 0:
        return no(AVAILABLE, "NoReadyGroup", _why_not_ready(view, labels.ROLE_WORKER))
    if view.resolved.tokenizer and not (view.tokenizers and view.tokenizers.ready_replicas):
        return no(AVAILABLE, "NoReadyTokenizer", _why_not_ready(view, labels.ROLE_TOKENIZER))
    return yes(AVAILABLE, "Serving", f"{view.ready_groups} worker groups are ready")


def _why_not_ready(view: View, role: str) -> str:
    broken = broken_pods(view.observed.pods)
    if broken:
        return describe(broken[0])
    if view.plan.blocked_by:
        return view.plan.blocked_by
    own = (pod for pod in view.observed.pods if pod.child.labels.get(labels.ROLE) == role)
    return why_not_ready(own, role)


def _progressing(view: View) -> Verdict:
    if view.resolved.spec.paused:
        return no(PROGRESSING, "Paused", "spec.paused is true: objects are left as they are")
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
        wish = "spec.stopped is true" if view.resolved.spec.stopped else "spec.replicas is 0"
        return no(PROGRESSING, "Complete", f"nothing is left to do: {wish}")
    if not is_tokenizer_complete(view):
        return yes(PROGRESSING, "TokenizersStarting", "tokenizer pods are not all ready")
    return no(PROGRESSING, "Complete", "nothing is left to do")


def _is_late(view: View, group: Group) -> bool:
    if group.is_ready or group.revision != view.resolved.revision:
        return False
    start = waiting_since(group, view.observed.pods)
    deadline_s = view.resolved.spec.engine.startup_deadline_seconds
    return start is not None and (view.now - start).total_seconds() > deadline_s


def _routing_ready(view: View) -> Verdict:
    wanted = view.resolved.spec.routing.service
    found = front_service(view.observed)
    if found is None:
        return no(ROUTING_READY, "ServiceMissing", f"Service {view.resolved.name} is not there yet")
    if wanted.type == "LoadBalancer" and not found.ingress_addresses:
        return address_pending(found)
    return yes(ROUTING_READY, "ServiceReady", f"Service {view.resolved.name} port {wanted.port}")
