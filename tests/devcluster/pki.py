"""Owns a cell's certificates: one authority made for it, thrown away with it.

Made with the openssl program, so that nothing needs to be installed first. Not here: what a
kubeconfig says (component_files.py).
"""

import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.devcluster.config import GATEWAY, KUBERNETES_SERVICE, NodeConfig

_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-noenc")
_DAYS = "30"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A certificate to be issued: who it names, and the addresses it serves on."""

    file: str
    user: str
    groups: tuple[str, ...] = ()
    names: tuple[str, ...] = ()


def identities(nodes: tuple[NodeConfig, ...]) -> tuple[Identity, ...]:
    """Return every identity of a cell; the users are those that Kubernetes' own roles name."""
    return (
        Identity(
            file="apiserver",
            user="kube-apiserver",
            names=(
                f"IP:{GATEWAY}",
                f"IP:{KUBERNETES_SERVICE}",
                "IP:127.0.0.1",
                "DNS:localhost",
                "DNS:kubernetes.default.svc",
                "DNS:kubernetes.default.svc.cluster.local",
            ),
        ),
        Identity(file="admin", user="mizzen-admin", groups=("system:masters",)),
        Identity(file="kubelet-client", user="kube-apiserver", groups=("system:masters",)),
        Identity(file="front-proxy", user="front-proxy"),
        Identity(file="controller-manager", user="system:kube-controller-manager"),
        Identity(file="scheduler", user="system:kube-scheduler"),
        Identity(file="proxy", user="system:kube-proxy"),
        Identity(file="coredns", user="system:coredns"),
        *(
            Identity(
                file=node.name,
                user=f"system:node:{node.name}",
                groups=("system:nodes",),
                names=(f"IP:{node.address}", f"DNS:{node.name}"),
            )
            for node in nodes
        ),
    )


def make_pki(folder: Path, nodes: tuple[NodeConfig, ...]) -> None:
    """Fill a folder with ca.crt, sa.key, sa.pub and a .crt and .key for each identity."""
    folder.mkdir(mode=0o700, parents=True)
    # The machine's own openssl.cnf would add extensions of its own.
    (folder / "openssl.cnf").write_text("[req]\ndistinguished_name = dn\n[dn]\n")
    _openssl(
        *("req", "-x509", *_CURVE, "-keyout", "ca.key", "-out", "ca.crt", "-days", _DAYS),
        *("-subj", "/CN=mizzen-devcluster", "-config", "openssl.cnf"),
        *("-addext", "basicConstraints=critical,CA:TRUE"),
        *("-addext", "keyUsage=critical,keyCertSign,cRLSign"),
        folder=folder,
    )
    _openssl("genrsa", "-out", "sa.key", "2048", folder=folder)
    _openssl("rsa", "-in", "sa.key", "-pubout", "-out", "sa.pub", folder=folder)
    for identity in identities(nodes):
        _issue(folder, identity)


def _issue(folder: Path, identity: Identity) -> None:
    subject = "".join(f"/O={group}" for group in identity.groups) + f"/CN={identity.user}"
    names = ("-addext", f"subjectAltName={','.join(identity.names)}") if identity.names else ()
    _openssl(
        *("req", "-x509", *_CURVE, "-CA", "ca.crt", "-CAkey", "ca.key", "-days", _DAYS),
        *("-keyout", f"{identity.file}.key", "-out", f"{identity.file}.crt", "-subj", subject),
        *("-config", "openssl.cnf"),
        *("-addext", "basicConstraints=critical,CA:FALSE"),
        *("-addext", "keyUsage=critical,digitalSignature,keyEncipherment"),
        *("-addext", "extendedKeyUsage=serverAuth,clientAuth", *names),
        folder=folder,
    )


def _openssl(*arguments: str, folder: Path) -> None:
    subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True, text=True)
