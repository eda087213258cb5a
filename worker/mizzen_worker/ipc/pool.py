"""Owns the set of workers a tokenizer process knows: from names to connections; owns no requests.

A name that resolves to several addresses means all of them, asked again every few seconds. An
address that left the name keeps its connection until that is lost: a worker that drains leaves the
name first and still has streams to finish.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from mizzen_worker.contracts.messages import ToWorker
from mizzen_worker.ipc.connection import WorkerConnection

logger = logging.getLogger(__name__)

RESOLVE_INTERVAL_S = 2.0

Resolve = Callable[[str], Awaitable[Sequence[str]]]
"""From a configured address to the addresses it means; raises ``OSError``."""


async def resolve_by_dns(address: str) -> Sequence[str]:
    """Give every address a tcp:// name means; other schemes mean themselves."""
    parts = urlsplit(address)
    if parts.scheme != "tcp" or parts.hostname is None:
        return (address,)
    found = await asyncio.get_running_loop().getaddrinfo(
        parts.hostname, parts.port, type=socket.SOCK_STREAM
    )
    hosts = sorted({str(entry[4][0]) for entry in found})
    return tuple(
        f"tcp://[{host}]:{parts.port}" if ":" in host else f"tcp://{host}:{parts.port}"
        for host in hosts
    )


def plan_addresses(
    wanted: Iterable[str], connected: Iterable[tuple[str, bool]]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Decide which addresses to add and which to drop; ``connected`` are (address, is attached)."""
    wanted_set = set(wanted)
    known = dict(connected)
    add = tuple(sorted(wanted_set - known.keys()))
    drop = tuple(
        address
        for address, is_attached in known.items()
        if address not in wanted_set and not is_attached
    )
    return add, drop


@dataclass(slots=True, kw_only=True)
class ConnectionSet:
    """Connections by address; changed by the pool, sent through by the TokenizerManager."""

    by_address: dict[str, WorkerConnection] = field(default_factory=dict)

    def send(self, address: str, message: ToWorker) -> bool:
        """Queue a message for one worker; False when it cannot take it now."""
        connection = self.by_address.get(address)
        return connection is not None and connection.send(message)


@dataclass(slots=True, kw_only=True)
class WorkerPool:
    """Connections to every worker; ``run`` keeps them in step with the names."""

    names: Sequence[str]
    connect: Callable[[str], WorkerConnection]
    connections: ConnectionSet
    resolve: Resolve = resolve_by_dns
    interval_s: float = RESOLVE_INTERVAL_S
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    _unresolved: set[str] = field(default_factory=set)

    async def run(self) -> None:
        """Resolve and connect until cancelled; closes every connection then."""
        try:
            while True:
                await self.refresh()
                await asyncio.sleep(self.interval_s)
        finally:
            tasks = list(self._tasks.values())
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def refresh(self) -> None:
        """Resolve once and bring the connections in step."""
        wanted: list[str] = []
        is_complete = True
        for name in self.names:
            try:
                wanted.extend(await self.resolve(name))
                self._unresolved.discard(name)
            except OSError as error:
                is_complete = False
                if name not in self._unresolved:
                    self._unresolved.add(name)
                    logger.info("no address yet", extra={"worker": name, "reason": str(error)})
        add, drop = plan_addresses(
            wanted,
            [
                (address, known.is_attached)
                for address, known in self.connections.by_address.items()
            ],
        )
        for address in drop if is_complete else ():
            self._tasks.pop(address).cancel()
            del self.connections.by_address[address]
        for address in add:
            connection = self.connect(address)
            self.connections.by_address[address] = connection
            self._tasks[address] = asyncio.create_task(connection.run(), name=f"worker {address}")
