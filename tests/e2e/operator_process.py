"""The operator as a process of this machine, under the very rights that the chart gives it.

For tests that stop, kill and restart it at exact moments; `test_operator_e2e.py` runs it as a pod.
"""

import json
import os
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from tests.devcluster.cluster import AuditEvent, Cluster
from tests.devcluster.demo import SYSTEM, install_chart
from tests.devcluster.folders import REPOSITORY
from tests.e2e.waiting import wait_for

ACCOUNT = "mizzen-operator"
USER = f"system:serviceaccount:{SYSTEM}:{ACCOUNT}"
USER_AGENT = "mizzen-operator/"


def install(cluster: Cluster, values: Mapping[str, Any], *, namespace: str = SYSTEM) -> None:
    """Install the chart, or bring the release to these values."""
    install_chart(str(cluster.kubeconfig), values, namespace=namespace)


def account_kubeconfig(
    cluster: Cluster, folder: Path, *, namespace: str = SYSTEM, server: str = ""
) -> Path:
    """A kubeconfig with the operator's own token; `server` for another way to the API server."""
    token = cluster.kubectl("create", "token", ACCOUNT, "-n", namespace, "--duration=2h").strip()
    document = yaml.safe_load(cluster.kubeconfig.read_text())
    document["users"] = [{"name": "operator", "user": {"token": token}}]
    if server:
        for entry in document["clusters"]:
            entry["cluster"] = {"server": server}
    for context in document["contexts"]:
        context["context"]["user"] = "operator"
    path = folder / f"operator-{namespace}.kubeconfig"
    path.write_text(yaml.safe_dump(document))
    return path


@dataclass
class OperatorProcess:
    """One operator at a time; `settings` are MIZZEN_OPERATOR_* without the prefix."""

    kubeconfig: Path
    log: Path
    settings: Mapping[str, str] = field(default_factory=dict)
    identity: str = "local"
    port: int = 0
    _process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        self.port = free_port()
        settings = {
            "NAMESPACE": SYSTEM,
            "KUBECONFIG": str(self.kubeconfig),
            "FRONTEND_IMAGE": "mizzen-frontend:none",
            "WORKER_IMAGE": "mizzen-worker:none",
            "HTTP_HOST": "127.0.0.1",
            "HTTP_PORT": str(self.port),
            "IDENTITY": self.identity,
            **self.settings,
        }
        environ = {
            **os.environ,
            "PYTHONPATH": f"{REPOSITORY / 'operator'}:{REPOSITORY / 'worker'}",
            **{f"MIZZEN_OPERATOR_{name}": value for name, value in settings.items()},
        }
        program = (
            "import sys; from mizzen_operator.main import operator_verb as run; sys.exit(run([]))"
        )
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-c", program],
                env=environ,
                cwd=REPOSITORY,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )

    @contextmanager
    def running(self) -> Iterator[None]:
        """Started and in sync meanwhile; one that does not get there leaves no process either."""
        self.start()
        try:
            self.wait_until_synced()
            yield
        finally:
            self.end()

    def ask(self, path: str) -> tuple[int, str]:
        """Status and text of its HTTP port; 0 while nothing answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=5) as reply:
                return reply.status, reply.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                return error.code, error.read().decode()
        except OSError:
            return 0, ""

    def metric(self, name: str) -> float:
        """Sum of a metric over its labels."""
        text = self.ask("/metrics")[1]
        lines = (line for line in text.splitlines() if line.startswith((f"{name} ", f"{name}{{")))
        return sum(float(line.rpartition(" ")[2]) for line in lines)

    def wait_until_synced(self) -> None:
        wait_for("the operator leads and is ready", self.is_synced)

    def is_synced(self) -> bool:
        assert self._process is not None
        assert self._process.poll() is None, self.log.read_text()[-4000:]
        leads = self.metric("mizzen_operator_is_leader") == 1
        return leads and self.ask("/readyz")[0] == 200

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def kill(self) -> None:
        """SIGKILL, as a crash."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> int:
        """SIGTERM; its exit status."""
        assert self._process is not None
        self._process.terminate()
        return self._process.wait(timeout=60)

    def wait(self) -> int:
        """Its exit status once it ends by itself."""
        assert self._process is not None
        return self._process.wait(timeout=60)

    def end(self) -> None:
        """Whatever state it is in."""
        if self.is_running:
            self.kill()


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def operator_writes(cluster: Cluster, namespace: str) -> list[AuditEvent]:
    """Every write of the operator in a namespace so far, Leases and Events apart."""
    return [
        event
        for event in cluster.audit_events()
        if event.user == USER and event.namespace == namespace
    ]


