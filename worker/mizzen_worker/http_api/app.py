"""Owns the ASGI application of the public port: its one table of routes, gates, error answers,
counting; owns no state.

What only the launcher may do (drain) is not here: it has its own port.
"""

import logging
from collections.abc import Iterable, Sequence
from dataclasses import replace

from fastapi import FastAPI
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mizzen_worker.contracts.errors import WorkerError
from mizzen_worker.http_api.admin_routes import admin_endpoints
from mizzen_worker.http_api.anthropic_routes import anthropic_endpoints
from mizzen_worker.http_api.body import json_response
from mizzen_worker.http_api.body_limit import BodyLimit
from mizzen_worker.http_api.endpoint import Endpoint, Handler
from mizzen_worker.http_api.engine import FrontEngine
from mizzen_worker.http_api.errors import ErrorAnswer, answer_of, answer_of_status, dialect_of
from mizzen_worker.http_api.event_stream import ClientGoneError
from mizzen_worker.http_api.info_routes import info_endpoints
from mizzen_worker.http_api.native_routes import native_endpoints
from mizzen_worker.http_api.openai_routes import openai_endpoints
from mizzen_worker.http_api.openapi import document_endpoint
from mizzen_worker.http_api.origin import Origin, origin_of, read_origin, set_origin
from mizzen_worker.http_api.text_routes import text_endpoints
from mizzen_worker.observability.metric_names import HTTP_OPEN, HTTP_REQUESTS, HTTP_SECONDS
from mizzen_worker.observability.tracing import Attributes, Span

logger = logging.getLogger(__name__)

_STATUS_CLIENT_GONE = 499


def create_app(engine: FrontEngine) -> ASGIApp:
    """Make the application of one engine."""
    endpoints = [
        *openai_endpoints(engine),
        *anthropic_endpoints(engine),
        *native_endpoints(engine),
        *text_endpoints(engine),
        *info_endpoints(engine),
        *admin_endpoints(engine),
    ]
    endpoints.append(document_endpoint(engine, endpoints))
    routes = [
        Route(one.path, _gated(engine, one), methods=list(one.methods), name=one.path)
        for one in endpoints
    ]
    # The document comes from our own table of routes, the same that dispatches and counts.
    app = FastAPI(
        routes=[*routes],
        openapi_url=None,
        redirect_slashes=False,
        exception_handlers={
            WorkerError: _worker_error,
            HTTPException: _http_error,
            ClientGoneError: _client_gone,
            ClientDisconnect: _client_gone,
            Exception: _unexpected,
        },
    )
    limited = BodyLimit(
        app,
        max_body_bytes=engine.limits.max_body_bytes,
        wait_s=engine.limits.body_wait_s,
        clock=engine.clock,
    )
    return _Counted(limited, engine, endpoints, routes)


def _gated(engine: FrontEngine, endpoint: Endpoint) -> Handler:
    async def handle(request: Request) -> Response:
        engine.keys.check(endpoint.gate, request.headers)
        return await endpoint.handler(request)

    return handle


async def _worker_error(request: Request, error: Exception) -> Response:
    answer = answer_of(error)
    if answer.status == 500:
        _log_failure(request, error)
    return _response(request, answer)


async def _http_error(request: Request, error: Exception) -> Response:
    status = error.status_code if isinstance(error, HTTPException) else 500
    path = request.url.path
    response = _response(request, answer_of_status(status, method=request.method, path=path))
    if isinstance(error, HTTPException) and error.headers is not None:
        response.headers.update(error.headers)
    return response


async def _client_gone(_request: Request, _error: Exception) -> Response:
    return Response(status_code=_STATUS_CLIENT_GONE)


async def _unexpected(request: Request, error: Exception) -> Response:
    _log_failure(request, error)
    return _response(request, answer_of(error))


def _log_failure(request: Request, error: Exception) -> None:
    fields = {"request_id": origin_of(request.scope).log_id, "path": request.url.path}
    logger.error("request failed", exc_info=error, extra=fields)


def _response(request: Request, answer: ErrorAnswer) -> Response:
    names = frozenset(name for name, _ in request.scope["headers"])
    body = answer.body(dialect_of(request.url.path, names))
    response = json_response(body, status=answer.status)
    response.headers.update(answer.headers)
    return response


def _named(headers: Iterable[tuple[bytes, bytes]], origin: Origin) -> list[tuple[bytes, bytes]]:
    """Put the request's id among the headers of its answer, under OpenAI's and Anthropic's name."""
    log_id = origin.log_id.encode()
    return [*headers, (b"x-request-id", log_id), (b"request-id", log_id)]


class _Counted:
    """ASGI middleware: one count and one log line for each answer."""

    def __init__(
        self,
        app: ASGIApp,
        engine: FrontEngine,
        endpoints: Sequence[Endpoint],
        routes: Sequence[Route],
    ) -> None:
        self._app = app
        self._engine = engine
        self._routes = routes
        self._num_open = 0
        self._quiet = frozenset(one.path for one in endpoints if one.is_quiet)
        self._operations = {one.path: one.operation for one in endpoints if one.operation}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            return
        status = 0
        origin = read_origin(scope, self._engine.new_request_id())
        span: Span | None = None
        route = self._route_of(scope)
        if self._engine.tracer is not None and route not in self._quiet:
            method = scope["method"]
            name = f"{method} {route}"
            span = self._engine.tracer.begin(name, traceparent=origin.traceparent)
            origin = replace(origin, traceparent=span.traceparent)
        set_origin(scope, origin)

        async def noted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": _named(message.get("headers", ()), origin)}
            await send(message)

        recorder = self._engine.recorder
        begun_s = self._engine.clock()
        self._num_open += 1
        recorder.set(HTTP_OPEN, self._num_open)
        try:
            await self._app(scope, receive, noted)
        except ClientGoneError:
            status = _STATUS_CLIENT_GONE
        finally:
            seconds = self._engine.clock() - begun_s
            self._num_open -= 1
            recorder.set(HTTP_OPEN, self._num_open)
            recorder.count(HTTP_REQUESTS, 1, route, str(status))
            recorder.count(HTTP_SECONDS, seconds, route)
            level = logging.DEBUG if route in self._quiet else logging.INFO
            if span is not None:
                span.end(self._attributes(scope, route, status, origin))
            fields = {
                "request_id": origin.log_id,
                "route": route,
                "status": status,
                "seconds": round(seconds, 4),
            }
            logger.log(level, "answered", extra=fields)

    def _attributes(self, scope: Scope, route: str, status: int, origin: Origin) -> Attributes:
        attributes = {
            "http.request.method": scope["method"],
            "http.route": route,
            "http.response.status_code": status,
            "mizzen.request_id": origin.log_id,
        }
        if route in self._operations:
            attributes["gen_ai.operation.name"] = self._operations[route]
            attributes["gen_ai.request.model"] = self._engine.served_name
        return attributes

    def _route_of(self, scope: Scope) -> str:
        """Give a path's name in the table; others are one label, so that no scanner adds names."""
        for route in self._routes:
            if route.matches(scope)[0] is not Match.NONE:
                return route.path
        return "other"
