"""Owns one real node inside the cell: its runtime, its kubelet, and losing them.

Runs in the cell's first process. Not here: the control plane (cell.py), what the files say
(component_files.py), which store a node has (stores.py).
"""

import shutil
import subprocess
from pathlib import Path

from tests.devcluster import cgroups, component_files, components
from tests.devcluster.api import JSON_PATCH, MERGE_PATCH, ApiClient, ApiError
from tests.devcluster.config import NodeConfig
from tests.devcluster.isolation import RUN
from tests.devcluster.namespaces import MS_BIND, mount
from tests.devcluster.plan import CellPlan
from tests.devcluster.processes import ProcessTable, wait_until
from tests.devcluster.progress import Reporter


class NodeError(RuntimeError):
    """A node did not come up."""


def runtime_socket(node_name: str) -> Path:
    """Return where a node's containerd listens, as the cell sees it."""
    return RUN / node_name / "containerd.sock"


class Node:
    """A node of this cell; its methods are called in the order in which they stand here."""

    def __init__(
        self,
        *,
        plan: CellPlan,
        config: NodeConfig,
        store: Path,
        processes: ProcessTable,
        reporter: Reporter,
    ) -> None:
        self.config = config
        self._plan = plan
        self._store = store
        self._processes = processes
        self._reporter = reporter
        self._run = RUN / config.name
        self._agents = cgroups.group(plan.folder.key, f"{config.name}-agents")
        self._pods = cgroups.group(plan.folder.key, config.name)
        files = plan.folder.files
        self._runtime = components.containerd(
            plan.programs, config, files / f"{config.name}-containerd.toml", self._agents
        )
        self._kubelet = components.kubelet(plan.programs, config, plan.folder, self._agents)

    def write_files(self) -> None:
        """Write the configuration of runtime, network and kubelet."""
        files, name = self._plan.folder.files, self.config.name
        cni = files / f"{name}-cni"
        cni.mkdir()
        self._run.mkdir(parents=True)
        (cni / "10-mizzen.conflist").write_text(
            component_files.cni_network(self.config, self._run / "ipam")
        )
        (files / f"{name}-containerd.toml").write_text(
            component_files.containerd_config(store=self._store, run=self._run, cni=cni)
        )
        root = components.kubelet_root(self.config)
        on_disk = self._plan.folder.node(name)
        on_disk.mkdir(parents=True)
        root.mkdir()
        mount(str(on_disk), root, flags=MS_BIND)
        (files / f"{name}-kubelet.json").write_text(
            component_files.kubelet_config(
                node=self.config,
                socket=runtime_socket(name),
                pki=self._plan.folder.pki,
                root=root,
                cgroup=self._pods,
            )
        )

    def start_runtime(self) -> None:
        self._processes.start(self._runtime)

    def await_runtime(self) -> None:
        """Wait for containerd; rebuild a store that it cannot use; forget an older cell's pods."""
        # A second try first: whoever had the store before may have been just about to let it go.
        if not self._runtime_answers() and not self._restart_runtime():
            self._rebuild_store()
        reset = self._program("crireset", str(runtime_socket(self.config.name)))
        if reset.returncode != 0:
            self._reporter.say("note", f"{self.config.name}: old pods stay: {reset.stderr.strip()}")
        self._import_pause()

    def _runtime_answers(self) -> bool:
        """Wait for containerd; tell whether it runs with a store that it can use."""

        def settled() -> bool:
            self._reap_runtime()
            return not self._processes.is_running(self._runtime.name) or self._serves()

        # It serves when all its plugins were tried; one that could not open the store is absent.
        return wait_until(settled, timeout_s=60) and self._list_images().returncode == 0

    def _reap_runtime(self) -> None:
        for ended in self._processes.reap():
            if ended.name != self._runtime.name:
                raise NodeError(f"{ended.name} {ended.how}")

    def _serves(self) -> bool:
        return runtime_socket(self.config.name).exists() and self._ctr("version").returncode == 0

    def _list_images(self) -> subprocess.CompletedProcess[str]:
        return self._ctr("-n", "k8s.io", "images", "ls", "-q")

    def _restart_runtime(self) -> bool:
        self._processes.stop(self._runtime.name)
        self.start_runtime()
        return self._runtime_answers()

    def _rebuild_store(self) -> None:
        self._reporter.say(
            "note",
            f"{self.config.name}: its image store was damaged and is made anew, "
            "its images must be imported again",
        )
        self._processes.stop(self._runtime.name)
        shutil.rmtree(self._store, ignore_errors=True)
        self._store.mkdir(parents=True, exist_ok=True)
        if not self._restart_runtime():
            raise NodeError(f"{self._runtime.name} does not answer")

    def _import_pause(self) -> None:
        if component_files.PAUSE_IMAGE in self._list_images().stdout.split():
            return
        done = self._ctr("-n", "k8s.io", "images", "import", str(self._plan.pause_archive))
        if done.returncode != 0:
            raise NodeError(f"{self.config.name}: the pause image was refused: {done.stderr}")

    def _ctr(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return self._program("ctr", "-a", str(runtime_socket(self.config.name)), *arguments)

    def _program(self, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        argv = (self._plan.programs.path(name), *arguments)
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)

    def start_kubelet(self) -> None:
        self._processes.start(self._kubelet)

    def is_ready(self, api: ApiClient) -> bool:
        """Tell whether the API server has this node as Ready."""
        try:
            status = api.call("GET", f"/api/v1/nodes/{self.config.name}")["status"]
        except ApiError:
            return False
        return any(
            condition["type"] == "Ready" and condition["status"] == "True"
            for condition in status.get("conditions", ())
        )

    def declare(self, api: ApiClient) -> None:
        """Put this node's labels and GPUs on its object."""
        path = f"/api/v1/nodes/{self.config.name}"
        labels = {"metadata": {"labels": self.config.labels}}
        api.call("PATCH", path, labels, kind=MERGE_PATCH)
        if self.config.gpus:
            capacity = {
                "op": "add",
                "path": "/status/capacity/nvidia.com~1gpu",
                "value": str(self.config.gpus),
            }
            api.call("PATCH", f"{path}/status", [capacity], kind=JSON_PATCH)

    def has_gpus(self, api: ApiClient) -> bool:
        """Tell whether the scheduler may already hand out all GPUs of this node."""
        status = api.call("GET", f"/api/v1/nodes/{self.config.name}")["status"]
        return int(status["allocatable"].get("nvidia.com/gpu", "0")) == self.config.gpus

    def power_off(self) -> None:
        """Lose this node at once: kubelet, runtime, shims and every container die by SIGKILL."""
        cgroups.kill_all(self._agents)
        cgroups.kill_all(self._pods)
        self._processes.forget(self._kubelet.name, self._runtime.name)
        runtime_socket(self.config.name).unlink(missing_ok=True)

    def power_on(self) -> None:
        """Bring a lost node back as a reboot does: same images, same pods, new containers."""
        self.start_runtime()
        if not self._runtime_answers():
            raise NodeError(f"{self._runtime.name} does not answer")
        self.start_kubelet()
