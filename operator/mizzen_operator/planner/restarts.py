"""Owns when a group of several pods starts anew as a whole: its epochs, back-off and budget; pure.

Does not own which pods end for it (``pod_ends``) nor the annotations (``render/group_life``).

The rule looks at what is there, not at what happened, so nothing is missed while nobody looks. A
group is formed when all of its pods are first ready in an epoch; it is remembered which pods and
which runs of their containers those are. Any other set later means that a rank was lost, and ranks
cannot replace one another within a life. Invariants: the epoch of a group never falls; a group
that is as it was formed is never restarted; pods that are late to start are waited for.
"""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum

from mizzen_operator.observed import PodFacts
from mizzen_operator.planner.groups import Group, is_lost, is_outdated
from mizzen_operator.render.group_life import GroupLife, PastRestart, epoch_of
from mizzen_operator.spec.model import Restart

_ENDED = frozenset({"Failed", "Unknown"})
_DIGITS = 12


class Cause(StrEnum):
    """Why a group has to start anew."""

    RANK_REPLACED = "RankReplaced"
    """A pod is gone or another one is in its place."""
    RANK_RESTARTED = "RankRestarted"
    """A container ended and was started again."""
    RANK_FAILED = "RankFailed"
    """A pod ended and stays: evicted by its node, for example."""
    NODE_LOST = "NodeLost"
    """A pod's end is not confirmed by its node."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What is to be done about the life of a group now."""

    life: GroupLife
    """As it shall be written; the present one if nothing changes."""
    cause: Cause | None = None
    """Why it is restarted now, or would be but for the following."""
    not_before: datetime | None = None
    """It restarts at this time; None if it does so now, never, or need not."""
    is_exhausted: bool = False
    """It has been restarted so often that it is left as it is."""


def verdict_on(group: Group, restart: Restart, now: datetime) -> Verdict:
    """The judgement of one group.

    One pod has no peers: a container that starts again, or the pod that replaces it, is the whole
    group anew, and needs no epoch that sets it apart.
    """
    life = group.life
    is_going = group.is_leaving or any(is_outdated(pod, life) for pod in group.pods)
    if group.facts.replicas < 2 or is_going:
        return Verdict(life=life)
    formed = _formed(group)
    cause = _cause(group, restart, now, is_complete=bool(formed))
    if cause is None:
        return Verdict(life=replace(life, formed=formed) if formed else life)
    verdict = _restarted(group, cause, restart, now)
    if formed and verdict.life is life:
        # It came back by itself in the meantime: to restart it later would only interrupt it.
        return Verdict(life=replace(life, formed=formed))
    return verdict


def _restarted(group: Group, cause: Cause, restart: Restart, now: datetime) -> Verdict:
    """The restart of a group for a cause, or what keeps it from being made now."""
    recent = _recent(group.life, restart, now)
    if len(recent) >= restart.max_restarts:
        return Verdict(life=group.life, cause=cause, is_exhausted=True)
    not_before = _not_before(recent, restart)
    if not_before is not None and not_before > now:
        return Verdict(life=group.life, cause=cause, not_before=not_before)
    return Verdict(life=_next_life(group, cause, recent, now), cause=cause)


def _formed(group: Group) -> str:
    """What stands for the present pods; empty unless all are there and ready."""
    pods = group.pods
    is_whole = all(pod.is_ready and not pod.child.deleting for pod in pods)
    return _signature(pods) if is_whole and len(pods) == group.facts.replicas else ""


def _signature(pods: Iterable[PodFacts]) -> str:
    """Two digests: of the pods, and of the pods with the runs of their containers."""
    runs = sorted(f"{pod.child.uid} {pod.restarts}" for pod in pods)
    uids = [text.partition(" ")[0] for text in runs]
    return f"{_digest(uids)}-{_digest(runs)}"


def _digest(texts: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(texts).encode()).hexdigest()[:_DIGITS]


def _cause(group: Group, restart: Restart, now: datetime, *, is_complete: bool) -> Cause | None:
    pods, formed = group.pods, group.life.formed
    if any(is_lost(pod, restart, now) for pod in pods):
        return Cause.NODE_LOST
    if any(pod.phase in _ENDED for pod in pods):
        return Cause.RANK_FAILED
    if formed:
        signature = _signature(pods)
        if signature == formed:
            return None
        is_same = signature.partition("-")[0] == formed.partition("-")[0]
        return Cause.RANK_RESTARTED if is_same else Cause.RANK_REPLACED
    # While it forms, ranks may be missing or late by any time: images are pulled at any speed. But
    # one that ended had perhaps met its peers, which now wait for it in vain.
    has_ended = any(pod.restarts for pod in pods)
    return Cause.RANK_RESTARTED if has_ended and not is_complete else None


def _recent(life: GroupLife, restart: Restart, now: datetime) -> tuple[PastRestart, ...]:
    """The restarts that count. One that is still to come was written under a wrong clock.

    A group that has not formed since the last one counts them as of then: it does not earn new
    attempts by failing slowly.
    """
    past = [item for item in life.restarts if item.at <= now]
    if not past:
        return ()
    end = now if life.formed else past[-1].at
    begin = end - timedelta(seconds=restart.window_seconds)
    return tuple(item for item in past if item.at > begin)


def _not_before(recent: tuple[PastRestart, ...], restart: Restart) -> datetime | None:
    if not recent:
        return None
    wait_s = min(restart.backoff_max_seconds, restart.backoff_base_seconds * 2 ** (len(recent) - 1))
    return recent[-1].at + timedelta(seconds=wait_s)


def _next_life(
    group: Group, cause: Cause, recent: tuple[PastRestart, ...], now: datetime
) -> GroupLife:
    # A hand may have set the template's epoch back: no pod may be of a later one than the next.
    epochs = [epoch_of(pod.child.annotations) for pod in group.pods]
    this = PastRestart(at=now.replace(microsecond=0), reason=cause.value)
    return GroupLife(
        epoch=max([group.life.epoch, *epochs]) + 1,
        restarts=(*recent, this),
    )
