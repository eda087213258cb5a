"""Owns the command lines of the cell's components; pure.

Not here: in which order they start and who watches them (cell.py, node.py).
"""

from dataclasses import dataclass
from pathlib import Path

from tests.devcluster.config import API_PORT, GATEWAY, SERVICE_NETWORK, NodeConfig
from tests.devcluster.folders import CellFolder
from tests.devcluster.isolation import RUN

_UNTHROTTLED = ("--kube-api-qps=2000", "--kube-api-burst=4000")
"""Their own limits of 20 and 50 calls a second would pace every test that makes many pods."""


_MAX_DATABASE_BYTES = 8 << 30
"""It keeps every version of the last minutes: tens of thousands of pods pass the default 2 GiB."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Where the built programs are."""

    folder: Path

    def path(self, name: str) -> str:
        return str(self.folder / name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """A process of the cell: its name is also that of its log file."""

    name: str
    argv: tuple[str, ...]
    cgroup: str = ""
    path_prefix: str = ""


def etcd(programs: Programs, cell: CellFolder) -> Component:
    """Return the data base; it may lose what it holds in a power cut, nobody needs it then."""
    return Component(
        name="etcd",
        argv=(
            programs.path("etcd"),
            f"--data-dir={cell.path / 'etcd'}",
            "--listen-client-urls=http://127.0.0.1:2379",
            "--advertise-client-urls=http://127.0.0.1:2379",
            "--listen-peer-urls=http://127.0.0.1:2380",
            "--unsafe-no-fsync",
            f"--quota-backend-bytes={_MAX_DATABASE_BYTES}",
            "--log-level=warn",
        ),
    )


def apiserver(programs: Programs, cell: CellFolder) -> Component:
    """Return the API server, with aggregation and the audit log on."""
    pki = cell.pki
    return Component(
        name="kube-apiserver",
        argv=(
            programs.path("kube-apiserver"),
            "--etcd-servers=http://127.0.0.1:2379",
            f"--bind-address={GATEWAY}",
            f"--advertise-address={GATEWAY}",
            f"--secure-port={API_PORT}",
            f"--tls-cert-file={pki / 'apiserver.crt'}",
            f"--tls-private-key-file={pki / 'apiserver.key'}",
            f"--client-ca-file={pki / 'ca.crt'}",
            "--authorization-mode=Node,RBAC",
            "--enable-admission-plugins=NodeRestriction",
            "--allow-privileged",
            f"--service-account-key-file={pki / 'sa.pub'}",
            f"--service-account-signing-key-file={pki / 'sa.key'}",
            "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
            f"--service-cluster-ip-range={SERVICE_NETWORK}",
            f"--kubelet-certificate-authority={pki / 'ca.crt'}",
            f"--kubelet-client-certificate={pki / 'kubelet-client.crt'}",
            f"--kubelet-client-key={pki / 'kubelet-client.key'}",
            "--kubelet-preferred-address-types=InternalIP",
            "--enable-aggregator-routing=true",
            f"--requestheader-client-ca-file={pki / 'ca.crt'}",
            "--requestheader-allowed-names=front-proxy",
            "--requestheader-extra-headers-prefix=X-Remote-Extra-",
            "--requestheader-group-headers=X-Remote-Group",
            "--requestheader-username-headers=X-Remote-User",
            f"--proxy-client-cert-file={pki / 'front-proxy.crt'}",
            f"--proxy-client-key-file={pki / 'front-proxy.key'}",
            f"--audit-policy-file={cell.files / 'audit-policy.json'}",
            f"--audit-log-path={cell.audit_log}",
        ),
    )


def controllers(
    programs: Programs, cell: CellFolder, *, node_grace_s: int
) -> tuple[Component, ...]:
    """Return controller-manager, scheduler and kube-proxy."""
    return (
        Component(
            name="kube-controller-manager",
            argv=(
                programs.path("kube-controller-manager"),
                f"--kubeconfig={cell.files / 'controller-manager.kubeconfig'}",
                "--use-service-account-credentials",
                "--leader-elect=false",
                f"--root-ca-file={cell.pki / 'ca.crt'}",
                f"--service-account-private-key-file={cell.pki / 'sa.key'}",
                "--node-monitor-period=2s",
                f"--node-monitor-grace-period={node_grace_s}s",
                "--bind-address=127.0.0.1",
                *_UNTHROTTLED,
            ),
        ),
        Component(
            name="kube-scheduler",
            argv=(
                programs.path("kube-scheduler"),
                f"--kubeconfig={cell.files / 'scheduler.kubeconfig'}",
                "--leader-elect=false",
                "--bind-address=127.0.0.1",
                *_UNTHROTTLED,
            ),
        ),
        Component(
            name="kube-proxy",
            argv=(
                programs.path("kube-proxy"),
                f"--config={cell.files / 'kube-proxy.json'}",
            ),
        ),
    )


def coredns(programs: Programs, cell: CellFolder) -> Component:
    """Return the name server."""
    return Component(
        name="coredns", argv=(programs.path("coredns"), "-conf", str(cell.files / "Corefile"))
    )


def containerd(programs: Programs, node: NodeConfig, config: Path, cgroup: str) -> Component:
    """Return a node's container runtime; it finds its shim through PATH."""
    return Component(
        name=f"{node.name}-containerd",
        argv=(programs.path("containerd"), "-c", str(config)),
        cgroup=cgroup,
        path_prefix=str(programs.folder),
    )


def kubelet_root(node: NodeConfig) -> Path:
    """Return a kubelet's folder as the cell sees it: short, as it has unix sockets in it."""
    return RUN / node.name / "kubelet"


def kubelet(programs: Programs, node: NodeConfig, cell: CellFolder, cgroup: str) -> Component:
    """Return a node's kubelet."""
    return Component(
        name=f"{node.name}-kubelet",
        argv=(
            programs.path("kubelet"),
            f"--kubeconfig={cell.files / f'{node.name}.kubeconfig'}",
            f"--config={cell.files / f'{node.name}-kubelet.json'}",
            f"--hostname-override={node.name}",
            f"--node-ip={node.address}",
            f"--root-dir={kubelet_root(node)}",
        ),
        cgroup=cgroup,
    )
