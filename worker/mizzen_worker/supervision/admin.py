"""Owns the admin port: probes, metrics, drain; owns no processes (``Supervisor`` does).

Never reachable through the public port. Plain ASGI: the launcher stays small and starts at once.
"""

import ipaddress
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Protocol
from urllib.parse import parse_qs

from mizzen_worker.contracts.drain import DRAIN_MODES, DrainMode
from mizzen_worker.contracts.operator_names import (
    PATH_DRAIN,
    PATH_LIVE,
    PATH_METRICS,
    PATH_READY,
    PATH_STARTUP,
)
from mizzen_worker.supervision.health import PodHealth

_MAX_DEADLINE_S = 86_400.0

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Message, Receive, Send], Awaitable[None]]


class Pod(Protocol):
    """What the admin port shows and can ask for."""

    def health(self) -> PodHealth:
        """Judge the pod now."""
        ...

    def metrics(self) -> str:
        """Give every process's metrics."""
        ...

    async def drain(self, mode: DrainMode, deadline_s: float) -> None:
        """Drain and return when it is over."""
        ...


def admin_app(pod: Pod, *, default_deadline_s: float) -> AsgiApp:
    """Make the application."""

    async def app(scope: Message, _receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        method, path = scope["method"], scope["path"]
        if path == PATH_DRAIN and not _is_local(scope):
            status, text = 403, "only this pod may drain itself; run mizzen drain inside it\n"
        elif path == PATH_DRAIN and method == "POST":
            status, text = await _drain(pod, scope["query_string"], default_deadline_s)
        elif path == PATH_DRAIN:
            status, text = 405, f"{PATH_DRAIN} takes POST only\n"
        elif method not in {"GET", "HEAD"}:
            status, text = 405, f"{path} takes GET only\n"
        elif path == PATH_METRICS:
            status, text = 200, pod.metrics()
        else:
            status, text = _probe(pod.health(), path)
        body = text.encode()
        headers = [
            (b"content-type", b"text/plain; charset=utf-8"),
            (b"content-length", str(len(body)).encode()),
        ]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if method == "HEAD" else body})

    return app


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
    if path not in path_to_reason:
        return 404, f"{path} is no route of the admin port\n"
    reason = path_to_reason[path]
    return (200, "ok\n") if reason is None else (503, f"{reason}\n")


async def _drain(pod: Pod, query: bytes, default_deadline_s: float) -> tuple[int, str]:
    given = parse_qs(query.decode("latin-1"))
    mode = given.get("mode", [DRAIN_MODES[0]])[-1]
    if mode not in DRAIN_MODES:
        return 400, f"mode is {mode!r}; it must be {' or '.join(DRAIN_MODES)}\n"
    text = given.get("deadline_s", [str(default_deadline_s)])[-1]
    try:
        deadline_s = float(text)
    except ValueError:
        deadline_s = -1.0
    if not 0 <= deadline_s <= _MAX_DEADLINE_S:
        return 400, f"deadline_s is {text!r}; it must be a number of seconds up to a day\n"
    await pod.drain(DrainMode(mode), deadline_s)
    return 200, "drained\n"
