"""Owns bytes of a request body → a checked model, and JSON answers; owns no meaning of fields."""

from typing import Any, TypeVar

import msgspec
from fastapi import Request
from fastapi.responses import Response
from pydantic import BaseModel, ValidationError

from mizzen_worker.contracts.errors import RequestError
from mizzen_worker.http_api.misspelling import refuse_misspelt
from mizzen_worker.http_api.validation import sentence_of

Body = TypeVar("Body", bound=BaseModel)


async def read_body(request: Request, kind: type[Body]) -> tuple[dict[str, Any], Body]:
    """Give the raw object and the checked one; raises ``RequestError`` with one sentence."""
    payload = await request.body()
    try:
        raw = msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        msg = f"the body is no JSON: {error}; send a JSON object"
        raise RequestError(msg) from error
    if not isinstance(raw, dict):
        msg = "the body is no JSON object; send one"
        raise RequestError(msg)
    refuse_misspelt(raw, kind.model_fields)
    try:
        return raw, kind.model_validate_json(payload)
    except ValidationError as error:
        raise sentence_of(error.errors(include_url=False)) from error


def json_response(body: Any, request_id: str | None = None, status: int = 200) -> Response:
    """Make a JSON answer."""
    headers = {} if request_id is None else {"X-Request-Id": request_id}
    return Response(
        msgspec.json.encode(body),
        status_code=status,
        media_type="application/json",
        headers=headers,
    )
