"""Owns the command line of the local cluster: what is asked and what is printed.

Not here: anything that is done (cluster.py, binaries.py).
"""

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.devcluster.archive import ArchiveError
from tests.devcluster.binaries import BuildError, cluster_programs
from tests.devcluster.cluster import Cluster, ClusterError, is_running, stop_cell
from tests.devcluster.config import ClusterConfig, ConfigError
from tests.devcluster.control import ControlError
from tests.devcluster.folders import user_folders
from tests.devcluster.image_import import ImageImportError
from tests.devcluster.progress import Event
from tests.devcluster.requirements import RequirementError
from tests.devcluster.toolchain import ToolchainError

_EXPECTED = (
    ArchiveError,
    BuildError,
    ClusterError,
    ConfigError,
    ControlError,
    ImageImportError,
    RequirementError,
    ToolchainError,
)


class Screen:
    """Prints progress: one line that changes on a terminal, lines with percentages otherwise."""

    def __init__(self) -> None:
        self._terminal = sys.stdout.isatty()
        self._last_text = ""
        self._last_percent = -100
        self._last_time = 0.0

    def show(self, fraction: float, text: str) -> None:
        """Show how far something long is."""
        percent = int(fraction * 100)
        now = time.monotonic()
        if self._terminal:
            if now - self._last_time > 0.1 or percent == 100:
                self._last_time = now
                print(f"\r\033[K[{percent:3d} %] {text}", end="", flush=True)
            if percent == 100:
                print(flush=True)
            return
        kind = text.split(":", 1)[0]
        due = percent >= self._last_percent + 10 or now - self._last_time > 30
        if kind != self._last_text or due or percent == 100 != self._last_percent:
            self._last_text, self._last_percent, self._last_time = kind, percent, now
            print(f"[{percent:3d} %] {text}", flush=True)

    def show_event(self, event: Event) -> None:
        """Show one step of a starting cluster."""
        if event.kind == "begin" and self._terminal:
            print(f"starting {event.text} ...", end="", flush=True)
        elif event.kind == "done":
            start = " " if self._terminal else f"starting {event.text} ... "
            print(f"{start}ok {event.seconds:.1f} s", flush=True)
        elif event.kind == "note":
            print(f"note: {event.text}", flush=True)
        elif event.kind == "failed" and self._terminal:
            print(flush=True)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.devcluster",
        description="A real Kubernetes in one disposable cell on this machine, without any uplink.",
    )
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    def verb(name: str, text: str) -> argparse.ArgumentParser:
        sub = verbs.add_parser(name, help=text, description=text)
        sub.add_argument("--name", default="demo", help="which cluster (default: demo)")
        return sub

    verbs.add_parser("build", help="build the cluster's programs into the cache")
    up = verb("up", "start a cluster")
    up.add_argument("--nodes", type=int, default=1, help="real nodes (default: 1)")
    up.add_argument("--gpus", type=int, default=8, help="nvidia.com/gpu of each node (default: 8)")
    up.add_argument("--zones", default="zone-a,zone-b", help="dealt to the nodes in turn")
    up.add_argument("--racks", default="rack-1,rack-2", help="dealt to the nodes in turn")
    up.add_argument("--api-port", type=int, default=0, help="on 127.0.0.1 (default: a free one)")
    up.add_argument(
        "--foreground", action="store_true", help="end the cluster with this command (Ctrl-C)"
    )
    verb("down", "end a cluster and leave nothing behind, also after a crash")
    verb("status", "say whether a cluster runs")
    verb("env", 'print the line that points kubectl at it: eval "$(... env)"')
    logs = verb("logs", "print a component's log, or the names of all logs")
    logs.add_argument("component", nargs="?", help="for example kube-apiserver or node0-kubelet")
    dump = verb("dump", "write logs, events and objects into a folder")
    dump.add_argument("folder", type=Path)
    image = verb("import", "bring an OCI image archive to the nodes")
    image.add_argument("archive", type=Path)
    image.add_argument("--nodes", help="comma-separated node names (default: all)")
    forward = verb("forward", "make a Service reachable on 127.0.0.1")
    forward.add_argument("service", help="NAMESPACE/NAME:PORT")
    forward.add_argument("--local-port", type=int, default=0, help="default: a free one")
    kubectl = verb("kubectl", "run the cluster's kubectl with the arguments that follow")
    kubectl.add_argument("arguments", nargs=argparse.REMAINDER)
    inside = verb("exec", "run a program of this machine inside the cell")
    inside.add_argument("arguments", nargs=argparse.REMAINDER)
    return parser


