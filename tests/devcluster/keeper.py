"""Owns one cell from outside: starts it, forwards into it, cleans up after it.

One small process per cell, outside its namespaces. It ends the cell when it is asked to, when the
process that started it is gone (unless told to stay), or when the cell failed. If the keeper itself
is killed, the kernel kills the cell, and the next start (or `down`) sweeps what is left.
Not here: anything inside the cell (cell.py), what callers see (cluster.py).

Invariant: the cell's lock is held from before the first change to the machine until the last trace
of the cell is gone.
"""

import asyncio
import contextlib
import json
import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tests.devcluster import cgroups, control, forwarder
from tests.devcluster.api import ApiClient, admin_context
from tests.devcluster.component_files import kubeconfig
from tests.devcluster.components import Programs
from tests.devcluster.config import API_PORT, GATEWAY, ClusterConfig, plan_nodes
from tests.devcluster.folders import REPOSITORY, CellFolder, Folders, Lock, user_folders
from tests.devcluster.forwarder import Forwarder, ServicePort
from tests.devcluster.namespaces import die_with_parent, peer_pid
from tests.devcluster.pki import make_pki
from tests.devcluster.plan import CellPlan
from tests.devcluster.progress import Reporter, parse
from tests.devcluster.stores import take_stores

logger = logging.getLogger(__name__)

