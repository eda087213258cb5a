"""Owns the one table from errors to HTTP answers, in OpenAI's and in the native shape.

Owns no routes. Whatever is not in the table is a fault of ours: status 500, no details to the
client, the traceback to the log.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from mizzen_worker.contracts.errors import (
    InterruptedRequestError,
    OverloadedError,
    PromptTooLongError,
    RequestError,
    UnavailableError,
    UnknownModelError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorAnswer:
    """What a client is told; ``param`` names the field it is about."""

    status: int
    kind: str
    code: str | None
    message: str
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def openai_body(self) -> dict[str, Any]:
        """Give OpenAI's error object."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }

    def native_body(self) -> dict[str, Any]:
        """Give the error object of ``/generate``."""
        return {"error": {"message": self.message, "param": self.param, "status_code": self.status}}

    def body(self, path: str) -> dict[str, Any]:
        """Give the body in the shape of a route."""
        return self.native_body() if path.startswith("/generate") else self.openai_body()


_CLASS_TO_ANSWER: tuple[tuple[type[Exception], int, str, str | None], ...] = (
    (PromptTooLongError, 400, "invalid_request_error", "context_length_exceeded"),
    (UnknownModelError, 404, "invalid_request_error", "model_not_found"),
    (RequestError, 400, "invalid_request_error", "invalid_value"),
    (UnavailableError, 503, "service_unavailable_error", "unavailable"),
    (OverloadedError, 429, "rate_limit_error", "overloaded"),
    (InterruptedRequestError, 503, "server_error", "worker_lost"),
)


def answer_of(error: Exception) -> ErrorAnswer:
    """Look an error up."""
    for kind, status, name, code in _CLASS_TO_ANSWER:
        if isinstance(error, kind):
            retry_after_s = error.retry_after_s if isinstance(error, OverloadedError) else 1
            headers: dict[str, str] = {}
            if status in {429, 503}:
                headers["Retry-After"] = str(max(1, round(retry_after_s)))
            if status == 503:
                # Come back by a new connection: the Service may lead it to a pod that has a worker.
                headers["Connection"] = "close"
            return ErrorAnswer(
                status=status,
                kind=name,
                code=code,
                message=str(error),
                param=error.field if isinstance(error, RequestError) else None,
                headers=headers,
            )
    return ErrorAnswer(
        status=500,
        kind="server_error",
        code="internal_error",
        message="the server failed on this request; its log says why",
    )


def answer_of_status(status: int, *, method: str, path: str) -> ErrorAnswer:
    """Give the answer to a request that no route takes."""
    if status == 404:
        message = f"{path} is no route of this server; /v1/models lists what is served"
        return ErrorAnswer(
            status=404, kind="invalid_request_error", code="unknown_url", message=message
        )
    if status == 405:
        message = f"{path} does not take {method}"
        return ErrorAnswer(
            status=405, kind="invalid_request_error", code="method_not_allowed", message=message
        )
    return ErrorAnswer(
        status=status, kind="invalid_request_error", code=None, message=f"status {status}"
    )
