"""The local cluster in use: pods, Services, DNS, images, GPUs, audit, node loss, fake nodes."""

import contextlib
import json
import os
import subprocess
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.devcluster import cgroups
from tests.devcluster.cluster import Cluster, KubectlError
from tests.devcluster.control import ControlError
from tests.devcluster.fixtures import PROBE_IMAGE
from tests.devcluster.folders import user_folders
from tests.e2e.waiting import wait_for

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(900)]

OUTSIDE = "192.0.2.1"  # a documentation address: nobody has it


@pytest.fixture(scope="module", autouse=True)
def _probe_image(cluster: Cluster, probe_archive: Path) -> None:
    cluster.import_image(probe_archive)


def deployment(replicas: int, *, extra: str = "") -> str:
    return f"""
apiVersion: apps/v1
kind: Deployment
metadata: {{name: probe}}
spec:
  replicas: {replicas}
  selector: {{matchLabels: {{app: probe}}}}
  template:
    metadata: {{labels: {{app: probe}}}}
    spec:
      terminationGracePeriodSeconds: 1
      {extra}
      topologySpreadConstraints:
      - {{maxSkew: 1, topologyKey: kubernetes.io/hostname, whenUnsatisfiable: DoNotSchedule,
          labelSelector: {{matchLabels: {{app: probe}}}}}}
      containers:
      - name: probe
        image: {PROBE_IMAGE}
        readinessProbe: {{httpGet: {{path: /, port: 8080}}, periodSeconds: 1}}
---
apiVersion: v1
kind: Service
metadata: {{name: probe}}
spec: {{selector: {{app: probe}}, ports: [{{name: http, port: 80, targetPort: 8080}}]}}
"""


def serve(cluster: Cluster, namespace: str, replicas: int = 1) -> Callable[[str], str]:
    """Run probes and return how to ask one of them, from outside the cell."""
    cluster.kubectl("-n", namespace, "apply", "-f", "-", stdin=deployment(replicas))
    cluster.kubectl("-n", namespace, "rollout", "status", "deployment/probe", "--timeout=60s")
    port = cluster.forward(namespace, "probe", "http")

    def ask(path: str) -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
            text: str = answer.read().decode()
        return text.strip()

    wait_for("the Service answers", lambda: reaches(ask))
    return ask


def reaches(ask: Callable[[str], str]) -> bool:
    try:
        return bool(ask("/"))
    except OSError:
        return False


def nodes_of(cluster: Cluster, namespace: str) -> set[str]:
    pods = json.loads(cluster.kubectl("-n", namespace, "get", "pods", "-o", "json"))["items"]
    return {pod["spec"]["nodeName"] for pod in pods}


def _runs_on_only(cluster: Cluster, namespace: str, node: str) -> bool:
    return nodes_of(cluster, namespace) == {node}


def test_pods_on_both_nodes_answer_through_the_forwarder(cluster: Cluster, namespace: str) -> None:
    ask = serve(cluster, namespace, replicas=2)
    wait_for("both pods answer", lambda: len({ask("/") for _ in range(8)}) == 2)
    assert nodes_of(cluster, namespace) == {"node0", "node1"}


def test_names_of_the_cluster_resolve_and_no_others_do(cluster: Cluster, namespace: str) -> None:
    ask = serve(cluster, namespace)
    own = cluster.kubectl(
        "-n", namespace, "get", "service", "probe", "-o", "jsonpath={.spec.clusterIP}"
    )
    assert json.loads(ask("/resolve?name=probe")) == [own]
    assert json.loads(ask("/resolve?name=kubernetes.default")) == ["10.96.0.1"]
    assert "lookup example.org" in ask("/resolve?name=example.org")


def test_a_pod_reaches_itself_through_its_service(cluster: Cluster, namespace: str) -> None:
    """On every node, the second one too: its only kube-proxy believes to be on the first."""
    ask = serve(cluster, namespace)
    for node in cluster.node_names:
        patch = {"spec": {"template": {"spec": {"nodeName": node}}}}
        cluster.kubectl("-n", namespace, "patch", "deployment", "probe", "-p", json.dumps(patch))
        cluster.kubectl("-n", namespace, "rollout", "status", "deployment/probe", "--timeout=60s")
        wait_for(f"it runs on {node}", partial(_runs_on_only, cluster, namespace, node))
        wait_for("the Service answers", lambda: reaches(ask))
        assert ask("/dial?address=probe:80") == "connected"


