"""Owns the operator's one exception tree and the shape of a complaint about a spec.

Does not own what happens on an error: ``reconcile`` maps permanent ones to conditions and retries
the others.
"""

from collections.abc import Iterable
from dataclasses import dataclass

INVALID_SPEC = "InvalidSpec"
NOT_AVAILABLE = "NotAvailable"
NAME_CONFLICT = "NameConflict"
CLAIM_NOT_SHAREABLE = "ClaimNotShareable"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One reason why a spec cannot work: where, what is there, what is wrong, what to do."""

    field: str
    """Path in the object, for example ``spec.worker.rollout.maxSurge``."""
    value: str
    """The value found there, as text; empty when the field is absent."""
    message: str
    remedy: str
    reason: str = INVALID_SPEC
    """CamelCase reason of the ``Accepted`` condition."""

    def sentence(self) -> str:
        """The complaint as one line for people."""
        found = f" (found {self.value})" if self.value else ""
        return f"{self.field}: {self.message}{found}; {self.remedy}"


class OperatorError(Exception):
    """Base of everything the operator raises on purpose."""


class SpecError(OperatorError):
    """The object cannot work as written: a condition, never a retry."""

    def __init__(self, problems: Iterable[Problem]) -> None:
        self.problems = tuple(problems)
        super().__init__("; ".join(problem.sentence() for problem in self.problems))


class ClusterError(OperatorError):
    """The cluster did not do what we asked: retried with back-off."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        self.retry_after_s = retry_after_s
        super().__init__(message)


class UnavailableError(ClusterError):
    """No answer, a time-out or a 5xx."""


class ThrottledError(ClusterError):
    """429; ``retry_after_s`` is what the server asked for."""


class ConflictError(ClusterError):
    """409 on a precondition or a write: what was decided upon is stale."""


class ForbiddenError(ClusterError):
    """403: our role lacks a verb, or a quota or an admission policy refused the object."""


class RejectedError(ClusterError):
    """400 or 422: the API server does not accept what we rendered."""


class NameConflictError(OperatorError):
    """An object of a name we need exists and is not ours; it is never adopted."""

    def __init__(self, *, kind: str, name: str, field: str = "metadata.name") -> None:
        self.problem = Problem(
            field=field,
            value=name,
            message=f"{kind} {name} exists in this namespace and does not belong to this service",
            remedy=f"delete or rename that {kind}, or give the InferenceService another name",
            reason=NAME_CONFLICT,
        )
        super().__init__(self.problem.sentence())
