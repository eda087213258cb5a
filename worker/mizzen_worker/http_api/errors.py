"""Owns the one table from errors to HTTP answers, in the shape of each API; owns no routes.

Whatever is not in the table is a fault of ours: status 500, no details to the client, the traceback
to the log.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from mizzen_worker.contracts.admin_paths import (
    PATH_ABORT,
    PATH_FLUSH,
    PATH_GET_SERVER_INFO,
    PATH_SERVER_INFO,
)
from mizzen_worker.contracts.errors import (
    InterruptedRequestError,
    OverloadedError,
    PromptTooLongError,
    RequestError,
    UnavailableError,
    UnknownModelError,
)
from mizzen_worker.http_api.refusals import (
    AbortedError,
    AccessError,
    DeadlineError,
    MediaTypeError,
    SlowBodyError,
)


class Dialect(enum.Enum):
    """Whose shapes a route speaks."""

    OPENAI = "openai"
    ANTHROPIC = "anthropic"
    NATIVE = "native"


class OpenAiErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """What OpenAI's clients read."""

    message: str
    type: str
    param: str | None
    code: str | None


class OpenAiError(msgspec.Struct, frozen=True, kw_only=True):
    """OpenAI's error object."""

    error: OpenAiErrorDetail


class AnthropicErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """What Anthropic's clients read."""

    type: str
    message: str


class AnthropicError(msgspec.Struct, frozen=True, kw_only=True, tag="error"):
    """Anthropic's error object."""

    error: AnthropicErrorDetail


class NativeErrorDetail(msgspec.Struct, frozen=True, kw_only=True):
    """What native clients read."""

    message: str
    param: str | None
    status_code: int


class NativeError(msgspec.Struct, frozen=True, kw_only=True):
    """Error object of the native routes."""

    error: NativeErrorDetail


ErrorBody = OpenAiError | AnthropicError | NativeError


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorAnswer:
    """What a client is told; ``param`` names the field it is about."""

    status: int
    kind: str
    code: str | None
    message: str
    param: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self, dialect: Dialect) -> ErrorBody:
        """Give the body in the shape of an API."""
        match dialect:
            case Dialect.ANTHROPIC:
                kind = _STATUS_TO_ANTHROPIC.get(
                    self.status, "api_error" if self.status >= 500 else "invalid_request_error"
                )
                return AnthropicError(error=AnthropicErrorDetail(type=kind, message=self.message))
            case Dialect.NATIVE:
                return NativeError(
                    error=NativeErrorDetail(
                        message=self.message, param=self.param, status_code=self.status
                    )
                )
            case Dialect.OPENAI:
                return OpenAiError(
                    error=OpenAiErrorDetail(
                        message=self.message, type=self.kind, param=self.param, code=self.code
                    )
                )


_STATUS_TO_ANTHROPIC = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
}

_INVALID = "invalid_request_error"

_CLASS_TO_ANSWER: tuple[tuple[type[Exception], int, str, str | None], ...] = (
    (PromptTooLongError, 400, _INVALID, "context_length_exceeded"),
    (UnknownModelError, 404, _INVALID, "model_not_found"),
    (MediaTypeError, 415, _INVALID, "unsupported_media_type"),
    (SlowBodyError, 408, _INVALID, "body_too_slow"),
    (RequestError, 400, _INVALID, "invalid_value"),
    (AccessError, 401, "authentication_error", "invalid_api_key"),
    (AbortedError, 400, _INVALID, "request_aborted"),
    (DeadlineError, 504, "timeout_error", "deadline_exceeded"),
    (UnavailableError, 503, "service_unavailable_error", "unavailable"),
    (OverloadedError, 429, "rate_limit_error", "overloaded"),
    (InterruptedRequestError, 503, "server_error", "worker_lost"),
)


def answer_of(error: Exception) -> ErrorAnswer:
    """Look an error up."""
    for kind, status, name, code in _CLASS_TO_ANSWER:
        if isinstance(error, kind):
            return ErrorAnswer(
                status=status,
                kind=name,
                code=code,
                message=str(error),
                param=error.field if isinstance(error, RequestError) else None,
                headers=_headers(error, status),
            )
    return ErrorAnswer(
        status=500,
        kind="server_error",
        code="internal_error",
        message="the server failed on this request; its log says why",
    )


def _headers(error: Exception, status: int) -> dict[str, str]:
    headers: dict[str, str] = {}
    if status in {429, 503}:
        retry_after_s = error.retry_after_s if isinstance(error, OverloadedError) else 1
        headers["Retry-After"] = str(max(1, round(retry_after_s)))
    if status == 503:
        # Come back by a new connection: the Service may lead it to a pod that has a worker.
        headers["Connection"] = "close"
    if status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if status == 504:
        # The official clients would spend the same time again.
        headers["X-Should-Retry"] = "false"
    return headers


_ADMIN_PATHS = frozenset({PATH_ABORT, PATH_FLUSH, PATH_GET_SERVER_INFO, PATH_SERVER_INFO})


def answer_of_status(status: int, *, method: str, path: str) -> ErrorAnswer:
    """Give the answer to a request that no route takes."""
    code: str | None = None
    message = f"status {status}"
    if status == 404:
        remedy = "/openapi.json lists what is served"
        if path in _ADMIN_PATHS:
            remedy = "start it with --admin-key-file, or use its admin port"
        code, message = "unknown_url", f"{path} is no route of this server; {remedy}"
    if status == 405:
        code, message = "method_not_allowed", f"{path} does not take {method}"
    return ErrorAnswer(status=status, kind=_INVALID, code=code, message=message)


def too_large(max_body_bytes: int) -> ErrorAnswer:
    """Give the answer to a body beyond the limit."""
    return ErrorAnswer(
        status=413,
        kind=_INVALID,
        code="body_too_large",
        message=f"the body exceeds {max_body_bytes} bytes; send less",
    )


def dialect_of(path: str, header_names: frozenset[bytes]) -> Dialect:
    """Tell whose shapes an answer has to this path and these headers."""
    if path == "/v1/messages" or path.startswith("/v1/messages/"):
        return Dialect.ANTHROPIC
    if path.startswith("/v1/"):
        is_anthropic = path.startswith("/v1/models") and b"anthropic-version" in header_names
        return Dialect.ANTHROPIC if is_anthropic else Dialect.OPENAI
    return Dialect.NATIVE
