"""Owns the ASGI application of the public port: routes, error answers, counting; owns no state.

Administrative routes are not here: the launcher serves them on its own port.
"""

import logging

from fastapi import FastAPI, Request
from fastapi.responses import PlainTextResponse, Response
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mizzen_worker.contracts.errors import WorkerError
from mizzen_worker.contracts.operator_names import (
    PATH_LIVE,
    PATH_METRICS,
    PATH_READY,
    PATH_STARTUP,
)
from mizzen_worker.http_api.body import json_response
from mizzen_worker.http_api.body_limit import BodyLimit
from mizzen_worker.http_api.engine import FrontEngine
from mizzen_worker.http_api.errors import ErrorAnswer, answer_of, answer_of_status
from mizzen_worker.http_api.native_routes import native_router
from mizzen_worker.http_api.openai_routes import openai_router
from mizzen_worker.http_api.sse import ClientGoneError
from mizzen_worker.observability.metric_names import HTTP_REQUESTS

logger = logging.getLogger(__name__)

_STATUS_CLIENT_GONE = 499


def create_app(engine: FrontEngine) -> ASGIApp:
    """Make the application of one engine."""
    app = FastAPI(title="Mizzen", docs_url=None, redoc_url=None, openapi_url=None)
    app.include_router(openai_router(engine))
    app.include_router(native_router(engine))
    _add_health(app, engine)
    _add_errors(app)
    limited = BodyLimit(app, max_body_bytes=engine.limits.max_body_bytes)
    return _Counted(limited, engine)


def _add_health(app: FastAPI, engine: FrontEngine) -> None:
    @app.get(PATH_LIVE)
    async def live() -> Response:
        return PlainTextResponse("ok\n")

    @app.get(PATH_READY)
    async def ready() -> Response:
        if engine.manager.is_accepting:
            return PlainTextResponse("ready\n")
        return PlainTextResponse("no worker takes requests at the moment\n", status_code=503)

    @app.get(PATH_STARTUP)
    async def startup() -> Response:
        if engine.manager.workers.num_attached:
            return PlainTextResponse("started\n")
        return PlainTextResponse("no worker has attached yet\n", status_code=503)

    @app.get(PATH_METRICS)
    async def metrics() -> Response:
        return PlainTextResponse(engine.recorder.text())


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(WorkerError)
    async def worker_error(request: Request, error: WorkerError) -> Response:
        answer = answer_of(error)
        if answer.status == 500:
            logger.error("request failed", exc_info=error, extra={"path": request.url.path})
        return _response(request, answer)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        path = request.url.path
        return _response(
            request, answer_of_status(error.status_code, method=request.method, path=path)
        )

    @app.exception_handler(ClientGoneError)
    @app.exception_handler(ClientDisconnect)
    async def client_gone(_request: Request, _error: Exception) -> Response:
        return Response(status_code=_STATUS_CLIENT_GONE)

    @app.exception_handler(Exception)
    async def unexpected(request: Request, error: Exception) -> Response:
        logger.error("request failed", exc_info=error, extra={"path": request.url.path})
        return _response(request, answer_of(error))


def _response(request: Request, answer: ErrorAnswer) -> Response:
    response = json_response(answer.body(request.url.path), status=answer.status)
    response.headers.update(answer.headers)
    return response


class _Counted:
    """ASGI middleware: one count and one log line for each answer."""

    def __init__(self, app: ASGIApp, engine: FrontEngine) -> None:
        self._app = app
        self._engine = engine

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        status = 0
        request_id = ""

        async def noted(message: Message) -> None:
            nonlocal status, request_id
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = dict(message.get("headers", []))
                request_id = headers.get(b"x-request-id", b"").decode()
            await send(message)

        begun_s = self._engine.clock()
        try:
            await self._app(scope, receive, noted)
        finally:
            path = scope["path"]
            route = path if path in _COUNTED_ROUTES else "other"
            self._engine.recorder.count(HTTP_REQUESTS, 1, route, str(status))
            level = logging.DEBUG if route in _QUIET_ROUTES else logging.INFO
            fields = {
                **({"request_id": request_id} if request_id else {}),
                "route": route,
                "status": status,
                "seconds": round(self._engine.clock() - begun_s, 4),
            }
            logger.log(level, "answered", extra=fields)


_QUIET_ROUTES = frozenset({PATH_LIVE, PATH_READY, PATH_STARTUP, PATH_METRICS})
_COUNTED_ROUTES = _QUIET_ROUTES | {
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/models",
    "/generate",
}
"""Paths counted by name; others are one label, so that a scanner cannot grow the metrics."""
