"""Owns the rows and counts of the status that tell of groups and roles one by one.

Does not own conditions (``judge``, ``refused``). From live objects and without the time of day, so
that a row rests while its group does.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

from mizzen_operator.observed import DeploymentFacts, Observed, PodFacts
from mizzen_operator.planner.groups import Group
from mizzen_operator.planner.restarts import Verdict as LifeVerdict
from mizzen_operator.render import labels
from mizzen_operator.spec.wording import moment_text
from mizzen_operator.status.holdups import (
    WAIT_ENDING,
    HoldUp,
    broken_pods,
    hold_up_of,
    living,
)
from mizzen_operator.status.keptout import KeptOut
from mizzen_operator.status.lives import FAILED, life_row

PENDING = "Pending"
FORMING = "Forming"
READY = "Ready"
DRAINING = "Draining"

MAX_GROUPS = 64
MAX_MESSAGE = 400
WAIT_NO_POD = "PodMissing"
"""Its controller has not made the pod, and nobody says why."""


def group_rows(
    groups: Iterable[Group], kept_out: Mapping[str, KeptOut], lives: Mapping[str, LifeVerdict]
) -> list[dict[str, Any]]:
    """One row per group; of very many those that are not ready come first."""
    first = sorted(groups, key=lambda group: (group.is_ready, group.name))[:MAX_GROUPS]
    named = sorted(first, key=lambda group: group.name)
    barred = kept_out.get(labels.ROLE_WORKER)
    return [_row(group, barred) | life_row(group, lives.get(group.name)) for group in named]


def _row(group: Group, barred: KeptOut | None) -> dict[str, Any]:
    pods = group.pods
    leader = f"{group.name}-0"
    since = _since(group, pods)
    row: dict[str, Any] = {
        "name": group.name,
        "role": labels.ROLE_WORKER,
        "revision": group.revision,
        "state": group_state(group, pods),
        "ready": f"{group.facts.ready_replicas}/{group.facts.replicas}",
        "restarts": sum(pod.restarts for pod in pods),
    }
    if any(pod.child.name == leader for pod in pods):
        row["leader"] = leader
    if since is not None:
        row["since"] = moment_text(since)
    held = hold_up_of_group(group, barred)
    if held is not None:
        row |= {"reason": held.reason, "message": _cut(held.text)}
    return row


def group_state(group: Group, pods: Sequence[PodFacts]) -> str:
    """Where a group is in its life."""
    if group.is_leaving or any(pod.child.deleting for pod in pods):
        return DRAINING
    if group.is_ready:
        return READY
    if broken_pods(pods):
        return FAILED
    placed = sum(bool(pod.node_name) for pod in living(pods))
    return FORMING if placed >= group.facts.replicas else PENDING


def hold_up_of_group(group: Group, barred: KeptOut | None) -> HoldUp | None:
    """What the group waits for; None if it is ready and stays."""
    pods = group.pods
    if group.is_ready:
        return None
    if group.is_leaving:
        left = f"{len(pods)} of its pods" if pods else "its StatefulSet"
        return HoldUp(reason=WAIT_ENDING, text=f"the end of {left}")
    if broken_pods(pods):
        return hold_up_of(broken_pods(pods)[0])
    if len(pods) < group.facts.replicas:
        if barred is not None:
            return HoldUp(reason=barred.reason, text=f"its pods, which are kept out: {barred.text}")
        text = f"its pods: {len(pods)} of {group.facts.replicas} exist"
        return HoldUp(
            reason=WAIT_NO_POD,
            text=f"{text}; if it stays so, kubectl describe statefulset {group.name} says why",
        )
    held = [found for pod in [*living(pods), *pods] if (found := hold_up_of(pod)) is not None]
    return next(iter(held), None)


def _since(group: Group, pods: Sequence[PodFacts]) -> datetime | None:
    """Since when it is so; None where no object tells it, as of a group that lost its pods."""
    if group.is_leaving:
        # A StatefulSet has no grace period: this is when its deletion was asked for.
        return group.facts.child.ends_at
    moments = [pod.ready_changed_at or pod.child.created_at for pod in living(pods)]
    return max((moment for moment in moments if moment is not None), default=None)


def _cut(text: str) -> str:
    return text if len(text) <= MAX_MESSAGE else f"{text[: MAX_MESSAGE - 3]}..."


def worker_counts(
    groups: Sequence[Group], observed: Observed, *, desired: int, revision: str
) -> dict[str, Any]:
    """The counts of the worker role; ``groups`` are all of them, the leaving ones too."""
    staying = [group for group in groups if not group.is_leaving]
    ready = sum(group.is_ready for group in staying)
    return {
        "desired": desired,
        "groups": len(staying),
        "readyGroups": ready,
        "updatedGroups": sum(group.revision == revision for group in staying),
        "drainingGroups": len(groups) - len(staying),
        **_pod_counts(observed, labels.ROLE_WORKER),
        "summary": f"{ready}/{desired}",
    }


def tokenizer_counts(
    deployment: DeploymentFacts | None, observed: Observed, *, desired: int
) -> dict[str, Any]:
    """The counts of the tokenizer role."""
    ready = deployment.ready_replicas if deployment else 0
    return {
        "desired": desired,
        "ready": ready,
        "updated": deployment.updated_replicas if deployment else 0,
        **_pod_counts(observed, labels.ROLE_TOKENIZER),
        "summary": f"{ready}/{desired}",
    }


def _pod_counts(observed: Observed, role: str) -> dict[str, int]:
    own = [pod for pod in observed.pods if pod.child.labels.get(labels.ROLE) == role]
    return {
        "unschedulable": sum(bool(pod.unschedulable_message) for pod in living(own)),
        "restarts": sum(pod.restarts for pod in own),
    }