def _up(options: argparse.Namespace) -> None:
    screen = Screen()
    config = ClusterConfig(
        name=options.name,
        nodes=options.nodes,
        gpus_per_node=options.gpus,
        zones=tuple(options.zones.split(",")),
        racks=tuple(options.racks.split(",")),
        api_port=options.api_port,
    )
    cluster = Cluster.start(
        config,
        stay=not options.foreground,
        show_build=screen.show,
        show_event=screen.show_event,
    )
    print(f"cluster {cluster.name!r} is up: {_export(cluster)}", flush=True)
    if options.foreground:
        with cluster:
            _wait_for_interrupt()


def _wait_for_interrupt() -> None:
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        print("ending the cluster", flush=True)


def _status(options: argparse.Namespace) -> None:
    folder = user_folders().cell(options.name)
    if is_running(folder):
        cluster = Cluster.attach(options.name)
        print(f"{options.name}: up, {len(cluster.node_names)} node(s), cell {cluster.pid}")
        print(cluster.kubectl("get", "nodes", "-o", "wide"), end="")
        return
    print(f"{options.name}: down")
    if folder.failure.exists():
        failure = json.loads(folder.failure.read_text())
        print(f"it ended because {failure['reason']}\nlogs: {failure['logs']}")
    sys.exit(1)


def _logs(options: argparse.Namespace) -> None:
    logs = user_folders().cell(options.name).logs
    if options.component is None:
        print("\n".join(sorted(path.stem for path in logs.glob("*.log"))) or f"no logs in {logs}")
        return
    path = logs / f"{options.component}.log"
    if not path.exists():
        raise ClusterError(f"no log of {options.component!r} in {logs}")
    sys.stdout.write(path.read_text(errors="replace"))


def _import(options: argparse.Namespace) -> None:
    nodes = options.nodes.split(",") if options.nodes else None
    cluster = Cluster.attach(options.name)
    if not cluster.import_image(options.archive, nodes=nodes, show=Screen().show):
        print("the nodes have this image already")


def _forward(options: argparse.Namespace) -> None:
    namespace, _, rest = options.service.partition("/")
    service, _, port = rest.partition(":")
    if not (namespace and service and port):
        raise ClusterError(f"service: {options.service!r} is not NAMESPACE/NAME:PORT")
    cluster = Cluster.attach(options.name)
    print(f"http://127.0.0.1:{cluster.forward(namespace, service, port, options.local_port)}")


def _replace_by(command: Sequence[str]) -> None:
    os.execvp(command[0], list(command))


def _build(_options: argparse.Namespace) -> None:
    print(cluster_programs(user_folders(), Screen().show))


def _down(options: argparse.Namespace) -> None:
    was_there = stop_cell(user_folders().cell(options.name))
    print(f"{options.name}: {'ended' if was_there else 'was not running'}")


def _env(options: argparse.Namespace) -> None:
    print(_export(Cluster.attach(options.name)))


def _dump(options: argparse.Namespace) -> None:
    Cluster.attach(options.name).dump(options.folder)


def _kubectl(options: argparse.Namespace) -> None:
    _replace_by(Cluster.attach(options.name).kubectl_command(*options.arguments))


def _exec(options: argparse.Namespace) -> None:
    _replace_by(Cluster.attach(options.name).inside_command(*options.arguments))


_VERBS: dict[str, Callable[[argparse.Namespace], None]] = {
    "build": _build,
    "up": _up,
    "down": _down,
    "status": _status,
    "env": _env,
    "logs": _logs,
    "dump": _dump,
    "import": _import,
    "forward": _forward,
    "kubectl": _kubectl,
    "exec": _exec,
}


def _export(cluster: Cluster) -> str:
    return f"export KUBECONFIG={shlex.quote(str(cluster.kubeconfig))}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one verb; returns the exit status."""
    options = _parser().parse_args(arguments)
    try:
        _VERBS[options.verb](options)
    except _EXPECTED as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    return 0
