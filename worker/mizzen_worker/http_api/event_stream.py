"""Owns the framing of server-sent events and the order of effects around a stream; owns no bodies.

The status line is not sent before the first event is known: a request that every worker refuses is
a 429 or 503, not a stream that begins well. A client that leaves ends its requests. A client that
does not read holds what the socket buffers and one frame: what comes meanwhile is joined where it
lies (``RequestState.take``), never queued.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable
from typing import Any, Protocol, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from mizzen_worker.http_api.errors import ErrorAnswer, answer_of
from mizzen_worker.http_api.origin import origin_of
from mizzen_worker.http_api.subrequests import IndexedOutput, Subrequests
from mizzen_worker.tokenizer.request_state import Output

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

COMMENT = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"
_encode = msgspec.json.Encoder().encode


class ClientGoneError(Exception):
    """The client left before there was an answer."""


class Frames(Protocol):
    """Frames of one API's stream; each method gives bytes to send, or none."""

    keep_alive: bytes
    """Sent as a sign of life while there is nothing new."""

    def begin(self) -> bytes:
        """Give what stands before the first output."""
        ...

    def output(self, index: int, output: Output) -> bytes:
        """Give what is new of one choice."""
        ...

    def end(self) -> bytes:
        """Give what stands after the last output."""
        ...

    def error(self, answer: ErrorAnswer) -> bytes:
        """Give the end of a stream that fails."""
        ...


def event(body: Any) -> bytes:
    """Frame one JSON body."""
    return b"data: " + _encode(body) + b"\n\n"


def named_event(name: str, body: Any) -> bytes:
    """Frame one JSON body under a name."""
    return b"event: " + name.encode() + b"\ndata: " + _encode(body) + b"\n\n"


async def unless_disconnected(receive: Receive, work: Awaitable[Result]) -> Result:
    """Wait for a result while watching the client; raises ``ClientGoneError`` when it leaves."""
    task = asyncio.ensure_future(work)
    watcher = asyncio.create_task(_disconnect(receive))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        return task.result()
    finally:
        for pending in (task, watcher):
            pending.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def stream_answer(request: Request, subrequests: Subrequests, frames: Frames) -> Response:
    """Answer with a stream, once the first output or sign of life is there."""
    try:
        first = await unless_disconnected(request.receive, subrequests.next())
    except BaseException:
        subrequests.abort()
        raise
    return _EventStream(subrequests, frames, first)


class _EventStream(Response):
    """A stream of events. Sends from one loop: no generator stands between output and socket."""

    media_type = "text/event-stream"

    def __init__(
        self, subrequests: Subrequests, frames: Frames, first: IndexedOutput | None
    ) -> None:
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._subrequests = subrequests
        self._frames = frames
        self._first = first

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        with contextlib.suppress(ClientGoneError):
            async with self._subrequests:
                await unless_disconnected(receive, self._send_all(scope, send))

    async def _send_all(self, scope: Scope, send: Send) -> None:
        await send(
            {
                "type": "http.response.start",
                "status": self.status_code,
                "headers": self.raw_headers,
            }
        )
        try:
            await self._send_outputs(send)
            last = self._frames.end()
        except Exception as error:  # the status line is gone: the error is an event
            answer = answer_of(error)
            if answer.status == 500:
                log_id = origin_of(scope).log_id
                logger.exception("stream failed", extra={"request_id": log_id})
            last = self._frames.error(answer)
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _send_outputs(self, send: Send) -> None:
        frames, subrequests = self._frames, self._subrequests
        held = frames.begin()
        item = self._first
        while item is not None:
            output = item.output
            frame = frames.keep_alive if output is None else frames.output(item.index, output)
            if held or frame:
                await send({"type": "http.response.body", "body": held + frame, "more_body": True})
                held = b""
            item = await subrequests.next()


async def _disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
