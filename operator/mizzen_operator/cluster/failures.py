"""Owns turning a refused call into a typed error, and the two errors only this package knows.

Does not own the error tree (`errors.py`) nor what a caller does about an error.
"""

from dataclasses import dataclass

from mizzen_operator.errors import (
    ClusterError,
    ConflictError,
    ForbiddenError,
    RejectedError,
    ThrottledError,
    UnavailableError,
)
from mizzen_operator.store import ObjectRef


class NotFoundError(ClusterError):
    """404: the object, or its kind, does not exist."""


class LingeringError(ConflictError):
    """An object of a name we need is being deleted, and something still holds it."""

    def __init__(self, ref: ObjectRef) -> None:
        super().__init__(
            f"{ref.kind.kind} {ref.name} is being deleted; if it stays, look at its finalizers"
        )


class LeadershipLostError(Exception):
    """This process may not write any more; it must end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """What the API server said instead of doing what was asked."""

    status: int
    reason: str
    message: str
    retry_after_s: float | None


_ERROR_BY_STATUS: dict[int, type[ClusterError]] = {
    400: RejectedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: ConflictError,
    422: RejectedError,
}


def error_of(refusal: Refusal, *, call: str) -> ClusterError:
    """The typed error of a refused call; `call` names verb and object for the reader."""
    text = f"{call}: {refusal.message} (HTTP {refusal.status} {refusal.reason})"
    if refusal.status == 429 or (refusal.status >= 500 and refusal.retry_after_s is not None):
        return ThrottledError(text, retry_after_s=refusal.retry_after_s or 1.0)
    return _ERROR_BY_STATUS.get(refusal.status, UnavailableError)(text)