def test_a_pod_has_no_way_out(cluster: Cluster, namespace: str) -> None:
    ask = serve(cluster, namespace)
    assert "network is unreachable" in ask(f"/dial?address={OUTSIDE}:80")
    destinations = [line.split()[1] for line in ask("/routes").splitlines()[1:]]
    assert destinations
    assert "00000000" not in destinations


def test_no_process_of_the_cell_has_a_way_out(cluster: Cluster, namespace: str) -> None:
    serve(cluster, namespace, replicas=2)
    groups = cgroups.tracking() / cgroups.group(user_folders().cell(cluster.name).key).lstrip("/")
    networks, kept = {}, contextlib.ExitStack()
    for pid in cgroups.pids_below(groups):
        # Pods of tests before may be ending: an open file keeps their network to look at.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            file_number = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
            kept.callback(os.close, file_number)
            networks[os.readlink(f"/proc/self/fd/{file_number}")] = (pid, file_number)
    assert len(networks) >= 3, "the cell and two pods"
    outside = os.readlink("/proc/self/ns/net")
    # The program that waits for the cell's first process is outside by nature; it only waits.
    waiting = networks.pop(outside, None)
    if waiting is not None:
        assert Path(f"/proc/{waiting[0]}/comm").read_text().strip() == "unshare"
    for _, file_number in networks.values():
        inside = ["nsenter", f"--net=/proc/{os.getpid()}/fd/{file_number}"]
        for family in ("-4", "-6"):
            command = [*inside, "ip", family, "route", "show", "default"]
            assert subprocess.check_output(command, text=True) == ""
        asked = subprocess.run(
            [*inside, "ip", "route", "get", OUTSIDE], capture_output=True, text=True, check=False
        )
        assert "Network is unreachable" in asked.stderr
    kept.close()
    links = json.loads(subprocess.check_output(cluster.inside_command("ip", "-j", "link")))
    own = {link["ifname"] for link in links if not link["ifname"].startswith("veth")}
    assert own == {"lo", "mizzen0"}


def test_a_client_that_leaves_is_noticed_in_the_pod(cluster: Cluster, namespace: str) -> None:
    ask = serve(cluster, namespace)
    port = cluster.forward(namespace, "probe", "http")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/stream", timeout=10) as stream:
        assert stream.readline() == b"tick\n"
    wait_for("the pod notices", lambda: ask("/left") == "1")


def test_forwarding_to_what_does_not_exist_says_so(cluster: Cluster, namespace: str) -> None:
    with pytest.raises(ControlError, match="404"):
        cluster.forward(namespace, "nothing", 80)
    serve(cluster, namespace)
    with pytest.raises(ControlError, match="does not exist: the Service has 80"):
        cluster.forward(namespace, "probe", 81)


def test_logs_and_exec_reach_the_kubelets(cluster: Cluster, namespace: str) -> None:
    serve(cluster, namespace)
    assert cluster.kubectl("-n", namespace, "logs", "deployment/probe") == ""
    with pytest.raises(KubectlError, match="executable file not found"):
        cluster.kubectl("-n", namespace, "exec", "deployment/probe", "--", "nothing")


def test_gpus_are_counted_by_the_scheduler(cluster: Cluster, namespace: str) -> None:
    pods = "\n---\n".join(
        f"""
apiVersion: v1
kind: Pod
metadata: {{name: gpu-{index}}}
spec:
  terminationGracePeriodSeconds: 1
  containers:
  - name: probe
    image: {PROBE_IMAGE}
    resources: {{limits: {{nvidia.com/gpu: 8}}}}
"""
        for index in range(3)
    )
    cluster.kubectl("-n", namespace, "apply", "-f", "-", stdin=pods)

    def phases() -> list[str]:
        listed = json.loads(cluster.kubectl("-n", namespace, "get", "pods", "-o", "json"))
        return sorted(pod["status"]["phase"] for pod in listed["items"])

    wait_for("two of three fit", lambda: phases() == ["Pending", "Running", "Running"])
    wait_for(
        "the surplus pod is told why",
        lambda: "Insufficient nvidia.com/gpu" in cluster.kubectl("-n", namespace, "get", "events"),
    )


