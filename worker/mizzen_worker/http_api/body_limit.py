"""Owns the bound on request bodies, before anything is read into memory; owns no routes."""

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mizzen_worker.http_api.errors import ErrorAnswer

_MAX_DISCARDED_BYTES = 64 * 1024 * 1024


class BodyLimit:
    """ASGI middleware: a body beyond the limit is a 413, whatever its header says."""

    def __init__(self, app: ASGIApp, *, max_body_bytes: int) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self._max_body_bytes:
            await self._refuse(scope, send)
            return
        num_bytes = 0
        is_refused = False

        async def counted() -> Message:
            nonlocal num_bytes, is_refused
            message = await receive()
            if message["type"] == "http.request":
                num_bytes += len(message.get("body", b""))
                if num_bytes > self._max_body_bytes and not is_refused:
                    is_refused = True
                    await _discard(receive, message)
                    await self._refuse(scope, send)
                if is_refused:
                    return {"type": "http.disconnect"}
            return message

        async def unless_refused(message: Message) -> None:
            if not is_refused:
                await send(message)

        await self._app(scope, counted, unless_refused)

    async def _refuse(self, scope: Scope, send: Send) -> None:
        answer = ErrorAnswer(
            status=413,
            kind="invalid_request_error",
            code="body_too_large",
            message=f"the body exceeds {self._max_body_bytes} bytes; send less",
        )
        body = msgspec.json.encode(answer.body(scope["path"]))
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": body})


async def _discard(receive: Receive, message: Message) -> None:
    """Read on for a while: a client that still sends would lose the answer to a reset."""
    num_bytes = 0
    while message.get("more_body", False) and num_bytes < _MAX_DISCARDED_BYTES:
        message = await receive()
        num_bytes += len(message.get("body", b""))
