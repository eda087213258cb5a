"""Owns what live groups, pods and Services tell by themselves, whatever the spec says.

Does not own the judgement against a spec (``judge``) nor without a valid one (``refused``).
"""

from collections.abc import Iterable, Sequence

from mizzen_operator.observed import DeploymentFacts, Observed, PodFacts, ServiceFacts
from mizzen_operator.planner.memory_fit import FitReason
from mizzen_operator.render import labels
from mizzen_operator.status.conditions import Verdict, no, yes
from mizzen_operator.status.holdups import (
    broken_pods,
    describe,
    hold_up_of,
    living,
    told_by_kubelet,
)

ACCEPTED = "Accepted"
RESOLVED_REFS = "ResolvedRefs"
MODEL_READY = "ModelReady"
FITS = "Fits"
"""Only of services that state how much memory there is."""
PLACED = "Placed"
AVAILABLE = "Available"
PROGRESSING = "Progressing"
ROUTING_READY = "RoutingReady"
DEGRADED = "Degraded"
MONITORING_READY = "MonitoringReady"
UPDATE_AVAILABLE = "UpdateAvailable"
READY = "Ready"
GRANTED = "Granted"
"""Of a role scaler."""

COMPLETE = "Complete"
"""Reason of Progressing when nothing is left to do."""


def is_as_wished(kind: str, truth: str, reason: str) -> bool:
    """Whether a condition says what everybody hopes for, so that nobody has to look at it."""
    if kind == PROGRESSING:
        return reason == COMPLETE
    if kind == FITS and reason == FitReason.SIZES_NOT_KNOWN:
        return True
    return truth == ("False" if kind == DEGRADED else "True")


def unschedulable(pods: Iterable[PodFacts]) -> Verdict | None:
    """The verdict on pods for which the scheduler finds no node; None if there are none."""
    stuck = [pod for pod in living(pods) if pod.unschedulable_message]
    if not stuck:
        return None
    first = stuck[0]
    more = f" (and {len(stuck) - 1} more pods)" if len(stuck) > 1 else ""
    message = f"{first.child.name}{more}: {first.unschedulable_message}"
    return no(PLACED, "Unschedulable", message)


def degraded(pods: Iterable[PodFacts]) -> Verdict:
    """Whether a pod needs a person."""
    broken = broken_pods(pods)
    if broken:
        told = told_by_kubelet(broken[0])[0]
        return yes(DEGRADED, told or "Restarting", describe(broken[0]))
    return no(DEGRADED, "AsExpected", "")


def why_not_ready(observed: Observed, role: str, *, barred: str = "", blocked_by: str = "") -> str:
    """What has to happen until a pod of this role counts as ready.

    ``barred`` says why pods of it cannot be made, ``blocked_by`` what the operator waits for.
    """
    broken = broken_pods(observed.pods)
    if broken:
        return describe(broken[0])
    own = [pod for pod in observed.pods if pod.child.labels.get(labels.ROLE) == role]
    held = [pod for pod in living(own) if not pod.is_ready]
    if held:
        return f"starting: {_what_they_wait_for(held)}"
    if barred or blocked_by:
        return barred or blocked_by
    if living(own):
        return f"ready, but not counted by its controller yet: {living(own)[0].child.name}"
    if own:
        return f"ending: {', '.join(sorted(pod.child.name for pod in own)[:4])}"
    return f"no {role} pod exists yet"


def _what_they_wait_for(pods: Sequence[PodFacts]) -> str:
    """The first one's words, and how many others there are."""
    first = max(pods, key=lambda pod: bool(pod.unschedulable_message))
    held = hold_up_of(first)
    text = f"{first.child.name} waits for {held.text}" if held else first.child.name
    return f"{text} (and {len(pods) - 1} more pods)" if len(pods) > 1 else text


def front_service(observed: Observed) -> ServiceFacts | None:
    """The Service that clients talk to."""
    name = observed.service.name
    found = (item for item in observed.services if item.child.name == name)
    return next(
        (item for item in found if observed.owns(item.child) and not item.child.deleting), None
    )


def tokenizer_deployment(observed: Observed) -> DeploymentFacts | None:
    """The Deployment of the tokenizer pods, found without knowing the spec."""
    found = (
        item
        for item in observed.deployments
        if observed.owns(item.child)
        and not item.child.deleting
        and item.child.labels.get(labels.ROLE) == labels.ROLE_TOKENIZER
    )
    return next(found, None)


def address_pending(service: ServiceFacts) -> Verdict:
    """The verdict on a load balancer that has not answered."""
    name = service.child.name
    return no(
        ROUTING_READY, "AddressPending", f"Service {name} has no address from a load balancer yet"
    )
