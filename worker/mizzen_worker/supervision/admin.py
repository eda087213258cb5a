"""Owns the admin routes: probes, metrics, drain, control; owns no processes (``Supervisor`` does).

Served on the launcher's own port, where only this machine may change anything, and on a socket in
its private folder for its own front processes. Plain ASGI: the launcher starts at once.
"""

import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol
from urllib.parse import parse_qs

import msgspec

from mizzen_worker.contracts.admin_paths import PATH_ABORT, PATH_FLUSH, PATH_SERVER_INFO
from mizzen_worker.contracts.drain import DRAIN_MODES, DrainMode
from mizzen_worker.contracts.operator_names import (
    PATH_DRAIN,
    PATH_LIVE,
    PATH_METRICS,
    PATH_READY,
    PATH_STARTUP,
)
from mizzen_worker.supervision.health import PodHealth
from mizzen_worker.supervision.pod_control import Answer, PodControl

_MAX_DEADLINE_S = 86_400.0
_SETTLE_S = 5.0
"""So long every node's proxy may still lead clients to a pod whose end was announced."""
_MAX_BODY_BYTES = 64 * 1024
_POST_PATHS = frozenset({PATH_DRAIN, PATH_ABORT, PATH_FLUSH})
_GET_PATHS = frozenset({PATH_LIVE, PATH_READY, PATH_STARTUP, PATH_METRICS, PATH_SERVER_INFO})
_PATHS = _POST_PATHS | _GET_PATHS
_LIST = ", ".join(sorted(_PATHS))
_TEXT, _JSON = b"text/plain; charset=utf-8", b"application/json"

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Message, Receive, Send], Awaitable[None]]


class Pod(Protocol):
    """What the admin port shows and can ask for."""

    def health(self) -> PodHealth:
        """Judge the pod now."""
        ...

    def metrics(self, process: str | None) -> str:
        """Give every process's metrics, or those of one kind of process."""
        ...

    async def drain(self, mode: DrainMode, deadline_s: float, *, settle_s: float = 0.0) -> None:
        """Drain and return when it is over; clients who still come are served for ``settle_s``."""
        ...


class AbortBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Body of an abort, as on the public port: exactly one of the two."""

    rid: str = ""
    abort_all: bool = False


def admin_app(
    pod: Pod,
    control: PodControl,
    *,
    default_mode: DrainMode,
    default_deadline_s: float,
    is_private: bool = False,
) -> AsgiApp:
    """Make the application; ``is_private`` where only this user can connect at all."""

    async def app(scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        method, path = scope["method"], scope["path"]
        content_type = _TEXT
        if path in _POST_PATHS and not (is_private or _is_local(scope)):
            status, text = 403, _FOREIGN
        elif path in _POST_PATHS and method != "POST":
            status, text = 405, f"{path} takes POST only\n"
        elif path == PATH_DRAIN:
            status, text = await _drain(
                pod, scope["query_string"], default_mode, default_deadline_s
            )
        elif path not in _PATHS:
            status, text = 404, f"{path} is no route of the admin port; it has {_LIST}\n"
        elif path not in _POST_PATHS and method not in {"GET", "HEAD"}:
            status, text = 405, f"{path} takes GET only\n"
        elif path in {PATH_ABORT, PATH_FLUSH, PATH_SERVER_INFO}:
            answer = await _control(control, path, receive)
            status, text, content_type = answer.status, _json(answer.told), _JSON
        elif path == PATH_METRICS:
            given = parse_qs(scope["query_string"].decode("latin-1"))
            status, text = 200, pod.metrics(given.get("process", [None])[-1])
        else:
            status, text = _probe(pod.health(), path)
        body = text.encode()
        headers = [
            (b"content-type", content_type),
            (b"content-length", str(len(body)).encode()),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if method == "HEAD" else body})

    return app


_ABORT_BODY = 'the body must be {"rid": "..."} or {"abort_all": true}'
_FOREIGN = (
    "only this pod may drain itself or be told what to end; run mizzen drain inside it, or call"
    " from this machine\n"
)


async def _control(control: PodControl, path: str, receive: Receive) -> Answer:
    if path == PATH_FLUSH:
        return await control.flush_cache()
    if path == PATH_SERVER_INFO:
        return await control.describe()
    try:
        body = msgspec.json.decode(await _read(receive), type=AbortBody)
    except msgspec.DecodeError as error:
        return Answer(status=400, told={"error": f"{_ABORT_BODY}: {error}"})
    if bool(body.rid) == body.abort_all:
        return Answer(status=400, told={"error": _ABORT_BODY})
    return await control.abort(None if body.abort_all else body.rid)


async def _read(receive: Receive) -> bytes:
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if not message.get("more_body", False) or len(body) > _MAX_BODY_BYTES:
            return bytes(body)


def _json(told: object) -> str:
    return msgspec.json.encode(told).decode() + "\n"


def _is_local(scope: Message) -> bool:
    """Tell whether the caller is in this pod or on this machine: nobody else may end our work."""
    client = scope.get("client")
    return client is not None and ipaddress.ip_address(client[0]).is_loopback


def _probe(health: PodHealth, path: str) -> tuple[int, str]:
    path_to_reason = {
        PATH_LIVE: health.why_not_live,
        PATH_READY: health.why_not_ready,
        PATH_STARTUP: health.why_not_started,
    }
    reason = path_to_reason[path]
    return (200, "ok\n") if reason is None else (503, f"{reason}\n")


async def _drain(
    pod: Pod, query: bytes, default_mode: DrainMode, default_deadline_s: float
) -> tuple[int, str]:
    given = parse_qs(query.decode("latin-1"))
    mode = given.get("mode", [default_mode.value])[-1]
    if mode not in DRAIN_MODES:
        return 400, f"mode is {mode!r}; it must be {' or '.join(DRAIN_MODES)}\n"
    text = given.get("deadline_s", [str(default_deadline_s)])[-1]
    try:
        deadline_s = float(text)
    except ValueError:
        deadline_s = -1.0
    if not 0 <= deadline_s <= _MAX_DEADLINE_S:
        return 400, f"deadline_s is {text!r}; it must be a number of seconds up to a day\n"
    await pod.drain(DrainMode(mode), deadline_s, settle_s=_SETTLE_S)
    return 200, "drained\n"
