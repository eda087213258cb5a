"""Owns what holds up a pod, by its own facts alone; two kubelet reasons for one thing are one here.

Does not own how long (``report/waits``) nor what it means for a service. Without the time of day,
so that a status made of it rests while the pod does.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass

from mizzen_operator.observed import PodFacts

WAIT_UNSCHEDULABLE = "Unschedulable"
WAIT_SCHEDULING = "Scheduling"
WAIT_CREATING = "ContainerCreating"
WAIT_STARTUP = "StartupProbe"
WAIT_READINESS = "ReadinessProbe"
WAIT_RESTARTING = "RestartingContainer"
WAIT_ENDING = "Draining"
WAIT_ENDED = "Ended"

SECRET_MISSING = "SecretMissing"
"""A container needs a Secret, or a key in one, that is not there."""
MANY_RESTARTS = 3
BROKEN_WAITS = frozenset(
    {
        "CrashLoopBackOff",
        "ImagePullBackOff",
        "ErrImageNeverPull",
        "InvalidImageName",
        SECRET_MISSING,
        "CreateContainerConfigError",
        "CreateContainerError",
        "RunContainerError",
    }
)
"""What a container waits for that does not come by waiting."""
_NO_SECRET = re.compile(r'secret "[^"]+" not found|find key \S+ in Secret ', re.IGNORECASE)
_BACK_OFF = re.compile(r'^Back-off pulling image "[^"]*": \w+: ')
_WHOSE = re.compile(r" restarting failed container=\S+ pod=\S+$")
_ON_THE_WAY = frozenset({"", WAIT_CREATING, "PodInitializing"})


@dataclass(frozen=True, slots=True, kw_only=True)
class HoldUp:
    """The one thing that a pod waits for now."""

    reason: str
    """Key of the table of remedies: the kubelet's own reason where it gives one."""
    text: str
    """Goes on after "waits for"."""


def living(pods: Iterable[PodFacts]) -> list[PodFacts]:
    """Pods that are not ending, by name."""
    return sorted((pod for pod in pods if not pod.child.deleting), key=lambda pod: pod.child.name)


def told_by_kubelet(pod: PodFacts) -> tuple[str, str]:
    """Reason and message of the container that waits; both empty while all is on its way.

    A kubelet alternates between ErrImagePull and ImagePullBackOff with the same cause.
    """
    reason, message = pod.waiting_reason, pod.waiting_message
    if reason in _ON_THE_WAY:
        return "", ""
    if reason in ("ErrImagePull", "ImagePullBackOff"):
        return "ImagePullBackOff", _BACK_OFF.sub("", message)
    if reason == "CrashLoopBackOff":
        return reason, _WHOSE.sub("", message)
    if reason == "CreateContainerConfigError" and _NO_SECRET.search(message):
        return SECRET_MISSING, message
    return reason, message


def broken_pods(pods: Iterable[PodFacts]) -> list[PodFacts]:
    """Pods that do not heal by waiting."""
    return [pod for pod in living(pods) if is_broken(pod)]


def is_broken(pod: PodFacts) -> bool:
    """Whether a pod needs a person."""
    is_restarting = pod.restarts >= MANY_RESTARTS and not pod.is_ready
    return told_by_kubelet(pod)[0] in BROKEN_WAITS or is_restarting


def describe(pod: PodFacts) -> str:
    """What is wrong with a pod, in one line."""
    reason, message = told_by_kubelet(pod)
    detail = f": {message}" if message else ""
    end = f"; last end: {pod.last_exit}" if pod.last_exit else ""
    return f"{pod.child.name} {reason or 'not ready'}{detail} ({pod.restarts} restarts{end})"


def hold_up_of(pod: PodFacts) -> HoldUp | None:
    """What this pod waits for; None if it is ready and stays."""
    if pod.child.deleting:
        return HoldUp(reason=WAIT_ENDING, text="its end")
    if pod.is_ready:
        return None
    if pod.phase in ("Failed", "Succeeded"):
        text = f"its replacement: it has ended ({pod.phase})"
        return HoldUp(reason=WAIT_ENDED, text=text)
    if not pod.node_name:
        return _of_scheduler(pod)
    if told_by_kubelet(pod)[0] or pod.started_at is None:
        return _of_container(pod)
    return _of_probe(pod)


def _of_scheduler(pod: PodFacts) -> HoldUp:
    if pod.unschedulable_message:
        return HoldUp(reason=WAIT_UNSCHEDULABLE, text=f"a node: {pod.unschedulable_message}")
    return HoldUp(reason=WAIT_SCHEDULING, text="a node: the scheduler has not answered yet")


def _of_container(pod: PodFacts) -> HoldUp:
    """A container that does not run: the kubelet says why, or it ended, or it is being made."""
    end = f"; last end: {pod.last_exit}" if pod.last_exit else ""
    reason, message = told_by_kubelet(pod)
    if reason:
        detail = f": {message}" if message else ""
        return HoldUp(reason=reason, text=f"its container, {reason}{detail}{end}")
    if end:
        return HoldUp(reason=WAIT_RESTARTING, text=f"its container to run again{end}")
    return HoldUp(reason=WAIT_CREATING, text="its volumes and its image")


def _of_probe(pod: PodFacts) -> HoldUp:
    if is_broken(pod):
        text = f"an end of its {pod.restarts} restarts; last end: {pod.last_exit or 'not known'}"
        return HoldUp(reason=WAIT_RESTARTING, text=text)
    if pod.has_started:
        return HoldUp(reason=WAIT_READINESS, text="its readiness probe")
    return HoldUp(reason=WAIT_STARTUP, text="its startup probe")
