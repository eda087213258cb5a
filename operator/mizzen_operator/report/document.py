"""Owns the JSON of ``mizzen status -o json``: the rows of a report under names in camelCase.

Does not own the rows (``view``).
"""

from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from datetime import datetime
from typing import Any

from mizzen_operator.report.view import ServiceReport
from mizzen_operator.spec.wording import moment_text


def status_document(reports: Iterable[ServiceReport], gaps: Iterable[str]) -> dict[str, Any]:
    """Everything read, for programs."""
    services = [
        {**_plain(report), "isReady": report.is_ready, "isServing": report.is_serving}
        for report in reports
    ]
    return {"services": services, "notRead": list(gaps)}


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {_camel(item.name): _plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return moment_text(value) if isinstance(value, datetime) else value


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)
