"""Owns the form of one rule across fields: a CEL rule of the CRD and a Python predicate in one.

Does not own the rules themselves (``rules``, ``source_rules``).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from mizzen_operator.errors import INVALID_SPEC, Problem
from mizzen_operator.spec.model import InferenceService
from mizzen_operator.spec.wording import shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing that must hold between fields."""

    id: str
    field: str
    """Path of the field that a person has to change."""
    cel: str | None
    """Expression over ``self`` = the spec (the whole object when ``at_root``); None where the API
    server cannot compute it within its cost budget, so that only Python checks it."""
    holds: Callable[[InferenceService], bool]
    message: str
    remedy: str
    reason: str = INVALID_SPEC
    at_root: bool = False
    finding: Callable[[InferenceService], str] | None = None
    """What is wrong in this very service, values included; replaces message and value there."""

    def text(self) -> str:
        """What a person reads at admission."""
        return f"{self.message}; {self.remedy}"

    def problem(self, service: InferenceService) -> Problem:
        """The broken rule as a problem of this service."""
        found = self.finding(service) if self.finding is not None else ""
        return Problem(
            field=self.field,
            value="" if found else shown(value_at(service, self.field)),
            message=found or self.message,
            remedy=self.remedy,
            reason=self.reason,
        )


def value_at(service: InferenceService, path: str) -> Any:
    """The value there; None if there is none."""
    if path == "metadata.name":
        return service.name
    value: Any = service.spec.model_dump(by_alias=True, mode="json", exclude_none=True)
    for step in path.split(".")[1:]:
        if not isinstance(value, Mapping) or step not in value:
            return None
        value = value[step]
    return value


def is_zero(count: int | str) -> bool:
    """Whether a number or a percentage is 0."""
    return Decimal(str(count).rstrip("%")) == 0
