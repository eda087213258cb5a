"""Owns a front process's way to its launcher's admin routes: HTTP over the private unix socket.

What it asks reaches every process of the pod. Owns no route and no answer's meaning.
"""

import asyncio
import http.client
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from mizzen_worker.contracts.admin_paths import PATH_ABORT, PATH_FLUSH, PATH_SERVER_INFO
from mizzen_worker.contracts.errors import UnavailableError
from mizzen_worker.contracts.operator_names import PATH_METRICS

_LIMIT_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherAnswer:
    """What the launcher said; ``facts`` are as on the admin port."""

    status: int
    facts: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherClient:
    """Each call raises ``UnavailableError`` when the launcher does not answer."""

    path: str

    async def abort(self, request_id: str) -> LauncherAnswer:
        """End the live requests of an id in every front process."""
        body = msgspec.json.encode({"request_id": request_id})
        return await self._facts("POST", PATH_ABORT, body)

    async def flush_cache(self) -> LauncherAnswer:
        """Empty the prefix cache of every worker."""
        return await self._facts("POST", PATH_FLUSH)

    async def server_info(self) -> LauncherAnswer:
        """Tell what every process says of itself."""
        return await self._facts("GET", PATH_SERVER_INFO)

    async def metrics(self) -> str:
        """Give the metrics of all processes, Prometheus text."""
        _, text = await asyncio.to_thread(self._call, "GET", PATH_METRICS, b"")
        return text.decode()

    async def _facts(self, method: str, path: str, body: bytes = b"") -> LauncherAnswer:
        status, text = await asyncio.to_thread(self._call, method, path, body)
        return LauncherAnswer(status=status, facts=msgspec.json.decode(text, type=dict[str, Any]))

    def _call(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        connection = _UnixConnection(self.path)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            msg = f"the launcher does not answer: {error}"
            raise UnavailableError(msg, retry_after_s=1) from error
        finally:
            connection.close()


class _UnixConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("launcher", timeout=_LIMIT_S)
        self._path = path

    def connect(self) -> None:
        """Connect by path."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(_LIMIT_S)
        self.sock.connect(self._path)