def test_nodes_carry_zones_racks_and_gpus(cluster: Cluster) -> None:
    nodes = json.loads(cluster.kubectl("get", "nodes", "node0", "node1", "-o", "json"))["items"]
    labels = [node["metadata"]["labels"] for node in nodes]
    assert [each["topology.kubernetes.io/zone"] for each in labels] == ["zone-a", "zone-b"]
    assert [each["topology.mizzen.dev/rack"] for each in labels] == ["rack-1", "rack-2"]
    assert [node["status"]["allocatable"]["nvidia.com/gpu"] for node in nodes] == ["8", "8"]


def test_an_image_is_moved_once(cluster: Cluster, probe_archive: Path) -> None:
    assert cluster.import_image(probe_archive) is False


def test_the_audit_log_counts_writes_by_user_agent(cluster: Cluster, namespace: str) -> None:
    for key in ("one", "two"):
        name, value = f"config-{key}", f"--from-literal=key={key}"
        cluster.kubectl("-n", namespace, "create", "configmap", name, value)
    cluster.kubectl("-n", namespace, "get", "configmaps")
    cluster.kubectl("-n", namespace, "delete", "configmap", "config-one")

    def ours() -> list[tuple[str, str, int]]:
        return [
            (event.verb, event.name, event.status)
            for event in cluster.audit_events()
            if event.namespace == namespace
            and event.resource == "configmaps"
            and event.user_agent.startswith("kubectl/v1.36.3")
        ]

    expected = [("create", "config-one", 201), ("create", "config-two", 201)]
    wait_for("the writes are listed", lambda: ours() == [*expected, ("delete", "config-one", 200)])
    assert not [event for event in cluster.audit_events() if event.resource in ("leases", "events")]


def _is_ready(cluster: Cluster, node: str) -> bool:
    path = '{.status.conditions[?(@.type=="Ready")].status}'
    return cluster.kubectl("get", "node", node, "-o", f"jsonpath={path}") == "True"


def test_a_lost_node_is_noticed_and_comes_back_with_its_pods(
    cluster: Cluster, namespace: str
) -> None:
    serve(cluster, namespace, replicas=2)
    cluster.stop_node(1)
    try:
        wait_for("node1 is not Ready", lambda: not _is_ready(cluster, "node1"))
        assert _is_ready(cluster, "node0")
    finally:
        cluster.start_node(1)
    assert _is_ready(cluster, "node1")

    def restarted() -> bool:
        pods = json.loads(cluster.kubectl("-n", namespace, "get", "pods", "-o", "json"))["items"]
        return {
            (pod["spec"]["nodeName"], status["restartCount"])
            for pod in pods
            for status in pod["status"]["containerStatuses"]
            if status["ready"]
        } == {("node0", 0), ("node1", 1)}

    wait_for("the lost node's pod runs again, in place", restarted)


@pytest.mark.slow
def test_fake_nodes_take_pods_that_tolerate_them(cluster: Cluster, namespace: str) -> None:
    names = cluster.add_fake_nodes(50, gpus=4)
    assert len(names) == 50
    extra = (
        "tolerations: [{key: devcluster.mizzen.dev/fake, operator: Exists}]\n"
        '      nodeSelector: {devcluster.mizzen.dev/fake: "true"}'
    )
    manifest = deployment(50, extra=extra)
    cluster.kubectl("-n", namespace, "apply", "-f", "-", stdin=manifest)
    cluster.kubectl("-n", namespace, "rollout", "status", "deployment/probe", "--timeout=90s")
    assert nodes_of(cluster, namespace) == set(names)
