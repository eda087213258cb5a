"""Owns what an HTTP request brings for logs and traces: its id and its place in a trace.

Owns no log line and no span. A client's id is taken where it is short and plain, so that it can
stand in any log; other requests get a random one.
"""

import re
from dataclasses import dataclass

from starlette.types import Scope

_KEY = "mizzen.origin"
_PLAIN = re.compile(rb"[A-Za-z0-9._:-]{1,128}")
_TRACEPARENT = re.compile(rb"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Origin:
    """``log_id`` names the request in every log line; ``traceparent`` is of the W3C's form."""

    log_id: str
    is_clients_id: bool = False
    traceparent: str = ""


def read_origin(scope: Scope, fresh_id: str) -> Origin:
    """Read the headers of a request."""
    headers = dict(scope["headers"])
    given = headers.get(b"x-request-id", b"")
    traceparent = headers.get(b"traceparent", b"").strip()
    is_clients_id = _PLAIN.fullmatch(given) is not None
    return Origin(
        log_id=given.decode() if is_clients_id else fresh_id,
        is_clients_id=is_clients_id,
        traceparent=traceparent.decode() if _TRACEPARENT.fullmatch(traceparent) else "",
    )


def set_origin(scope: Scope, origin: Origin) -> None:
    """Give a request's origin to its handler."""
    scope[_KEY] = origin


def origin_of(scope: Scope) -> Origin:
    """Give the origin that the application's outermost layer set."""
    origin = scope[_KEY]
    assert isinstance(origin, Origin)
    return origin
