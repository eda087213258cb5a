"""Owns the OpenAPI document, made of the table of routes; owns no routes but its own.

Bodies are described by the models that check them, answers by the structs that are sent.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import Response

from mizzen_worker.http_api.access import Gate
from mizzen_worker.http_api.body import json_response
from mizzen_worker.http_api.endpoint import Endpoint
from mizzen_worker.http_api.engine import FrontEngine
from mizzen_worker.http_api.errors import (
    AnthropicError,
    Dialect,
    NativeError,
    OpenAiError,
    dialect_of,
)

PATH = "/openapi.json"
_REFERENCE = "#/components/schemas/{name}"
_DIALECT_TO_ERROR = {
    Dialect.OPENAI: OpenAiError,
    Dialect.ANTHROPIC: AnthropicError,
    Dialect.NATIVE: NativeError,
}
_STATUS_TO_MEANING = {
    400: "The request is wrong; the message says which field, and what to do.",
    401: "No key, or one that does not open this route.",
    404: "No such model.",
    408: "The body did not arrive in time.",
    413: "The body is too long.",
    415: "The body says it is no JSON.",
    429: "Too much work; come again after Retry-After seconds.",
    500: "A fault of the server; its log says more.",
    503: "Nobody can answer now; come again after Retry-After seconds.",
    504: "The time the client gave was up.",
}
_OF_BODIES = (400, 408, 413, 415)
_OF_GENERATION = (429, 503, 504)


def document_endpoint(engine: FrontEngine, endpoints: Sequence[Endpoint]) -> Endpoint:
    """Make the route of the document about these and itself."""

    async def document(_request: Request) -> Response:
        return json_response(body)

    own = Endpoint(
        path=PATH,
        handler=document,
        summary="Give this document",
        methods=("GET", "HEAD"),
        answers=(dict[str, Any],),
    )
    body = openapi_document([*endpoints, own], has_api_keys=bool(engine.keys.api))
    return own


def openapi_document(endpoints: Sequence[Endpoint], *, has_api_keys: bool) -> dict[str, Any]:
    """Make the document."""
    bodies = sorted({one.body for one in endpoints if one.body is not None}, key=_name)
    references, definitions = models_json_schema(
        [(body, "validation") for body in bodies],
        ref_template=_REFERENCE.replace("{name}", "{model}"),
    )
    kinds = [kind for one in endpoints for kind in (*one.answers, one.chunk) if kind is not None]
    kinds.extend(_DIALECT_TO_ERROR.values())
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
    found = _Schemas({id(kind): schema for kind, schema in zip(kinds, schemas, strict=True)})
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        path = endpoint.path.replace(":path}", "}")
        operations = paths.setdefault(path, {})
        for method in endpoint.methods:
            operation = _operation(endpoint, path, method)
            is_locked = endpoint.gate is Gate.ADMIN or (endpoint.gate is Gate.API and has_api_keys)
            operation["responses"] = {
                status: response if method != "HEAD" else {"description": response["description"]}
                for status, response in _responses(endpoint, found, is_locked=is_locked).items()
            }
            if endpoint.body is not None:
                schema = references[endpoint.body, "validation"]
                content = {"application/json": {"schema": schema}}
                operation["requestBody"] = {"required": True, "content": content}
            if is_locked:
                operation["security"] = [{"key": []}]
            operations[method.lower()] = operation
    return {
        "openapi": "3.1.0",
        "info": {"title": "Mizzen", "version": "1"},
        "paths": paths,
        "components": {
            "schemas": {**definitions.get("$defs", {}), **components},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


class _Schemas:
    """Schemas of types, by identity: unions are not hashable by meaning."""

    def __init__(self, by_id: dict[int, dict[str, Any]]) -> None:
        self._by_id = by_id

    def any_of(self, kinds: Sequence[Any]) -> dict[str, Any]:
        """Give the schema of a value that is one of these."""
        schemas = [self._by_id[id(kind)] for kind in kinds]
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _name(body: type[Any]) -> str:
    return body.__name__


def _operation(endpoint: Endpoint, path: str, method: str) -> dict[str, Any]:
    name = path.strip("/").replace("/", "_").replace("{", "").replace("}", "")
    operation: dict[str, Any] = {
        "operationId": f"{method.lower()}_{name}",
        "summary": endpoint.summary,
    }
    if "{name}" in path:
        schema = {"type": "string", "minLength": 1}
        parameter = {"name": "name", "in": "path", "required": True, "schema": schema}
        operation["parameters"] = [parameter]
    return operation


def _responses(endpoint: Endpoint, found: _Schemas, *, is_locked: bool) -> dict[str, Any]:
    content: dict[str, Any] = {"text/plain": {"schema": {"type": "string"}}}
    if endpoint.answers:
        content = {"application/json": {"schema": found.any_of(endpoint.answers)}}
    if endpoint.chunk is not None:
        schema = {"type": "string", "description": "Events; x-event tells the data of each."}
        content["text/event-stream"] = {"schema": schema, "x-event": found.any_of([endpoint.chunk])}
    responses: dict[str, Any] = {"200": {"description": "Done.", "content": content}}
    for status in _statuses(endpoint, is_locked=is_locked):
        is_own = status == 503 and status in endpoint.errors
        kinds = _errors_of(endpoint)
        error_content: dict[str, Any] = {
            "application/json": {
                "schema": found.any_of((*endpoint.answers, *kinds) if is_own else kinds)
            }
        }
        if is_own and not endpoint.answers:
            error_content.update(content)
        responses[str(status)] = {
            "description": _STATUS_TO_MEANING[status],
            "content": error_content,
        }
    return responses


def _errors_of(endpoint: Endpoint) -> tuple[Any, ...]:
    if endpoint.path.startswith("/v1/models"):
        return (OpenAiError, AnthropicError)
    return (_DIALECT_TO_ERROR[dialect_of(endpoint.path, frozenset())],)


def _statuses(endpoint: Endpoint, *, is_locked: bool) -> list[int]:
    statuses = {500, *endpoint.errors}
    if endpoint.body is not None:
        statuses.update(_OF_BODIES)
    if endpoint.chunk is not None:
        statuses.update(_OF_GENERATION)
    if is_locked:
        statuses.add(401)
    return sorted(statuses)
