"""Owns the framing of server-sent events and the order of effects around a stream; owns no bodies.

The status line is not sent before the first event is known: a request that every worker refuses is
a 429 or 503, not a stream that begins well. A client that leaves ends its requests.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import msgspec
from fastapi import Request
from fastapi.responses import Response, StreamingResponse

from mizzen_worker.http_api.errors import answer_of
from mizzen_worker.http_api.generation import Generation, IndexedOutput

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

KEEP_ALIVE = b": keep-alive\n\n"
DONE = b"data: [DONE]\n\n"
_HEADERS = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}

Frames = Callable[[AsyncIterator[IndexedOutput]], AsyncIterator[bytes]]
"""From outputs to the frames of one API."""


class ClientGoneError(Exception):
    """The client left before there was an answer."""


def event(body: Any) -> bytes:
    """Frame one JSON body."""
    return b"data: " + msgspec.json.encode(body) + b"\n\n"


async def unless_disconnected(request: Request, work: Awaitable[Result]) -> Result:
    """Wait for a result while watching the client; raises ``ClientGoneError`` when it leaves."""
    task = asyncio.ensure_future(work)
    watcher = asyncio.create_task(_disconnect(request))
    try:
        await asyncio.wait({task, watcher}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientGoneError
        return task.result()
    finally:
        for pending in (task, watcher):
            pending.cancel()
        await asyncio.gather(task, watcher, return_exceptions=True)


async def stream_answer(request: Request, generation: Generation, frames: Frames) -> Response:
    """Answer with a stream, once the first output or sign of life is there."""
    outputs = generation.outputs()
    try:
        first = await unless_disconnected(request, anext(outputs))
    except BaseException:
        generation.abort()
        raise

    async def body() -> AsyncIterator[bytes]:
        async with generation:
            try:
                async for frame in frames(_prepended(first, outputs)):
                    yield frame
            except Exception as error:  # the status line is gone: the error is an event
                answer = answer_of(error)
                if answer.status == 500:
                    logger.exception(
                        "stream failed", extra={"request_id": generation.request_ids[0]}
                    )
                yield event(answer.body(request.url.path))
            yield DONE

    headers = {**_HEADERS, "X-Request-Id": generation.request_ids[0]}
    return StreamingResponse(body(), media_type="text/event-stream", headers=headers)


async def _prepended(
    first: IndexedOutput, rest: AsyncIterator[IndexedOutput]
) -> AsyncIterator[IndexedOutput]:
    yield first
    async for output in rest:
        yield output


async def _disconnect(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
