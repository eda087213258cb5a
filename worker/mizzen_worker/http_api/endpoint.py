"""Owns what a route is made of: path, gate, handler, and what the OpenAPI document says of it.

One table of these makes the routes, the document, the metrics' names and the gates, so that they
cannot differ. Owns no routes itself.
"""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel
from starlette.requests import Request
from starlette.responses import Response

from mizzen_worker.http_api.access import Gate

Handler = Callable[[Request], Awaitable[Response]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One route. ``answers`` are the msgspec types it may answer with; none means plain text.

    ``chunk`` is the type of a streamed event where the route can stream; ``errors`` are statuses
    beyond those that every route of its kind may have.
    """

    path: str
    handler: Handler
    summary: str
    methods: tuple[str, ...] = ("POST",)
    gate: Gate = Gate.API
    body: type[BaseModel] | None = None
    answers: tuple[Any, ...] = ()
    chunk: Any = None
    errors: tuple[int, ...] = ()
    operation: str = ""
    """What OpenTelemetry's conventions call it, where it generates."""
    is_quiet: bool = False
    """Not worth a log line at level info."""
