"""Two launchers that act as the two pods of one group, with addresses of their own."""

import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.worker.launched import Launched, free_port

_HELD_LOAD = """
import sys
import time
from pathlib import Path

if any("scheduler." in word for word in sys.orig_argv):
    from mizzen_worker.model_executor import factory

    hold, load = Path({hold!r}), factory.load_runner

    def load_when_let(*arguments, **named):
        while hold.exists():
            time.sleep(0.05)
        return load(*arguments, **named)

    factory.load_runner = load_when_let
"""


@dataclass
class Site:
    """What both pods of a group are made of."""

    model: Path
    keys: Path
    folder: Path
    listen: str
    rank_port: int
    url: str

    @property
    def hold(self) -> Path:
        """While this file is there, loading does not go on."""
        return self.folder / "hold"

    def pod(self, node: int, *flags: str, epoch: str = "0") -> Launched:
        modules = self.folder / "modules"
        modules.mkdir(exist_ok=True)
        (modules / "sitecustomize.py").write_text(_HELD_LOAD.format(hold=str(self.hold)))
        given = ("--rank-heartbeat-limit", "2", *flags)
        return Launched(
            *("worker", "--model", str(self.model), "--listen", self.listen, "--threads", "1"),
            *("--tensor-parallel-size", "2", "--curve-dir", str(self.keys)),
            *("--rank-port", str(self.rank_port), "--rank-host", f"127.0.0.{node + 1}"),
            *given,
            log=self.folder / f"pod-{node}.log",
            admin_port=free_port(),
            path=modules,
            variables={
                "MIZZEN_NODE_COUNT": "2",
                "MIZZEN_NODE_RANK": str(node),
                "MIZZEN_LEADER_ADDRESS": "127.0.0.1",
                "MIZZEN_GROUP_ID": "group",
                "MIZZEN_GROUP_EPOCH": epoch,
            },
        )

    def log(self, node: int) -> str:
        path = self.folder / f"pod-{node}.log"
        return path.read_text() if path.exists() else ""


def drain(pod: Launched, mode: str, deadline_s: int = 60) -> tuple[int, str]:
    """Run the pod's preStop; give its exit status and what it said."""
    done = subprocess.run(
        [
            *(sys.executable, "-m", "mizzen_worker", "drain", "--mode", mode),
            *("--admin-port", pod.admin.rpartition(":")[2], "--deadline-s", str(deadline_s)),
        ],
        env={**os.environ, "PYTHONPATH": "worker:operator"},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout
