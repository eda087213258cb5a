"""Owns what the status tells of the lives of groups: epochs, restarts, drains; pure.

Does not own the rule (``planner/restarts``) nor the rest of a group's row (``running``).
"""

from collections.abc import Iterable, Mapping
from typing import Any

from mizzen_operator.planner.groups import Group, is_outdated
from mizzen_operator.planner.restarts import Verdict as LifeVerdict
from mizzen_operator.render.labels import RESTARTS
from mizzen_operator.spec.model import Restart
from mizzen_operator.spec.wording import moment_text
from mizzen_operator.status.conditions import Verdict, yes
from mizzen_operator.status.running import DEGRADED

BUDGET_EXHAUSTED = "RestartBudgetExhausted"
RESTARTING = "Restarting"
FAILED = "Failed"


def life_row(group: Group, verdict: LifeVerdict | None) -> dict[str, Any]:
    """Fields of a group's row beyond, or instead of, those of every group.

    Without a spec there is no ``verdict``.
    """
    return {**_drain(group), **(_life(group, verdict) if group.facts.replicas > 1 else {})}


def _drain(group: Group) -> dict[str, Any]:
    """Of a group that has pods which end: until when at the latest, unless their node is lost."""
    ends = [pod.child.ends_at for pod in group.pods if pod.child.deleting]
    known = [end for end in ends if end is not None]
    return {"drainsUntil": moment_text(max(known))} if known else {}


def _life(group: Group, verdict: LifeVerdict | None) -> dict[str, Any]:
    life = group.life
    row: dict[str, Any] = {"epoch": life.epoch}
    if life.restarts:
        row |= {"lastRestart": f"{moment_text(life.restarts[-1].at)} {life.restarts[-1].reason}"}
    if verdict and verdict.is_exhausted:
        return {**row, "state": FAILED, "reason": BUDGET_EXHAUSTED}
    if verdict and verdict.cause is not None:
        return {**row, "state": RESTARTING, "reason": verdict.cause.value}
    is_restarting = not group.is_leaving and any(is_outdated(pod, life) for pod in group.pods)
    return {**row, "state": RESTARTING} if is_restarting else row


def exhausted(
    groups: Iterable[Group], verdicts: Mapping[str, LifeVerdict], restart: Restart
) -> Verdict | None:
    """Degraded, if a group was restarted so often that it is left as it is."""
    left = [group for group in groups if verdicts[group.name].is_exhausted]
    if not left:
        return None
    first = left[0]
    more = f" (and {len(left) - 1} more groups)" if len(left) > 1 else ""
    return yes(
        DEGRADED,
        BUDGET_EXHAUSTED,
        f"{first.name}{more} was restarted {restart.max_restarts} times within "
        f"{restart.window_seconds} s (spec.worker.restart) and does not form, last for "
        f"{first.life.restarts[-1].reason}; after mending it: kubectl annotate statefulset "
        f"{first.name} {RESTARTS}-",
    )
