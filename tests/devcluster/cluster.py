"""Owns what a program outside sees of a local cluster: start it, use it, stop it.

A handle only: the cluster is held by its keeper (keeper.py). Not here: what is printed (cli.py),
test fixtures (fixtures.py).

    with Cluster.start(ClusterConfig(name="mine", nodes=2)) as cluster:
        cluster.import_image(Path("worker.oci.tar"))
        cluster.kubectl("apply", "-f", "-", stdin=manifest)
        port = cluster.forward("default", "my-service", 80)
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.devcluster import control, fake_nodes, keeper
from tests.devcluster.api import ApiClient, admin_context
from tests.devcluster.archive import Archive, write_image
from tests.devcluster.binaries import cluster_programs, kwok_program
from tests.devcluster.component_files import PAUSE_IMAGE
from tests.devcluster.config import ClusterConfig
from tests.devcluster.folders import REPOSITORY, CellFolder, Folders, Lock, user_folders
from tests.devcluster.image_import import import_archive
from tests.devcluster.node import runtime_socket
from tests.devcluster.plan import read_plan
from tests.devcluster.progress import Event, parse
from tests.devcluster.requirements import check_machine

Show = Callable[[float, str], None]
_STOP_TIMEOUT_S = 30.0


class ClusterError(RuntimeError):
    """A cluster could not be started, found or used; the message says why."""


class ClusterBusyError(ClusterError):
    """A cluster of this name runs already."""


class KubectlError(ClusterError):
    """kubectl failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditEvent:
    """One write that the API server saw."""

    user: str
    user_agent: str
    verb: str
    resource: str
    namespace: str
    name: str
    status: int


def _silent_build(_fraction: float, _text: str) -> None:
    """Show nothing."""


def _silent_event(_event: Event) -> None:
    """Show nothing."""