BUSY = 75


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a keeper is told on its command line; starter 0 means that the cell stays."""

    config: ClusterConfig
    programs: Path
    pause_archive: Path
    starter: int

    def encode(self) -> str:
        document = {**asdict(self), "programs": str(self.programs)}
        return json.dumps({**document, "pause_archive": str(self.pause_archive)})


def decode_order(text: str) -> Order:
    """Read an order back."""
    document = json.loads(text)
    config = document["config"]
    return Order(
        config=ClusterConfig(
            **{**config, "zones": tuple(config["zones"]), "racks": tuple(config["racks"])}
        ),
        programs=Path(document["programs"]),
        pause_archive=Path(document["pause_archive"]),
        starter=document["starter"],
    )


class Keeper:
    """The process around one cell."""

    def __init__(self, order: Order, folders: Folders, reporter: Reporter) -> None:
        self._order = order
        self._folders = folders
        self._folder = folders.cell(order.config.name)
        self._reporter = reporter
        self._stopped = asyncio.Event()
        self._forwarder: Forwarder | None = None
        self._control: asyncio.Server | None = None
        self._forwards: dict[str, int] = {}

    async def run(self) -> None:
        """Keep the cell until there is a reason to end it, then leave nothing behind."""
        self._watch_for_reasons()
        config, nodes = self._order.config, plan_nodes(self._order.config)
        with contextlib.ExitStack() as cleanup:
            clean(self._folder)
            self._folder.logs.mkdir(parents=True)
            logging.basicConfig(
                filename=self._folder.logs / "keeper.log",
                level=logging.INFO,
                format="%(asctime)s %(message)s",
            )
            stores = take_stores(self._folders.stores, len(nodes))
            plan = CellPlan(
                name=config.name,
                folder=self._folder,
                programs=Programs(folder=self._order.programs),
                nodes=nodes,
                stores=tuple(store.path for store in stores),
                pause_archive=self._order.pause_archive,
                node_grace_seconds=config.node_grace_seconds,
            )
            with self._reporter.step("certificates"):
                make_pki(self._folder.pki, nodes)
            plan.write(self._folder.plan)
            cleanup.callback(tidy, self._folder)
            cgroups.create(self._folder.key, [node.name for node in nodes])
            await self._keep(forwarder.listen(config.api_port), cleanup)

    def _watch_for_reasons(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stopped.set)
        if self._order.starter:
            loop.add_reader(os.pidfd_open(self._order.starter), self._stopped.set)
            if os.getppid() != self._order.starter:
                self._stopped.set()

    async def _keep(self, api_listener: socket.socket, cleanup: contextlib.ExitStack) -> None:
        read_end, write_end = os.pipe()
        process = self._spawn(write_end)
        os.close(write_end)
        cleanup.callback(end, process)
        news = asyncio.create_task(self._relay(read_end, api_listener))
        stop = asyncio.create_task(self._stopped.wait())
        await asyncio.wait((news, stop), return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        if news.done():
            news.result()
        else:
            news.cancel()

    def _spawn(self, progress: int) -> subprocess.Popen[bytes]:
        group = cgroups.group(self._folder.key, "cell")

        def prepare() -> None:
            die_with_parent()
            cgroups.enter(group)

        with (self._folder.logs / "cell.log").open("ab") as log:
            return subprocess.Popen(
                [
                    *("unshare", "--net", "--mount", "--pid", "--ipc", "--uts", "--fork"),
                    "--kill-child=SIGKILL",
                    *(sys.executable, "-m", "tests.devcluster.cell"),
                    *(str(self._folder.plan), str(progress)),
                ],
                cwd=REPOSITORY,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(progress,),
                preexec_fn=prepare,  # noqa: PLW1509 - no other thread runs yet
                start_new_session=True,
            )

    async def _relay(self, descriptor: int, api_listener: socket.socket) -> None:
        """Pass the cell's progress on until the cell is gone; open the way in when it is ready."""
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(descriptor, "rb")
        )
        while line := await reader.readline():
            event = parse(line.decode())
            if event.kind == "ready":
                await self._open(api_listener)
            self._reporter.say(event.kind, event.text, event.seconds)
        if not self._folder.failure.exists():
            text = f"the cell ended without a word: see {self._folder.logs}"
            self._folder.failure.write_text(
                json.dumps({"reason": text, "logs": str(self._folder.logs)})
            )
            self._reporter.say("failed", text)

    async def _open(self, api_listener: socket.socket) -> None:
        api_port: int = api_listener.getsockname()[1]
        with control.connect(self._folder.cell_socket) as connection:
            cell_pid = peer_pid(connection)
        self._forwarder = Forwarder(cell_pid)
        await self._forwarder.open(api_listener, lambda: (GATEWAY, API_PORT))
        self._control = await asyncio.start_unix_server(
            self._answer_next, sock=control.listen(self._folder.keeper_socket)
        )
        self._write_kubeconfig(api_port)
        record: dict[str, Any] = {"pid": os.getpid(), "cell_pid": cell_pid, "api_port": api_port}
        record |= {"nodes": self._order.config.nodes, "repository": str(REPOSITORY)}
        self._folder.record.write_text(json.dumps(record))

    def _write_kubeconfig(self, api_port: int) -> None:
        pki = self._folder.pki
        self._folder.kubeconfig.touch(mode=0o600)
        self._folder.kubeconfig.write_text(
            kubeconfig(
                server=f"https://127.0.0.1:{api_port}",
                ca=(pki / "ca.crt").read_bytes(),
                certificate=(pki / "admin.crt").read_bytes(),
                key=(pki / "admin.key").read_bytes(),
                cluster=f"mizzen-{self._order.config.name}",
            )
        )

    async def _answer_next(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        try:
            result = await self._answer(json.loads(await reader.readline() or b"{}"))
            writer.write(control.encode_answer(result=result))
        except (OSError, ValueError, RuntimeError) as error:
            writer.write(control.encode_answer(error=str(error)))
        writer.close()

    async def _answer(self, question: dict[str, Any]) -> object:
        if question.get("verb") == "stop":
            self._stopped.set()
            return None
        if question.get("verb") == "forward":
            target = ServicePort(
                namespace=question["namespace"],
                service=question["service"],
                port=str(question["port"]),
            )
            return await self._forward(target, question["local_port"])
        raise control.ControlError(f"the keeper knows no {question.get('verb')!r}")

    async def _forward(self, target: ServicePort, local_port: int) -> int:
        """Open a forward, or return the one there is; the Service must exist."""
        if str(target) in self._forwards:
            return self._forwards[str(target)]
        assert self._forwarder is not None
        api = ApiClient(address=GATEWAY, port=API_PORT, context=admin_context(self._folder.pki))

        def find() -> forwarder.Address:
            return forwarder.resolve(api, target)

        await self._forwarder.inside(find)
        listener = forwarder.listen(local_port)
        await self._forwarder.open(listener, find)
        self._forwards[str(target)] = listener.getsockname()[1]
        return self._forwards[str(target)]


def end(process: subprocess.Popen[bytes]) -> None:
    """Kill a cell; the kernel takes all that was in it."""
    process.kill()
    process.wait()


def clean(folder: CellFolder) -> None:
    """Remove every trace of an earlier cell of this name; the caller holds the lock."""
    cgroups.sweep(folder.key)
    if folder.path.exists():
        shutil.rmtree(folder.path)


def tidy(folder: CellFolder) -> None:
    """Remove every trace of the cell but its logs and the reason of its end."""
    cgroups.sweep(folder.key)
    keep = {folder.logs, folder.failure}
    for path in folder.path.iterdir():
        if path not in keep:
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _take_lock(folder: CellFolder) -> Lock | None:
    """Take the cell's lock; whoever only looks whether it is held lets it go at once."""
    for _ in range(10):
        lock = Lock.try_take(folder.lock, note=str(os.getpid()))
        if lock is not None:
            return lock
        time.sleep(0.05)
    return None


def main(arguments: list[str]) -> int:
    """Keep one cell: ORDER on the command line, progress on standard output."""
    order = decode_order(arguments[0])
    folders = user_folders()
    lock = _take_lock(folders.cell(order.config.name))
    if lock is None:
        return BUSY
    progress = os.dup(1)
    os.dup2(2, 1)
    reporter = Reporter(progress)
    try:
        asyncio.run(Keeper(order, folders, reporter).run())
    except (OSError, RuntimeError, subprocess.SubprocessError) as error:
        logger.exception("the keeper failed")
        reporter.say("failed", str(error))
        return 1
    lock.release()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
