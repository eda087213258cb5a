"""Owns what live groups, pods and Services tell by themselves, whatever the spec says.

Does not own the judgement against a spec (``judge``) nor without a valid one (``refused``).
"""

from collections.abc import Iterable, Sequence

from mizzen_operator.observed import Observed, PodFacts, ServiceFacts
from mizzen_operator.planner.groups import Group
from mizzen_operator.status.conditions import Verdict, no, yes

ACCEPTED = "Accepted"
MODEL_READY = "ModelReady"
PLACED = "Placed"
AVAILABLE = "Available"
PROGRESSING = "Progressing"
ROUTING_READY = "RoutingReady"
DEGRADED = "Degraded"
READY = "Ready"

MAX_GROUPS = 64
MANY_RESTARTS = 3
_BROKEN_WAITS = frozenset(
    {
        "CrashLoopBackOff",
        "ImagePullBackOff",
        "ErrImagePull",
        "ErrImageNeverPull",
        "InvalidImageName",
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
    }
)


def living(pods: Iterable[PodFacts]) -> list[PodFacts]:
    """Pods that are not ending, by name."""
    return sorted((pod for pod in pods if not pod.child.deleting), key=lambda pod: pod.child.name)


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
        return yes(DEGRADED, broken[0].waiting_reason or "Restarting", describe(broken[0]))
    return no(DEGRADED, "AsExpected", "")


def broken_pods(pods: Iterable[PodFacts]) -> list[PodFacts]:
    """Pods that do not heal by waiting."""
    return [
        pod
        for pod in living(pods)
        if pod.waiting_reason in _BROKEN_WAITS
        or (pod.restarts >= MANY_RESTARTS and not pod.is_ready)
    ]


def describe(pod: PodFacts) -> str:
    """What is wrong with a pod, in one line."""
    state = pod.waiting_reason or "not ready"
    detail = f": {pod.waiting_message}" if pod.waiting_message else ""
    end = f"; last end: {pod.last_exit}" if pod.last_exit else ""
    return f"{pod.child.name} {state}{detail} ({pod.restarts} restarts{end})"


def why_not_ready(pods: Iterable[PodFacts], noun: str) -> str:
    """What has to happen until one of these pods counts as ready; ``noun`` says which pods."""
    pods = list(pods)
    alive = living(pods)
    starting = [pod.child.name for pod in alive if not pod.is_ready]
    if starting:
        return f"starting: {', '.join(starting[:4])}"
    if alive:
        return f"ready, but not counted by its controller yet: {alive[0].child.name}"
    if pods:
        return f"ending: {', '.join(sorted(pod.child.name for pod in pods)[:4])}"
    return f"no {noun} pod exists yet"


def front_service(observed: Observed) -> ServiceFacts | None:
    """The Service that clients talk to."""
    name = observed.service.name
    found = (item for item in observed.services if item.child.name == name)
    return next(
        (item for item in found if observed.owns(item.child) and not item.child.deleting), None
    )


def address_pending(service: ServiceFacts) -> Verdict:
    """The verdict on a load balancer that has not answered."""
    name = service.child.name
    return no(
        ROUTING_READY, "AddressPending", f"Service {name} has no address from a load balancer yet"
    )


def group_rows(groups: Sequence[Group], observed: Observed) -> list[dict[str, str]]:
    """One row per group for the status."""
    return [_group_row(group, observed) for group in groups[:MAX_GROUPS]]


def _group_row(group: Group, observed: Observed) -> dict[str, str]:
    facts = group.facts
    pods = [pod for pod in observed.pods if pod.child.owner_uid == facts.child.uid]
    waiting = next((pod.waiting_reason for pod in pods if pod.waiting_reason), "")
    stuck = any(pod.unschedulable_message for pod in pods)
    row = {
        "name": group.name,
        "revision": group.revision,
        "state": "Ready" if group.is_ready else "Pending" if stuck else "Forming",
        "ready": f"{facts.ready_replicas}/{facts.replicas}",
    }
    reason = "Unschedulable" if stuck else waiting
    return {**row, "reason": reason} if reason else row
