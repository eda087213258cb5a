"""Owns the inside of the cell: its first process starts every component and ends when one does.

The keeper (keeper.py) starts it in new namespaces; its end ends every process, mount and interface
of the cluster. Not here: anything outside the cell (keeper.py), a node's parts (node.py).

Invariant: one thread; a component that ends unasked ends the cell, with the reason on disk.
"""

import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.devcluster import component_files, components, control, isolation
from tests.devcluster.api import ApiClient, ApiError, admin_context
from tests.devcluster.config import API_PORT, GATEWAY
from tests.devcluster.folders import CellFolder
from tests.devcluster.network import lay_network
from tests.devcluster.node import Node
from tests.devcluster.plan import CellPlan, read_plan
from tests.devcluster.processes import Ended, ProcessTable, wait_until
from tests.devcluster.progress import Reporter

_KUBECONFIGS = ("admin", "controller-manager", "scheduler", "proxy", "coredns")
_START_TIMEOUT_S = 90.0


class CellError(RuntimeError):
    """The cell cannot go on; the message is for people."""


class Cell:
    """The running cell."""

    def __init__(self, plan: CellPlan, reporter: Reporter) -> None:
        self._plan = plan
        self._reporter = reporter
        self._processes = ProcessTable(plan.folder.logs)
        self._api = ApiClient(
            address=GATEWAY, port=API_PORT, context=admin_context(plan.folder.pki)
        )
        self._nodes = tuple(
            Node(
                plan=plan, config=config, store=store, processes=self._processes, reporter=reporter
            )
            for config, store in zip(plan.nodes, plan.stores, strict=True)
        )
        self._verbs: dict[str, Callable[[dict[str, Any]], object]] = {
            "stop_node": lambda arguments: self._nodes[arguments["index"]].power_off(),
            "start_node": lambda arguments: self._start_node(self._nodes[arguments["index"]]),
            "stop_api_server": lambda _: self._processes.stop("kube-apiserver"),
            "start_api_server": lambda _: self._start_api_server(),
            "run": self._run_component,
        }

    def start(self) -> None:
        """Bring the whole cluster up; raises CellError."""
        say = self._reporter
        with say.step("network"):
            lay_network([node.config for node in self._nodes])
            self._write_files()
        with say.step("etcd and API server"):
            self._processes.start(components.etcd(self._plan.programs, self._plan.folder))
            for node in self._nodes:
                node.start_runtime()
            self._start_api_server()
        plan = self._plan
        for component in components.controllers(
            plan.programs, plan.folder, node_grace_s=plan.node_grace_seconds
        ):
            self._processes.start(component)
        with say.step("container runtime"):
            for node in self._nodes:
                node.await_runtime()
                node.start_kubelet()
        with say.step("cluster DNS"):
            self._declare_dns()
            self._processes.start(components.coredns(self._plan.programs, self._plan.folder))
        with say.step(f"{len(self._nodes)} node(s) Ready"):
            for node in self._nodes:
                self._await_node(node)
            self._await(self._has_default_account, "no default ServiceAccount appeared")
            self._await(_dns_answers, "CoreDNS is not ready")

    def _start_api_server(self) -> None:
        self._processes.start(components.apiserver(self._plan.programs, self._plan.folder))
        self._await(self._api.is_ready, "the API server is not ready")

    def _write_files(self) -> None:
        folder = self._plan.folder
        folder.files.mkdir()
        for name in (*_KUBECONFIGS, *(node.config.name for node in self._nodes)):
            (folder.files / f"{name}.kubeconfig").write_text(
                component_files.kubeconfig(
                    server=f"https://{GATEWAY}:{API_PORT}",
                    ca=(folder.pki / "ca.crt").read_bytes(),
                    certificate=(folder.pki / f"{name}.crt").read_bytes(),
                    key=(folder.pki / f"{name}.key").read_bytes(),
                    cluster=name,
                )
            )
        (folder.files / "audit-policy.json").write_text(component_files.audit_policy())
        (folder.files / "Corefile").write_text(
            component_files.corefile(folder.files / "coredns.kubeconfig")
        )
        (folder.files / "kube-proxy.json").write_text(
            component_files.kube_proxy_config(folder.files / "proxy.kubeconfig")
        )
        for node in self._nodes:
            node.write_files()

    def _await(self, condition: Callable[[], bool], otherwise: str) -> None:
        def settled() -> bool:
            self._fail_on(self._processes.reap())
            return condition()

        if not wait_until(settled, timeout_s=_START_TIMEOUT_S):
            raise CellError(f"{otherwise} after {_START_TIMEOUT_S:.0f} s")

    def _fail_on(self, ended: list[Ended]) -> None:
        for end in ended:
            raise CellError(
                f"{end.name} {end.how}; the end of {self._processes.log_of(end.name)}:\n"
                f"{self._processes.tail(end.name)}"
            )

    def _await_node(self, node: Node) -> None:
        name = node.config.name
        self._await(lambda: node.is_ready(self._api), f"{name} is not Ready")
        node.declare(self._api)
        self._await(lambda: node.has_gpus(self._api), f"{name} does not offer its GPUs")

    def _start_node(self, node: Node) -> None:
        node.power_on()
        self._await_node(node)

    def _run_component(self, arguments: dict[str, Any]) -> None:
        """Start one more process unless one of its name runs."""
        if not self._processes.is_running(arguments["name"]):
            self._processes.start(
                components.Component(name=arguments["name"], argv=tuple(arguments["argv"]))
            )

    def _has_default_account(self) -> bool:
        try:
            self._api.call("GET", "/api/v1/namespaces/default/serviceaccounts/default")
        except ApiError:
            return False
        return True

    def _declare_dns(self) -> None:
        for collection, manifest in component_files.dns_objects():
            self._api.ensure(collection, manifest)

    def serve(self, listener: socket.socket) -> None:
        """Answer questions until a component ends; raises CellError then."""
        wake, woken = socket.socketpair()
        wake.settimeout(0)
        woken.settimeout(0)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake.fileno(), warn_on_full_buffer=False)
        with selectors.DefaultSelector() as selector:
            selector.register(woken, selectors.EVENT_READ)
            selector.register(listener, selectors.EVENT_READ)
            while True:
                self._fail_on(self._processes.reap())
                ready = [key.fileobj for key, _ in selector.select()]
                if woken in ready:
                    woken.recv(4096)
                if listener in ready:
                    self._answer_next(listener)

    def _answer_next(self, listener: socket.socket) -> None:
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(10)
            # Whoever asked may be gone already; that is no reason to end the cell.
            with contextlib.suppress(OSError):
                line = connection.makefile("rb").readline()
                if line:
                    connection.sendall(self._answer_line(line))

    def _answer_line(self, line: bytes) -> bytes:
        try:
            return control.encode_answer(result=self._answer(json.loads(line)))
        except (OSError, ValueError, LookupError, RuntimeError) as error:
            return control.encode_answer(error=str(error) or repr(error))

    def _answer(self, question: dict[str, Any]) -> object:
        verb = self._verbs.get(question.get("verb", ""))
        if verb is None:
            raise control.ControlError(f"the cell knows no {question.get('verb')!r}")
        return verb(question)


def _dns_answers() -> bool:
    try:
        with socket.create_connection(("127.0.0.1", 8181), timeout=1) as connection:
            connection.sendall(b"GET /ready HTTP/1.0\r\n\r\n")
            return b" 200 " in connection.recv(64)
    except OSError:
        return False


def main(arguments: list[str]) -> int:
    """Run as the first process of new namespaces: PLAN PROGRESS_DESCRIPTOR."""
    plan = read_plan(Path(arguments[0]))
    inherited = int(arguments[1])
    reporter = Reporter(os.dup(inherited))  # a duplicate is not passed on to components
    os.close(inherited)
    try:
        isolation.seal()
        cell = Cell(plan, reporter)
        cell.start()
        listener = control.listen(plan.folder.cell_socket)
        reporter.say("ready", "ready")
        cell.serve(listener)
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        _leave_reason(plan.folder, str(error))
        reporter.say("failed", str(error))
    return 1


def _leave_reason(folder: CellFolder, text: str) -> None:
    folder.failure.write_text(json.dumps({"reason": text, "logs": str(folder.logs)}))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
