"""Owns the bounds on request bodies, before anything is read into memory: bytes and time.

Owns no routes.
"""

import asyncio
from collections.abc import Callable

import msgspec
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mizzen_worker.http_api.errors import dialect_of, too_large
from mizzen_worker.http_api.refusals import SlowBodyError

_MAX_DISCARDED_BYTES = 64 * 1024 * 1024


class BodyLimit:
    """ASGI middleware: a body beyond the limit is a 413, whatever its header says; a slow one 408.

    The time counts for the whole body, so that one byte now and then does not help.
    """

    def __init__(
        self, app: ASGIApp, *, max_body_bytes: int, wait_s: float, clock: Callable[[], float]
    ) -> None:
        self._app = app
        self._max_body_bytes = max_body_bytes
        self._wait_s = wait_s
        self._clock = clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        declared = dict(scope["headers"]).get(b"content-length", b"0")
        if declared.isdigit() and int(declared) > self._max_body_bytes:
            await self._refuse(scope, send)
            return
        num_bytes = 0
        is_refused = False
        is_whole = False
        ends_at_s = self._clock() + self._wait_s

        async def counted() -> Message:
            nonlocal num_bytes, is_refused, is_whole
            if is_whole:
                return await receive()
            message = await self._before(receive, ends_at_s)
            if message["type"] == "http.request":
                is_whole = not message.get("more_body", False)
                num_bytes += len(message.get("body", b""))
                if num_bytes > self._max_body_bytes and not is_refused:
                    is_refused = True
                    await self._discard(receive, message, ends_at_s)
                    await self._refuse(scope, send)
                if is_refused:
                    return {"type": "http.disconnect"}
            return message

        async def unless_refused(message: Message) -> None:
            if not is_refused:
                await send(message)

        await self._app(scope, counted, unless_refused)

    async def _before(self, receive: Receive, ends_at_s: float) -> Message:
        try:
            async with asyncio.timeout(max(0.0, ends_at_s - self._clock())):
                return await receive()
        except TimeoutError as error:
            msg = f"the body did not arrive within {self._wait_s:.0f} s; send it faster"
            raise SlowBodyError(msg) from error

    async def _refuse(self, scope: Scope, send: Send) -> None:
        dialect = dialect_of(scope["path"], frozenset(name for name, _ in scope["headers"]))
        body = msgspec.json.encode(too_large(self._max_body_bytes).body(dialect))
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        await send({"type": "http.response.start", "status": 413, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    async def _discard(self, receive: Receive, message: Message, ends_at_s: float) -> None:
        """Read on for a while: a client that still sends would lose the answer to a reset."""
        num_bytes = 0
        while message.get("more_body", False) and num_bytes < _MAX_DISCARDED_BYTES:
            message = await self._before(receive, ends_at_s)
            num_bytes += len(message.get("body", b""))
