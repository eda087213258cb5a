"""Owns the administrative routes of the public port, which exist only with an admin key.

Owns no request and no worker: requests are ended through the manager, workers asked through it.
"""

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from mizzen_worker import __version__
from mizzen_worker.contracts.admin_answers import Flushed, ServerInfo, flushed_of, told_by
from mizzen_worker.contracts.admin_paths import (
    PATH_ABORT,
    PATH_FLUSH,
    PATH_GET_SERVER_INFO,
    PATH_SERVER_INFO,
)
from mizzen_worker.contracts.errors import RequestError, UnavailableError
from mizzen_worker.contracts.messages import ControlVerb
from mizzen_worker.http_api.access import Gate
from mizzen_worker.http_api.body import json_response, read_body
from mizzen_worker.http_api.endpoint import Endpoint
from mizzen_worker.http_api.engine import FrontEngine
from mizzen_worker.http_api.native_requests import AbortRequest

_GET = ("GET", "HEAD")


class Aborted(msgspec.Struct, frozen=True, kw_only=True):
    """How many live requests were ended."""

    num_aborted: int


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
        replies = await engine.manager.control(ControlVerb.FLUSH_CACHE)
        if not replies:
            msg = "no worker is attached at the moment"
            raise UnavailableError(msg)
        done = flushed_of(replies)
        return json_response(done, status=503 if done.failed else 200)

    async def info(_request: Request) -> Response:
        replies = await engine.manager.control(ControlVerb.DESCRIBE)
        capacity = engine.manager.workers.capacity()
        return json_response(
            ServerInfo(
                version=__version__,
                served_model_name=engine.served_name,
                status="ready" if engine.manager.is_accepting else "not ready",
                live_requests=await engine.num_live_everywhere(),
                started_at=engine.started_at,
                max_total_num_tokens=None if capacity is None else capacity.kv_tokens,
                context_length=None if capacity is None else capacity.context_length,
                processes={address: told_by(reply) for address, reply in replies.items()},
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
