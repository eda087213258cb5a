"""Owns the administrative routes of the public port, which exist only with an admin key.

Owns no request and no worker: requests are ended through the manager, workers asked through it.
"""

from typing import Literal

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mizzen_worker.contracts.admin_paths import (
    PATH_ABORT,
    PATH_FLUSH,
    PATH_GET_SERVER_INFO,
    PATH_SERVER_INFO,
)
from mizzen_worker.contracts.errors import RequestError, UnavailableError
from mizzen_worker.contracts.messages import ControlVerb, Reply
from mizzen_worker.http_api.access import Gate
from mizzen_worker.http_api.body import json_response, read_body
from mizzen_worker.http_api.endpoint import Endpoint
from mizzen_worker.http_api.engine import FrontEngine
from mizzen_worker.http_api.native_requests import AbortRequest

_GET = ("GET", "HEAD")


class Aborted(msgspec.Struct, frozen=True, kw_only=True):
    """How many live requests were ended."""

    num_aborted: int


class WorkerAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What one worker said."""

    is_ok: bool
    message: str
    facts: dict[str, str]


class Flushed(msgspec.Struct, frozen=True, kw_only=True):
    """What each worker said, by its address."""

    workers: dict[str, WorkerAnswer]


class ServerInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What this server runs, and each worker's facts by its address."""

    served_model_name: str
    status: Literal["ready", "not ready"]
    live_requests: int
    started_at: int
    max_total_num_tokens: int | None
    context_length: int | None
    workers: dict[str, WorkerAnswer]


def admin_endpoints(engine: FrontEngine) -> list[Endpoint]:
    """Make the routes of one engine; none without an admin key."""
    if not engine.keys.admin:
        return []

    async def abort(request: Request) -> Response:
        _, body = await read_body(request, AbortRequest)
        if bool(body.rid) == bool(body.abort_all):
            msg = "give exactly one of rid and abort_all"
            raise RequestError(msg, field="rid")
        num_aborted = await engine.abort(None if body.abort_all else body.rid)
        return json_response(Aborted(num_aborted=num_aborted))

    async def flush(_request: Request) -> Response:
        workers = await _ask(engine, ControlVerb.FLUSH_CACHE)
        is_done = all(answer.is_ok for answer in workers.values())
        return json_response(Flushed(workers=workers), status=200 if is_done else 503)

    async def info(_request: Request) -> Response:
        capacity = engine.manager.workers.capacity()
        return json_response(
            ServerInfo(
                served_model_name=engine.served_name,
                status="ready" if engine.manager.is_accepting else "not ready",
                live_requests=await engine.num_live_everywhere(),
                started_at=engine.started_at,
                max_total_num_tokens=None if capacity is None else capacity.kv_tokens,
                context_length=None if capacity is None else capacity.context_length,
                workers=await _ask(engine, ControlVerb.DESCRIBE, is_any_needed=False),
            )
        )

    return [
        Endpoint(
            path=PATH_ABORT,
            handler=abort,
            summary="End live requests by id (administration)",
            gate=Gate.ADMIN,
            body=AbortRequest,
            answers=(Aborted,),
        ),
        Endpoint(
            path=PATH_FLUSH,
            handler=flush,
            summary="Drop what the prefix cache holds and no request uses (administration)",
            gate=Gate.ADMIN,
            answers=(Flushed,),
            errors=(503,),
        ),
        *(
            Endpoint(
                path=path,
                handler=info,
                summary="Tell about the server and its workers (administration)",
                methods=_GET,
                gate=Gate.ADMIN,
                answers=(ServerInfo,),
            )
            for path in (PATH_GET_SERVER_INFO, PATH_SERVER_INFO)
        ),
    ]


async def _ask(
    engine: FrontEngine, verb: ControlVerb, *, is_any_needed: bool = True
) -> dict[str, WorkerAnswer]:
    replies = await engine.manager.control(verb)
    if not replies and is_any_needed:
        msg = "no worker is attached at the moment"
        raise UnavailableError(msg)
    return {address: _answer(reply) for address, reply in replies.items()}


def _answer(reply: Reply) -> WorkerAnswer:
    return WorkerAnswer(is_ok=reply.is_ok, message=reply.message, facts=reply.facts)
