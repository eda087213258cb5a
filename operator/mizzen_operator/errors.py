"""Owns the operator's one exception tree, the shape of a complaint about a spec, and what a
sentence of the API server against an object means.

Does not own what happens on an error: ``reconcile`` maps permanent ones to conditions and retries
the others.
"""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

INVALID_SPEC = "InvalidSpec"
NOT_AVAILABLE = "NotAvailable"
NAME_CONFLICT = "NameConflict"
CLAIM_NOT_SHAREABLE = "ClaimNotShareable"
INVALID_POD_TEMPLATE = "InvalidPodTemplate"
WIRING_FAULT = "WiringFault"


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
        self.look_again_s: float | None = None
        """Seconds after which there is something to do whether the back-off is over or not."""
        super().__init__(message)


class UnavailableError(ClusterError):
    """No answer, a time-out or a 5xx."""


class ThrottledError(ClusterError):
    """429; ``retry_after_s`` is what the server asked for."""


class ConflictError(ClusterError):
    """409 on a precondition or a write: what was decided upon is stale."""


class RefusedError(ClusterError):
    """400, 403 or 422: asking for the same again does not help by itself."""

    def __init__(self, message: str, *, said: str = "", fields: tuple[str, ...] = ()) -> None:
        super().__init__(message)
        self.said = said or message
        """The API server's own sentence."""
        self.fields = fields
        """Paths in the object that it complains about, where it names them."""


class ForbiddenError(RefusedError):
    """403: our role lacks a verb, or a quota or an admission policy refused the object."""


class RejectedError(RefusedError):
    """400 or 422: the API server does not accept what we rendered."""


class Objection(Enum):
    """What it means that the API server does not take an object."""

    TEMPLATE = "template"
    """It would be refused in earnest too, until it or a policy changes."""
    QUOTA_FULL = "quota-full"
    """It would fit, were there room; others may give some back at any time."""
    NO_RIGHT = "no-right"
    """The operator may not, or nobody may in a namespace that ends: nothing is known of the
    object."""
    NOT_ASKABLE = "not-askable"
    """A webhook cannot be asked without effect: nothing is known of the object."""


_POD_FORBIDDEN = re.compile(r'^pods "[^"]*" is forbidden: ')
_OBJECTION_BY_TEXT = (
    # All of these are written by the API server itself and have been the same for years; it gives
    # them no reason of their own. "failed quota: … must specify …" is none of them: it stays.
    (re.compile(r'User ".*" cannot \w+ resource'), Objection.NO_RIGHT),
    (re.compile(r"because it is being terminated"), Objection.NO_RIGHT),
    (re.compile(r"does not support dry run"), Objection.NOT_ASKABLE),
    (re.compile(r"exceeded quota: |status unknown for quota: "), Objection.QUOTA_FULL),
)


def objection_of(said: str) -> Objection:
    """What kind of refusal this sentence of the API server is."""
    found = (kind for pattern, kind in _OBJECTION_BY_TEXT if pattern.search(said))
    return next(found, Objection.TEMPLATE)


def words_of(said: str) -> str:
    """The sentence without the pod's name, which a controller makes up anew for each attempt."""
    return _POD_FORBIDDEN.sub("", said)


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