class Cluster:
    """A running local cluster."""

    def __init__(
        self, name: str, folders: Folders, programs: Path, *, our_child: int | None = None
    ) -> None:
        self.name = name
        self._our_child = our_child
        self._folders = folders
        self._folder = folders.cell(name)
        self._programs = programs
        record = json.loads(self._folder.record.read_text())
        self.keeper_pid: int = record["pid"]
        self.pid: int = record["cell_pid"]
        self.api_port: int = record["api_port"]
        self.node_names = tuple(f"node{index}" for index in range(record["nodes"]))

    @classmethod
    def start(
        cls,
        config: ClusterConfig,
        *,
        stay: bool = False,
        show_build: Show = _silent_build,
        show_event: Callable[[Event], None] = _silent_event,
    ) -> Self:
        """Start a cluster and return when its nodes are Ready.

        It ends with this process unless it is to stay. Raises ClusterBusyError when one of this
        name runs, ClusterError when it does not come up.
        """
        folders = user_folders()
        check_machine(folders)
        programs = cluster_programs(folders, show_build)
        pause = programs / "pause.tar"
        if not pause.exists():
            content = (programs / "pause").read_bytes()
            aside = programs / f"pause.tar.{os.getpid()}"
            write_image(aside, name=PAUSE_IMAGE, files={"pause": content}, entrypoint=("/pause",))
            aside.rename(pause)
        order = keeper.Order(
            config=config,
            programs=programs,
            pause_archive=pause,
            starter=0 if stay else os.getpid(),
        )
        child = _run_keeper(order, folders.cell(config.name), show_event)
        return cls(config.name, folders, programs, our_child=child)

    @classmethod
    def attach(cls, name: str) -> Self:
        """Return the running cluster of this name; raises ClusterError when there is none."""
        folders = user_folders()
        if not is_running(folders.cell(name)):
            raise ClusterError(
                f"no cluster {name!r} runs: start one with "
                f"`python -m tests.devcluster up --name {name}`"
            )
        return cls(name, folders, cluster_programs(folders, _silent_build))

    def stop(self) -> None:
        """End the cluster and return when no trace of it is left."""
        stop_cell(self._folder)
        if self._our_child is not None:
            os.waitpid(self._our_child, 0)
            self._our_child = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    @property
    def kubeconfig(self) -> Path:
        """For programs outside the cell, through 127.0.0.1, with real certificates."""
        return self._folder.kubeconfig

    @property
    def logs(self) -> Path:
        """The folder with the log of every component."""
        return self._folder.logs

    @property
    def api(self) -> ApiClient:
        """A plain client with the administrator's rights."""
        context = admin_context(self._folder.pki)
        return ApiClient(address="127.0.0.1", port=self.api_port, context=context)

    def kubectl_command(self, *arguments: str) -> list[str]:
        """Return the command line of the cluster's own kubectl, for use from outside."""
        return [str(self._programs / "kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments]

    def kubectl(self, *arguments: str, stdin: str = "", timeout_s: float = 120.0) -> str:
        """Run kubectl and return what it printed; raises KubectlError with its message."""
        done = subprocess.run(
            self.kubectl_command(*arguments),
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=timeout_s,
        )
        if done.returncode != 0:
            raise KubectlError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    def inside_command(self, *command: str) -> list[str]:
        """Return a command line that runs a program of the machine inside the cell."""
        return ["nsenter", f"--target={self.pid}", *("-m", "-n", "-p", "-i", "-u"), *command]

    def forward(self, namespace: str, service: str, port: int | str, local_port: int = 0) -> int:
        """Make a Service reachable and return its port on 127.0.0.1; it lives with the cluster."""
        answer: int = control.ask(
            self._folder.keeper_socket,
            "forward",
            namespace=namespace,
            service=service,
            port=port,
            local_port=local_port,
        )
        return answer

    def import_image(
        self, path: Path, *, nodes: Iterable[str] | None = None, show: Show = _silent_build
    ) -> bool:
        """Bring an OCI archive (tar or folder) to nodes; False when all had it already."""
        archive = Archive(path)
        changed = [
            import_archive(archive, node=name, ctr=self._ctr_of(name), show=show)
            for name in (self.node_names if nodes is None else nodes)
        ]
        return any(changed)

    def node_store(self, node: str) -> Path:
        """Return the folder, outside, that a node's containerd keeps its images in."""
        plan = read_plan(self._folder.plan)
        return plan.stores[self.node_names.index(node)]

    def ctr_command(self, node: str, *arguments: str) -> list[str]:
        """Return the command line of a node's containerd client."""
        socket = str(runtime_socket(node))
        program = str(self._programs / "ctr")
        return self.inside_command(program, "-a", socket, "-n", "k8s.io", *arguments)

    def _ctr_of(self, node: str) -> Callable[..., list[str]]:
        if node not in self.node_names:
            raise ClusterError(f"nodes: {node!r} is none of {', '.join(self.node_names)}")
        return lambda *arguments: self.ctr_command(node, *arguments)

    def stop_node(self, index: int) -> None:
        """Lose a node at once, as a power cut does."""
        control.ask(self._folder.cell_socket, "stop_node", index=index)

    def start_node(self, index: int) -> None:
        """Bring a lost node back and return when it is Ready."""
        control.ask(self._folder.cell_socket, "start_node", index=index)

    def stop_api_server(self) -> None:
        """Kill the API server; everything else goes on."""
        control.ask(self._folder.cell_socket, "stop_api_server")

    def start_api_server(self) -> None:
        """Start the API server again and return when it is ready."""
        control.ask(self._folder.cell_socket, "start_api_server")

    def run_component(self, name: str, argv: Sequence[str]) -> None:
        """Start one more process of the cell unless it runs; if it ends, so does the cell."""
        control.ask(self._folder.cell_socket, "run", name=name, argv=list(argv))

    def add_fake_nodes(
        self, number: int, *, gpus: int = 8, prefix: str = "fake", is_tainted: bool = True
    ) -> list[str]:
        """Add nodes that run nothing and say that everything runs; returns when all are Ready.

        With the taint of fake_nodes.py only pods which tolerate it go there.
        """
        program = kwok_program(self._folders, _silent_build)
        kubeconfig = self._folder.files / "admin.kubeconfig"
        self.run_component("kwok", fake_nodes.kwok_command(program, kubeconfig))
        return fake_nodes.add(self.api, number, gpus=gpus, prefix=prefix, is_tainted=is_tainted)

    def audit_events(self) -> list[AuditEvent]:
        """Return every write so far, Events and Leases apart, in order."""
        lines = self._folder.audit_log.read_text().splitlines()
        return [_parse_audit(json.loads(line)) for line in lines if line.endswith("}")]

    def dump(self, folder: Path) -> None:
        """Write logs, events and all objects of the cluster into a folder."""
        folder.mkdir(parents=True, exist_ok=True)
        for log in self.logs.iterdir():
            (folder / log.name).write_bytes(log.read_bytes())
        questions = {
            "events.txt": ("get", "events", "-A", "--sort-by=.lastTimestamp"),
            "objects.txt": ("get", "all,nodes,pv,pvc,cm,crd", "-A", "-o", "wide"),
            "pods.yaml": ("get", "pods", "-A", "-o", "yaml"),
            "nodes.txt": ("describe", "nodes"),
        }
        for file, question in questions.items():
            try:
                text = self.kubectl(*question, timeout_s=30)
            except (ClusterError, subprocess.TimeoutExpired) as error:
                text = str(error)
            (folder / file).write_text(text)
        self._dump_custom_objects(folder / "custom.yaml")
        logs = folder / "pods"
        logs.mkdir(exist_ok=True)
        for log in self._folder.path.glob("nodes/*/pod-logs/*/*/*.log"):
            pod, container = log.parts[-3], log.parts[-2]
            (logs / f"{pod}_{container}_{log.name}").write_bytes(log.read_bytes())

    def _dump_custom_objects(self, file: Path) -> None:
        try:
            names = self.kubectl("get", "crd", "-o", "name", timeout_s=30).split()
            kinds = ",".join(name.partition("/")[2] for name in names)
            text = self.kubectl("get", kinds, "-A", "-o", "yaml") if kinds else ""
        except (ClusterError, subprocess.TimeoutExpired) as error:
            text = str(error)
        file.write_text(text)


def _parse_audit(document: dict[str, Any]) -> AuditEvent:
    target = document.get("objectRef", {})
    subresource = target.get("subresource")
    resource = target.get("resource", "")
    return AuditEvent(
        user=document["user"].get("username", ""),
        user_agent=document.get("userAgent", ""),
        verb=document["verb"],
        resource=f"{resource}/{subresource}" if subresource else resource,
        namespace=target.get("namespace", ""),
        name=target.get("name", ""),
        status=document.get("responseStatus", {}).get("code", 0),
    )


def _run_keeper(
    order: keeper.Order, folder: CellFolder, show_event: Callable[[Event], None]
) -> int:
    """Start a keeper, follow its progress until the cluster is ready, return its process id."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.devcluster.keeper", order.encode()],
        cwd=REPOSITORY,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
    )
    assert process.stdout is not None
    reason = "the keeper ended without a word"
    with process.stdout:
        for line in process.stdout:
            event = parse(line)
            show_event(event)
            if event.kind == "ready":
                # It lives on: its end is awaited by stop(), not by this object.
                process.returncode = 0
                return process.pid
            if event.kind == "failed":
                reason = event.text
    status = process.wait()
    if status == keeper.BUSY:
        raise ClusterBusyError(
            f"a cluster {order.config.name!r} runs already: use it, end it with "
            f"`python -m tests.devcluster down --name {order.config.name}`, or take another name"
        )
    raise ClusterError(f"the cluster did not start: {reason}\nlogs: {folder.logs}")


def is_running(folder: CellFolder) -> bool:
    """Tell whether a cluster is up."""
    lock = Lock.try_take(folder.lock)
    if lock is None:
        return folder.record.exists()
    lock.release()
    return False


def started_from(folder: CellFolder) -> Path | None:
    """Return the checkout that a running cluster was started from, if it left word."""
    place = json.loads(folder.record.read_text()).get("repository")
    return Path(place) if place else None


def stop_cell(folder: CellFolder) -> bool:
    """End a cluster, or sweep what a killed one left; returns when nothing is left.

    True when there was one to end.
    """
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    was_there = asked = False
    while (lock := Lock.try_take(folder.lock)) is None:
        was_there = True
        if not asked:
            asked = _ask_to_stop(folder)
        if time.monotonic() > deadline:
            raise ClusterError(f"the cluster {folder.path.name!r} does not end: see {folder.logs}")
        time.sleep(0.02)
    if folder.path.exists():
        keeper.tidy(folder)
    lock.release()
    return was_there


def _ask_to_stop(folder: CellFolder) -> bool:
    """Signal the keeper that holds the lock."""
    text = folder.lock.read_text()
    if not text:
        return False
    try:
        os.kill(int(text), signal.SIGTERM)
    except ProcessLookupError:
        return False
    return True