CHILDREN = "serviceaccount,service,networkpolicy,pdb,statefulset,deployment,secret"


def service(name: str = "chat", **spec: Any) -> dict[str, Any]:
    """An InferenceService whose claim does not exist: its pods wait for ever."""
    return {
        "apiVersion": "serving.mizzen.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"name": name},
        "spec": {
            "topology": "Split",
            "model": {"source": {"pvc": {"claimName": "weights", "path": "m.gguf"}}},
            **spec,
        },
    }


def children(cluster: Cluster, namespace: str) -> list[str]:
    """Names of everything made for services in a namespace."""
    found = get(cluster, CHILDREN, "-n", namespace, "-l", "serving.mizzen.dev/service-uid")
    names = [
        f"{item['kind']}/{item['metadata']['name']}" for item in (found or {"items": []})["items"]
    ]
    return sorted(names)


def groups(cluster: Cluster, namespace: str) -> list[str]:
    """Worker groups that exist, the leaving ones too."""
    return [name for name in children(cluster, namespace) if name.startswith("StatefulSet/")]


def reconcile_again(
    operator: OperatorProcess, cluster: Cluster, namespace: str, *, times: int = 1
) -> None:
    """Touch the service `chat`, so that the watch brings it, and wait until it is reconciled."""
    metric = "mizzen_operator_reconciles_total"
    for _ in range(times):
        before = operator.metric(metric)
        stamp = f"mizzen.test/touched={before:.0f}"
        cluster.kubectl("annotate", "misvc", "chat", stamp, "--overwrite", "-n", namespace)
        wait_for("it reconciles again", lambda before=before: operator.metric(metric) > before)


def get(cluster: Cluster, *what: str) -> Any:
    """Parsed objects, or None if not found."""
    text = cluster.kubectl("get", *what, "-o", "json", "--ignore-not-found")
    return json.loads(text) if text.strip() else None


def apply(cluster: Cluster, namespace: str, manifest: Mapping[str, Any]) -> None:
    cluster.kubectl(
        "apply", "--server-side", "-n", namespace, "-f", "-", stdin=json.dumps(manifest)
    )


def status_of(cluster: Cluster, namespace: str, name: str = "chat") -> dict[str, Any]:
    """The status of a service, empty while it has none: what is polled may not be written yet."""
    service = get(cluster, "inferenceservice", name, "-n", namespace) or {}
    status: dict[str, Any] = service.get("status") or {}
    return status


def role_of(cluster: Cluster, namespace: str, role: str, name: str = "chat") -> dict[str, Any]:
    """One role in the status of a service, empty while it has none."""
    roles = status_of(cluster, namespace, name).get("roles") or {}
    found: dict[str, Any] = roles.get(role) or {}
    return found


def num_unschedulable(cluster: Cluster, namespace: str) -> int:
    """Pods of the service `chat` that its status says are without a node; 0 while it has none."""
    roles = status_of(cluster, namespace).get("roles") or {}
    return sum(role.get("unschedulable", 0) for role in roles.values())


def condition(cluster: Cluster, namespace: str, name: str, kind: str) -> dict[str, Any]:
    """One condition of a service, empty while it has none."""
    found = status_of(cluster, namespace, name).get("conditions") or ()
    return next((item for item in found if item["type"] == kind), {})
