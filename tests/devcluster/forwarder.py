"""Owns the way from 127.0.0.1 into the cell: listening sockets outside, connections made inside.

A socket stays in the network namespace it was made in. So the listeners belong to the keeper's
namespace, and a few threads that moved into the cell make the sockets that connect there; data is
then copied by the keeper's event loop. Nothing can go the other way.
"""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from tests.devcluster.api import ApiClient
from tests.devcluster.namespaces import enter_network

logger = logging.getLogger(__name__)

_CHUNK_BYTES = 65536
_CONNECT_TIMEOUT_S = 5.0

Address = tuple[str, int]


class ForwardError(RuntimeError):
    """A Service cannot be forwarded to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePort:
    """A port of a Service, by number or name."""

    namespace: str
    service: str
    port: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.service}:{self.port}"


def resolve(api: ApiClient, target: ServicePort) -> Address:
    """Ask the API server where a Service's port is now; raises ForwardError or ApiError."""
    path = f"/api/v1/namespaces/{target.namespace}/services/{target.service}"
    spec = api.call("GET", path)["spec"]
    address = spec.get("clusterIP", "None")
    if address == "None":
        raise ForwardError(f"{target} is headless: forward to a Service with a cluster IP")
    for port in spec.get("ports", ()):
        if target.port in (str(port["port"]), port.get("name")):
            return address, port["port"]
    offered = ", ".join(str(port["port"]) for port in spec.get("ports", ()))
    raise ForwardError(f"{target} does not exist: the Service has {offered}")


class Forwarder:
    """Every forward of one cell."""

    def __init__(self, cell_pid: int) -> None:
        self._inside = ThreadPoolExecutor(
            max_workers=4,
            thread_name_prefix="inside",
            initializer=enter_network,
            initargs=(cell_pid,),
        )
        self._servers: list[asyncio.Server] = []

    async def inside(self, call: Callable[[], Address]) -> Address:
        """Run a call in the cell's network."""
        return await asyncio.get_running_loop().run_in_executor(self._inside, call)

    async def open(self, listener: socket.socket, find: Callable[[], Address]) -> None:
        """Serve a listening socket; each connection goes where find, run inside, says."""

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._serve(reader, writer, find)

        self._servers.append(await asyncio.start_server(serve, sock=listener))

    async def _serve(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        find: Callable[[], Address],
    ) -> None:
        try:
            loop = asyncio.get_running_loop()
            connected = await loop.run_in_executor(self._inside, lambda: _connect(find()))
            far_reader, far_writer = await asyncio.open_connection(sock=connected)
        except (OSError, RuntimeError) as error:
            logger.warning("no connection into the cell: %s", error)
            writer.transport.abort()
            return
        await asyncio.gather(
            _copy(reader, far_writer, writer), _copy(far_reader, writer, far_writer)
        )
        for end in (writer, far_writer):
            end.close()


def _connect(address: Address) -> socket.socket:
    connected = socket.create_connection(address, timeout=_CONNECT_TIMEOUT_S)
    connected.settimeout(0)
    connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connected


async def _copy(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, back: asyncio.StreamWriter
) -> None:
    """Copy until the end, pass the end on; a broken side breaks the other one too."""
    try:
        while data := await reader.read(_CHUNK_BYTES):
            writer.write(data)
            await writer.drain()
        writer.write_eof()
    except OSError:
        for end in (writer, back):
            with contextlib.suppress(OSError):
                end.transport.abort()


def listen(port: int) -> socket.socket:
    """Return a listening socket on 127.0.0.1; port 0 takes a free one."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        listener.close()
        raise ForwardError(f"port {port} of 127.0.0.1: {error.strerror}: take another") from error
    listener.listen(128)
    return listener
