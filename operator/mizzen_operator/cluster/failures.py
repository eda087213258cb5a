"""Owns turning a refused call into a typed error, and the errors only this package knows.

Does not own the error tree (`errors.py`) nor what a caller does about an error.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from mizzen_operator.errors import (
    ClusterError,
    ConflictError,
    ForbiddenError,
    RefusedError,
    RejectedError,
    ThrottledError,
    UnavailableError,
)
from mizzen_operator.store import ObjectRef


class NotFoundError(ClusterError):
    """404: the object, or its kind, does not exist."""


class UnauthorizedError(UnavailableError):
    """401: the credentials are not (or no longer) accepted."""


class UnfitObjectError(UnavailableError):
    """500: what is stored does not fit the definition of its kind any more, so that no server-side
    apply to it is possible. It was stored under an older definition."""


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
    fields: tuple[str, ...] = ()
    """Paths that it complains about."""


_ERROR_BY_STATUS: dict[int, type[ClusterError]] = {
    401: UnauthorizedError,
    404: NotFoundError,
    409: ConflictError,
    410: ConflictError,
}
_UNFIT = "failed to create typed live object"
_MISSHAPEN = "failed to create typed patch object"
"""Written by the API server itself, which gives them no reason of their own."""
_REFUSED_BY_STATUS: dict[int, type[RefusedError]] = {
    400: RejectedError,
    403: ForbiddenError,
    422: RejectedError,
}


def error_of(refusal: Refusal, *, call: str) -> ClusterError:
    """The typed error of a refused call; `call` names verb and object for the reader."""
    text = f"{call}: {refusal.message} (HTTP {refusal.status} {refusal.reason})"
    if refusal.status == 429 or (refusal.status >= 500 and refusal.retry_after_s is not None):
        return ThrottledError(text, retry_after_s=refusal.retry_after_s or 1.0)
    if refusal.status == 500 and _UNFIT in refusal.message:
        return UnfitObjectError(text)
    is_misshapen = refusal.status == 500 and _MISSHAPEN in refusal.message
    refused = RejectedError if is_misshapen else _REFUSED_BY_STATUS.get(refusal.status)
    if refused is not None:
        return refused(text, said=refusal.message, fields=refusal.fields)
    return _ERROR_BY_STATUS.get(refusal.status, UnavailableError)(text)


def document_of(data: bytes) -> Any:
    """The answer's JSON; None if it is something else."""
    try:
        return json.loads(data)
    except ValueError:
        return None


def refused_of(status: int, headers: Mapping[str, str], data: bytes, *, call: str) -> ClusterError:
    """The typed error of an answer that is none of success."""
    document = document_of(data)
    if document is None:
        document = {"message": data[:200].decode(errors="replace").strip()}
    answer = document if isinstance(document, dict) else {}
    return error_of(
        Refusal(
            status=status,
            reason=str(answer.get("reason") or "no reason given"),
            message=str(answer.get("message") or "no message given"),
            retry_after_s=_seconds(headers.get("Retry-After")),
            fields=_cause_fields(answer),
        ),
        call=call,
    )


def _cause_fields(answer: Mapping[str, Any]) -> tuple[str, ...]:
    causes = (answer.get("details") or {}).get("causes") or ()
    return tuple(str(cause["field"]) for cause in causes if cause.get("field"))


def _seconds(text: str | None) -> float | None:
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        return None
    return seconds if math.isfinite(seconds) and seconds >= 0 else None
