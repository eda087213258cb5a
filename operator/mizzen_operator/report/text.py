"""Owns the text of ``mizzen status``: one screen for one service, a few lines for one that is well.

Does not own what is told (``view``).
"""

from collections.abc import Iterable, Iterator
from datetime import datetime

from mizzen_operator.report.events import EventFacts
from mizzen_operator.report.view import (
    ConditionRow,
    GroupRow,
    PodRow,
    RoleRow,
    ServiceReport,
)
from mizzen_operator.report.wording import shortened, since, table
from mizzen_operator.status.running import READY

MAX_WARNINGS = 5
MAX_WAITS = 3
_HEAD = ("ROLE / GROUP", "READY", "UPDATED", "REVISION", "RESTARTS", "STATE")
_HEAD_WIDE = ("ROLE / GROUP / POD", "READY", "UPDATED", "REVISION", "RESTARTS", "NODE", "STATE")


def status_text(report: ServiceReport, now: datetime, *, is_wide: bool = False) -> str:
    """Everything about one service; ``is_wide`` shows every condition and pod, and cuts nothing."""
    lines = [headline(report, now), *(f"  ! {note}" for note in report.notes)]
    facts = (
        ("topology", report.topology),
        ("model", report.model_name),
        ("url", report.url),
        ("revision", report.revision),
    )
    lines.append("  " + ", ".join(f"{name} {value}" for name, value in facts if value))
    lines += _conditions(report, now, is_wide=is_wide)
    lines += _wide_roles(report) if is_wide else _roles(report)
    if is_wide or not report.is_ready:
        limit = len(report.warnings) if is_wide else MAX_WARNINGS
        lines += _warnings(report, now, limit, is_wide=is_wide)
    return "\n".join(lines) + "\n"


def brief_line(report: ServiceReport, now: datetime) -> str:
    """One line for one of several services that is well."""
    roles = ", ".join(f"{role.role} {role.ready}/{role.desired}" for role in report.roles)
    return f"{headline(report, now)}; {roles}\n"


def headline(report: ServiceReport, now: datetime) -> str:
    """Name, and whether it is well, in one line."""
    name = f"{report.namespace}/{report.name}"
    ready = report.condition(READY)
    if report.is_being_deleted:
        return f"{name}: is being deleted"
    if ready is None:
        return f"{name}: not looked at yet"
    span = since(ready.since, now)
    if report.is_ready:
        return f"{name}: ready for {span}"
    word = "serves, but is not ready" if report.is_serving else "does not serve"
    if ready.status == "True":
        return f"{name}: was ready when the operator last looked"
    return f"{name}: {word} for {span}: {ready.reason}: {ready.message}"


def event_line(event: EventFacts, now: datetime) -> str:
    """One Event, without its time."""
    times = f" ({event.count} times)" if event.count > 1 else ""
    what = f"{event.reason} on {event.about_kind} {event.about_name}{times}"
    return f"{since(event.last_at, now)} ago: {what}: {event.message}"


def _conditions(report: ServiceReport, now: datetime, *, is_wide: bool) -> list[str]:
    shown = [
        row for row in report.conditions if is_wide or (not row.is_as_wished and row.type != READY)
    ]
    if not shown:
        return []
    ready = report.condition(READY)
    rows = [("CONDITION", "STATUS", "SINCE", "REASON", "MESSAGE")]
    rows += [
        (
            row.type,
            row.status,
            since(row.since, now),
            row.reason,
            row.message if is_wide else _message(row, ready),
        )
        for row in shown
    ]
    return ["", *table(rows, "  ")]


def _message(row: ConditionRow, ready: ConditionRow | None) -> str:
    if ready is not None and row.message == ready.message and not ready.is_as_wished:
        return "(as above)"
    return shortened(row.message)


def _roles(report: ServiceReport) -> list[str]:
    rows = [_HEAD]
    for role in report.roles:
        rows.append((*_role_cells(role), _waits(role.pods)))
        rows += [
            (*_group_cells(group), f"{group.state}{_after(_waits(group.pods))}")
            for group in role.groups
        ]
    return ["", *table(rows, "  ")]


def _wide_roles(report: ServiceReport) -> list[str]:
    rows: list[tuple[str, ...]] = [_HEAD_WIDE]
    for role in report.roles:
        rows.append((*_role_cells(role), "", ""))
        for group in role.groups:
            rows.append((*_group_cells(group), "", group.state))
            rows += [_pod_cells(pod, "    ") for pod in group.pods]
        rows += [_pod_cells(pod, "  ") for pod in role.pods]
    return ["", *table(rows, "  ")]


def _role_cells(role: RoleRow) -> tuple[str, str, str, str, str]:
    ready = f"{role.ready}/{role.desired}"
    return role.role, ready, str(role.updated), "", str(role.restarts)


def _group_cells(group: GroupRow) -> tuple[str, str, str, str, str]:
    return (
        f"  {group.name}",
        f"{group.ready_pods}/{group.pods_wanted}",
        "yes" if group.is_updated else "no",
        group.revision,
        str(sum(pod.restarts for pod in group.pods)),
    )


def _pod_cells(pod: PodRow, indent: str) -> tuple[str, ...]:
    state = "waits for " + pod.waits_for.text if pod.waits_for else "Ready"
    ready = "yes" if pod.is_ready else "no"
    return (f"{indent}{pod.name}", ready, "", "", str(pod.restarts), pod.node or "-", state)


def _after(waits: str) -> str:
    return f", {waits}" if waits else ""


def _waits(pods: Iterable[PodRow]) -> str:
    """What pods wait for; those that wait for the same are told once."""
    by_text: dict[str, list[str]] = {}
    for pod in pods:
        if pod.waits_for is not None:
            by_text.setdefault(pod.waits_for.text, []).append(pod.name)
    told = [_wait(names, text) for text, names in list(by_text.items())[:MAX_WAITS]]
    if len(by_text) > MAX_WAITS:
        told.append(f"and {len(by_text) - MAX_WAITS} more")
    return "; ".join(told)


def _wait(names: list[str], text: str) -> str:
    who = names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more"
    return f"{who} waits for {shortened(text)}"


def _warnings(report: ServiceReport, now: datetime, limit: int, *, is_wide: bool) -> Iterator[str]:
    if not report.warnings:
        return
    yield ""
    yield "  recent warnings"
    for event in report.warnings[:limit]:
        line = event_line(event, now)
        yield f"    {line if is_wide else shortened(line)}"
    if len(report.warnings) > limit:
        yield f"    and {len(report.warnings) - limit} older ones: -o wide shows them"
