"""Owns a front process's way to its launcher's admin routes: HTTP over the private unix socket.

What it asks reaches every process of the pod. Owns no route and no answer's meaning.
"""

import asyncio
import http.client
import socket
from dataclasses import dataclass

import msgspec

from mizzen_worker.contracts.admin_paths import PATH_ABORT, PATH_SERVER_INFO
from mizzen_worker.contracts.errors import UnavailableError
from mizzen_worker.contracts.operator_names import PATH_METRICS

_LIMIT_S = 15.0


class _Aborted(msgspec.Struct, frozen=True):
    num_aborted: int
    unanswered: tuple[str, ...]


class _Info(msgspec.Struct, frozen=True):
    live_requests: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherClient:
    """Each call raises ``UnavailableError`` when the launcher or another front does not answer."""

    path: str

    async def abort(self, rid: str | None) -> int:
        """End the live requests of a name, or all, in every front process; give how many ended."""
        wanted = {"abort_all": True} if rid is None else {"rid": rid}
        _, text = await self._call("POST", PATH_ABORT, msgspec.json.encode(wanted))
        facts = msgspec.json.decode(text, type=_Aborted)
        if facts.unanswered:
            msg = (
                f"{facts.num_aborted} requests ended, but {', '.join(facts.unanswered)} did not "
                "answer; ask again"
            )
            raise UnavailableError(msg)
        return facts.num_aborted

    async def num_live(self) -> int:
        """Count the live requests of all front processes."""
        _, text = await self._call("GET", PATH_SERVER_INFO)
        return msgspec.json.decode(text, type=_Info).live_requests

    async def metrics(self) -> str:
        """Give the metrics of all front processes, Prometheus text."""
        _, text = await self._call("GET", f"{PATH_METRICS}?process=front")
        return text.decode()

    async def _call(self, method: str, path: str, body: bytes = b"") -> tuple[int, bytes]:
        return await asyncio.to_thread(self._exchange, method, path, body)

    def _exchange(self, method: str, path: str, body: bytes) -> tuple[int, bytes]:
        connection = _UnixConnection(self.path)
        try:
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.read()
        except (OSError, http.client.HTTPException) as error:
            msg = f"the launcher does not answer: {error}"
            raise UnavailableError(msg) from error
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
