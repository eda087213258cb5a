"""Owns the child processes of the cell's first process: starts them, reaps them and all orphans.

Not here: which components there are (components.py) or what an end means (cell.py).

Invariant: `_running` holds exactly the children started here and not yet reaped.
"""

import os
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.devcluster import cgroups
from tests.devcluster.components import Component
from tests.devcluster.namespaces import die_with_parent


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A component that is no more."""

    name: str
    how: str


class ProcessTable:
    """The components that run now."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._running: dict[str, subprocess.Popen[bytes]] = {}

    def log_of(self, name: str) -> Path:
        return self._logs / f"{name}.log"

    def start(self, component: Component) -> None:
        """Start a component; its output is added to its log."""
        if component.name in self._running:
            raise RuntimeError(f"{component.name} runs already")
        environment = {**os.environ, "HOME": "/root"}
        if component.path_prefix:
            environment["PATH"] = f"{component.path_prefix}:{environment['PATH']}"

        def prepare() -> None:
            die_with_parent()
            if component.cgroup:
                cgroups.enter(component.cgroup)

        with self.log_of(component.name).open("ab") as log:
            self._running[component.name] = subprocess.Popen(
                component.argv,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=environment,
                preexec_fn=prepare,  # noqa: PLW1509 - the cell has one thread
                start_new_session=True,
            )

    def is_running(self, name: str) -> bool:
        return name in self._running

    def pid(self, name: str) -> int:
        return self._running[name].pid

    def reap(self) -> list[Ended]:
        """Take in every child that ended, orphans of the cell included; return our own."""
        ended: list[Ended] = []
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return ended
            if pid == 0:
                return ended
            for name, process in list(self._running.items()):
                if process.pid == pid:
                    process.returncode = os.waitstatus_to_exitcode(status)
                    del self._running[name]
                    ended.append(Ended(name=name, how=_describe(status)))

    def stop(self, name: str, *, timeout_s: float = 5.0) -> None:
        """Kill a component and wait for its end; nothing happens when it does not run."""
        process = self._running.pop(name, None)
        if process is None:
            return
        process.send_signal(signal.SIGKILL)
        process.wait(timeout_s)

    def forget(self, *names: str) -> None:
        """Take in components whose end was arranged otherwise, without reporting them."""
        for name in names:
            process = self._running.pop(name, None)
            if process is not None:
                process.wait(10.0)

    def tail(self, name: str, *, lines: int = 15) -> str:
        """Return the last lines of a component's log."""
        try:
            text = self.log_of(name).read_text(errors="replace")
        except FileNotFoundError:
            return ""
        return "\n".join(text.splitlines()[-lines:])


def _describe(status: int) -> str:
    if os.WIFSIGNALED(status):
        return f"was killed by {signal.Signals(os.WTERMSIG(status)).name}"
    return f"exited with status {os.WEXITSTATUS(status)}"


def wait_until(
    condition: Callable[[], bool], *, timeout_s: float, interval_s: float = 0.05
) -> bool:
    """Ask until the answer is yes (True) or the time is over (False)."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(interval_s)
    return True
