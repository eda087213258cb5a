"""Owns bytes of a request body → a checked model, and JSON answers; owns no meaning of fields."""

from collections.abc import Collection
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel, ValidationError
from starlette.requests import Request
from starlette.responses import Response

from mizzen_worker.contracts.errors import RequestError
from mizzen_worker.http_api.misspelling import refuse_misplaced, refuse_misspelt
from mizzen_worker.http_api.refusals import MediaTypeError
from mizzen_worker.http_api.unserved import refuse_unserved
from mizzen_worker.http_api.validation import sentence_of, shown

Body = TypeVar("Body", bound=BaseModel)

_encode = msgspec.json.Encoder().encode
_MAX_DEPTH = 64
"""Nesting of JSON; templates and checks walk through it by recursion."""


async def read_body(
    request: Request, kind: type[Body], *, inner: Collection[str] = ()
) -> tuple[dict[str, Any], Body]:
    """Give the raw object and the checked one; raises ``RequestError`` with one sentence.

    ``inner``: names of fields of an object ``sampling_params`` in the body.
    """
    _check_media_type(request.headers.get("content-type"))
    payload = await request.body()
    try:
        raw = msgspec.json.decode(payload)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        msg = f"the body is no JSON: {error}; send a JSON object"
        raise RequestError(msg) from error
    if not isinstance(raw, dict):
        msg = "the body is no JSON object; send one"
        raise RequestError(msg)
    if _is_deeper(raw, _MAX_DEPTH):
        msg = f"the body is nested deeper than {_MAX_DEPTH}; send a flatter one"
        raise RequestError(msg)
    refuse_misplaced(raw, kind.model_fields, inner)
    refuse_misspelt(raw, kind.model_fields)
    refuse_unserved(raw, served=kind.model_fields)
    try:
        return raw, kind.model_validate(raw)
    except ValidationError as error:
        raise sentence_of(error.errors(include_url=False)) from error


def json_response(body: Any, status: int = 200) -> Response:
    """Make a JSON answer."""
    return Response(_encode(body), status_code=status, media_type="application/json")


def _check_media_type(given: str | None) -> None:
    if given is None:
        return
    media_type = given.partition(";")[0].strip().lower()
    if media_type == "application/json" or media_type.endswith("+json"):
        return
    msg = f"the body's content type is {shown(media_type)}; send Content-Type: application/json"
    raise MediaTypeError(msg)


def _is_deeper(value: Any, depth: int) -> bool:
    """Tell whether a value is nested deeper, level by level and without recursion."""
    level = [value]
    for _ in range(depth):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True
