"""Owns where the demo runs: the local cluster, or the one of the current kubeconfig.

Not here: what the demo does there (demo.py).

Invariant: the current kubeconfig is used only when CLUSTER=current says so, after its context was
printed and somebody agreed.
"""

import contextlib
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.devcluster.cluster import Cluster, is_running, started_from, stop_cell
from tests.devcluster.config import ClusterConfig
from tests.devcluster.folders import REPOSITORY, CellFolder, user_folders
from tests.devcluster.images import user_builder
from tests.devcluster.images_load import load_everywhere
from tests.devcluster.steps import Step, StepRun, run

NAME = "demo"


class DemoError(RuntimeError):
    """The demo cannot go on; the message says why and what to do."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """The three images of Mizzen, as a cluster knows them."""

    operator: str
    frontend: str
    worker: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A cluster that the demo may use; an empty kubeconfig means the usual resolution."""

    kubectl: tuple[str, ...]
    kubeconfig: str
    images: Images
    cluster: Cluster | None

    def ask(self, *arguments: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
        """Run kubectl, whatever it answers."""
        return subprocess.run(
            [*self.kubectl, *arguments],
            input=stdin,
            capture_output=True,
            text=True,
            check=False,
            timeout=900,
        )

    def do(self, *arguments: str, stdin: str = "") -> str:
        """Run kubectl and return what it printed; raises DemoError with its message."""
        done = self.ask(*arguments, stdin=stdin)
        if done.returncode != 0:
            raise DemoError(f"kubectl {' '.join(arguments)}: {done.stderr.strip()}")
        return done.stdout

    @contextlib.contextmanager
    def reach(self, namespace: str, service: str, port: int) -> Iterator[str]:
        """Yield the address of a Service on this machine."""
        if self.cluster is not None:
            yield f"http://127.0.0.1:{self.cluster.forward(namespace, service, port)}"
            return
        with _port_forward([*self.kubectl, "--namespace", namespace], service, port) as address:
            yield address

    def dump(self, folder: Path) -> None:
        """Keep what explains a failure."""
        if self.cluster is not None:
            self.cluster.dump(folder)
            return
        folder.mkdir(parents=True, exist_ok=True)
        for kind in ("pods", "events", "inferenceservices.serving.mizzen.dev"):
            shown = self.ask("get", kind, "--all-namespaces", "--output", "yaml")
            (folder / f"{kind}.yaml").write_text(shown.stdout + shown.stderr, encoding="utf-8")


@contextlib.contextmanager
def _port_forward(kubectl: list[str], service: str, port: int) -> Iterator[str]:
    process = subprocess.Popen(
        [*kubectl, "port-forward", f"service/{service}", f":{port}"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        found = re.search(r"127\.0\.0\.1:(\d+)", line)
        if found is None:
            raise DemoError(f"kubectl port-forward service/{service}: {line.strip()}")
        yield f"http://127.0.0.1:{found[1]}"
    finally:
        process.terminate()
        process.wait()


def foreign_start(folder: CellFolder) -> str:
    """Say that a running cluster is of another checkout; "" when it is not."""
    place = started_from(folder) if is_running(folder) else None
    if place in (None, REPOSITORY):
        return ""
    return (
        f"note: the running cluster was started from {place}; this demo puts the images and the "
        f"resource of {REPOSITORY} into it"
    )


def open_local(logs: Path) -> Target:
    """Return the local cluster, started if need be, with the images of the working tree."""
    opened: list[Cluster] = []
    names: dict[str, str] = {}
    folder = user_folders().cell(NAME)
    if note := foreign_start(folder):
        print(note, flush=True)

    def start(step: StepRun) -> None:
        if is_running(folder):
            opened.append(Cluster.attach(NAME))
            return
        stop_cell(folder)  # what an interrupted start left
        opened.append(
            Cluster.start(
                ClusterConfig(name=NAME),
                stay=True,
                show_build=lambda fraction, text: step.say(f"{fraction:.0%} {text}"),
                show_event=lambda event: step.say(f"{event.kind} {event.text}"),
            )
        )

    def build(step: StepRun) -> None:
        names.update(user_builder().build_all(step.say))

    def bring(step: StepRun) -> None:
        load_everywhere(opened[0], names.values(), step.say)

    run(
        (
            Step(name="cluster", run=start),
            Step(name="names", run=build),
            Step(name="load", run=bring, after=("cluster", "names")),
        ),
        logs=logs,
    )
    return Target(
        kubectl=tuple(opened[0].kubectl_command()),
        kubeconfig=str(opened[0].kubeconfig),
        images=Images(**names),
        cluster=opened[0],
    )


def open_current(images: Images, *, is_agreed: bool) -> Target:
    """Return the cluster of the current kubeconfig, if the person in front of it agrees."""
    for field, value in (
        ("IMAGE_OPERATOR", images.operator),
        ("IMAGE_FRONTEND", images.frontend),
        ("IMAGE_WORKER", images.worker),
    ):
        if not value:
            raise DemoError(
                f"{field} is not set: CLUSTER=current needs the three images in a registry "
                "that the cluster can pull from: build them with Dockerfile.operator and "
                "Dockerfile.worker"
            )
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        raise DemoError("kubectl is not installed: CLUSTER=current uses it")
    target = Target(kubectl=(kubectl,), kubeconfig="", images=images, cluster=None)
    context = target.do("config", "current-context").strip()
    server = target.do(
        *("config", "view", "--minify", "--output", "jsonpath={.clusters[0].cluster.server}")
    )
    print(f"The current context is {context!r}, at {server}.", flush=True)
    print(
        "The demo installs the operator there and a service in the namespace default.", flush=True
    )
    if not is_agreed and not _agrees():
        raise DemoError("nothing was changed: answer y, or say YES=1")
    return target


def _agrees() -> bool:
    if not sys.stdin.isatty():
        return False
    return input("Go on? [y/N] ").strip().lower() in ("y", "yes")
