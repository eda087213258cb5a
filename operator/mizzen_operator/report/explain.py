"""Owns why a service is as it is: conditions that are not as wished, chains behind them, remedies.

Does not own the conditions (``status``) nor the rows that chains are made of (``view``). Pure.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from mizzen_operator.report.events import EventFacts
from mizzen_operator.report.remedies import Place, remedy_of
from mizzen_operator.report.text import event_line, headline
from mizzen_operator.report.view import ConditionRow, PodRow, RoleRow, ServiceReport
from mizzen_operator.report.wording import since
from mizzen_operator.status.holdups import SECRET_MISSING
from mizzen_operator.status.running import (
    ACCEPTED,
    FITS,
    MODEL_READY,
    MONITORING_READY,
    READY,
    RESOLVED_REFS,
    ROUTING_READY,
)

MAX_PODS = 4
MAX_EVENTS = 3
_OF_THE_SERVICE = frozenset({ACCEPTED, FITS, MONITORING_READY})
_CLAIM = "PersistentVolumeClaim"
_KINDS_BEHIND = {MODEL_READY: _CLAIM, RESOLVED_REFS: _CLAIM, ROUTING_READY: "Service"}
"""Conditions that one object explains, and its kind; all others are explained by pods."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One step of a chain; a deeper one explains the one above it."""

    depth: int
    text: str


@dataclass(slots=True)
class Finding:
    """Conditions with one cause, the chain that leads to it, and what mends it."""

    conditions: list[ConditionRow]
    chain: list[Link] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    """Keys of remedies: conditions first, then what pods wait for; each once."""


def findings_of(report: ServiceReport, now: datetime) -> list[Finding]:
    """One finding per cause; empty when everything is as wished."""
    wrong = [row for row in report.conditions if not row.is_as_wished]
    causes = [row for row in wrong if row.type != READY] or wrong
    of_pods = [row for row in causes if _is_of_pods(row)]
    findings: list[Finding] = []
    for row in (row for row in causes if row not in of_pods):
        same = (item for item in findings if _has_cause(item, row))
        found = next(same, None)
        if found is not None:
            found.conditions.append(row)
        else:
            findings.append(Finding(conditions=[row], chain=list(_object_chain(row, report, now))))
    pods = Finding(conditions=of_pods)
    waiting = _pod_chain(report, now, pods.chain)
    if of_pods or (waiting and not report.is_being_deleted):
        findings.append(pods)
    for finding in findings:
        finding.reasons = list(dict.fromkeys(row.reason for row in finding.conditions))
    pods.reasons = list(dict.fromkeys([*pods.reasons, *waiting]))
    return findings


def _is_of_pods(row: ConditionRow) -> bool:
    if row.reason == SECRET_MISSING:
        return True
    return row.type not in _OF_THE_SERVICE and row.type not in _KINDS_BEHIND


def _has_cause(finding: Finding, row: ConditionRow) -> bool:
    first = finding.conditions[0]
    return (first.reason, first.message) == (row.reason, row.message)


def explanation(report: ServiceReport, now: datetime) -> str:
    """The text of ``mizzen explain``."""
    lines = [headline(report, now), *(f"! {note}" for note in report.notes)]
    findings = findings_of(report, now)
    place = Place(namespace=report.namespace, name=report.name)
    for finding in findings:
        lines.append("")
        lines += [_condition_line(row, now) for row in finding.conditions]
        if not finding.conditions:
            lines.append("every condition is as wished, but some pods wait for something")
        lines += [f"{'   ' * link.depth}└─ {link.text}" for link in finding.chain]
        lines += [f"   to mend {reason}: {remedy_of(reason, place)}" for reason in finding.reasons]
    if not findings and not report.notes:
        lines.append("every condition is as wished: there is nothing to explain")
    return "\n".join(lines) + "\n"


def _condition_line(row: ConditionRow, now: datetime) -> str:
    message = f": {row.message}" if row.message else ""
    return f"{row.type} is {row.status} for {since(row.since, now)}: {row.reason}{message}"


def _object_chain(row: ConditionRow, report: ServiceReport, now: datetime) -> Iterator[Link]:
    kind = _KINDS_BEHIND.get(row.type, "InferenceService")
    yield Link(depth=1, text=f"service {report.name}")
    about = [event for event in report.warnings if event.about_kind == kind]
    if about and kind != "InferenceService":
        yield Link(depth=2, text=f"{kind} {about[0].about_name}")
    yield from _event_links(about, now, depth=3 if kind != "InferenceService" else 2)


def _pod_chain(report: ServiceReport, now: datetime, chain: list[Link]) -> list[str]:
    """Append service → role → group → pod → event; the reasons that pods wait for."""
    reasons: list[str] = []
    below: list[Link] = []
    for role in report.roles:
        reasons += _role_chain(role, report, now, below)
    if below:
        chain += [Link(depth=1, text=f"service {report.name}"), *below]
    return reasons


def _role_chain(
    role: RoleRow, report: ServiceReport, now: datetime, chain: list[Link]
) -> list[str]:
    unready = [group for group in role.groups if not group.is_ready]
    lame = [pod for pod in role.pods if pod.waits_for is not None]
    if not unready and not lame and role.ready >= role.desired:
        return []
    noun = "groups" if role.groups or role.role == "worker" else "pods"
    scaled_by = f" ({role.scaled_by})" if role.scaled_by else ""
    text = f"role {role.role}: {role.ready} of {role.desired} {noun} are ready{scaled_by}"
    chain.append(Link(depth=2, text=text))
    reasons: list[str] = []
    for group in unready:
        state = f"{group.state}, {group.ready_pods} of {group.pods_wanted} pods are ready"
        chain.append(Link(depth=3, text=f"group {group.name}: {state}"))
        reasons += _pods_chain([pod for pod in group.pods if pod.waits_for], now, chain, depth=4)
        if not group.pods:
            chain += _makers(group.name, report, now, depth=4)
    reasons += _pods_chain(lame, now, chain, depth=3)
    if not unready and not lame:
        chain += _makers(f"{report.name}-", report, now, depth=3)
    return reasons


def _pods_chain(
    pods: Sequence[PodRow], now: datetime, chain: list[Link], *, depth: int
) -> list[str]:
    reasons: list[str] = []
    for pod in pods[:MAX_PODS]:
        assert pod.waits_for is not None
        chain.append(Link(depth=depth, text=f"pod {pod.name} waits for {pod.waits_for.text}"))
        chain += _event_links(pod.events, now, depth=depth + 1)
    if len(pods) > MAX_PODS:
        more = f"and {len(pods) - MAX_PODS} more pods: mizzen status -o wide shows them"
        chain.append(Link(depth=depth, text=more))
    reasons += [pod.waits_for.reason for pod in pods if pod.waits_for is not None]
    return reasons


def _makers(prefix: str, report: ServiceReport, now: datetime, *, depth: int) -> Iterable[Link]:
    """No pod is there: what those say that should make one."""
    yield Link(depth=depth, text="no pod exists")
    about = [
        event
        for event in report.warnings
        if event.about_kind in ("StatefulSet", "Deployment", "ReplicaSet")
        and event.about_name.startswith(prefix)
    ]
    yield from _event_links(about, now, depth=depth + 1)


def _event_links(events: Sequence[EventFacts], now: datetime, *, depth: int) -> Iterator[Link]:
    for event in events[:MAX_EVENTS]:
        yield Link(depth=depth, text=f"event {event_line(event, now)}")
