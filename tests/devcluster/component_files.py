"""Owns what the configuration files of the cell's components say; pure: values in, text out.

JSON is written where a component reads YAML: it is the same to them. Not here: command lines
(components.py), where files lie (folders.py).
"""

import base64
import json
from pathlib import Path
from typing import Any

from tests.devcluster.config import DNS_SERVICE, GATEWAY, NETWORK, SERVICE_NETWORK, NodeConfig

PAUSE_IMAGE = "localhost/mizzen-pause:1"
CNI_FOLDER = "/usr/lib/cni"


def kubeconfig(*, server: str, ca: bytes, certificate: bytes, key: bytes, cluster: str) -> str:
    """Return a kubeconfig that carries its certificates and verifies the server's."""

    def encoded(data: bytes) -> str:
        return base64.b64encode(data).decode()

    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [
                {
                    "name": cluster,
                    "cluster": {"server": server, "certificate-authority-data": encoded(ca)},
                }
            ],
            "users": [
                {
                    "name": cluster,
                    "user": {
                        "client-certificate-data": encoded(certificate),
                        "client-key-data": encoded(key),
                    },
                }
            ],
            "contexts": [{"name": cluster, "context": {"cluster": cluster, "user": cluster}}],
            "current-context": cluster,
        },
        indent=1,
    )


def audit_policy() -> str:
    """Return the audit policy: every write by its metadata; no reads, Events or Leases."""
    return json.dumps(
        {
            "apiVersion": "audit.k8s.io/v1",
            "kind": "Policy",
            "omitStages": ["RequestReceived"],
            "rules": [
                {"level": "None", "verbs": ["get", "list", "watch"]},
                {
                    "level": "None",
                    "resources": [
                        {"group": "", "resources": ["events"]},
                        {"group": "events.k8s.io", "resources": ["events"]},
                        {"group": "coordination.k8s.io", "resources": ["leases"]},
                    ],
                },
                {"level": "Metadata"},
            ],
        }
    )


def corefile(kubeconfig_path: Path) -> str:
    """Return CoreDNS's configuration: names of the cluster, nothing else, nothing forwarded."""
    return f""".:53 {{
    bind {GATEWAY}
    errors
    ready 127.0.0.1:8181
    kubernetes cluster.local in-addr.arpa {{
        kubeconfig "{kubeconfig_path}" coredns
        endpoint_pod_names
        ttl 5
    }}
}}
"""


def kube_proxy_config(kubeconfig_path: Path) -> str:
    """Return kube-proxy's configuration; one serves all nodes, they share the cell's network."""
    return json.dumps(
        {
            "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
            "kind": "KubeProxyConfiguration",
            "clientConnection": {"kubeconfig": str(kubeconfig_path)},
            "mode": "nftables",
            "nftables": {"minSyncPeriod": "50ms"},
            "clusterCIDR": NETWORK,
            "hostnameOverride": "node0",
            "conntrack": {
                "maxPerCore": 0,
                "tcpEstablishedTimeout": "0s",
                "tcpCloseWaitTimeout": "0s",
            },
            "healthzBindAddress": "127.0.0.1:10256",
            "metricsBindAddress": "127.0.0.1:10249",
        }
    )


def cni_network(node: NodeConfig, ipam_folder: Path) -> str:
    """Return a node's pod network: a routed link per pod, routes into the cell, no default."""
    return json.dumps(
        {
            "cniVersion": "0.4.0",
            "name": "mizzen",
            "plugins": [
                {
                    "type": "ptp",
                    "ipam": {
                        "type": "host-local",
                        "dataDir": str(ipam_folder),
                        "ranges": [[{"subnet": node.pod_network}]],
                        "routes": [{"dst": NETWORK}, {"dst": SERVICE_NETWORK}],
                    },
                }
            ],
        }
    )


def containerd_config(*, store: Path, run: Path, cni: Path) -> str:
    """Return a node's container runtime: images in the store, all the rest below run."""
    return f"""version = 3
root = "{store}"
state = "{run}/state"
disabled_plugins = [
  "io.containerd.nri.v1.nri", "io.containerd.snapshotter.v1.erofs",
  "io.containerd.snapshotter.v1.blockfile",
]
[grpc]
  address = "{run}/containerd.sock"
[ttrpc]
  address = "{run}/containerd.ttrpc.sock"
[plugins.'io.containerd.internal.v1.opt']
  path = "{run}/opt"
[plugins.'io.containerd.cri.v1.runtime']
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = ["{CNI_FOLDER}"]
    conf_dir = "{cni}"
  [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
[plugins.'io.containerd.cri.v1.images'.pinned_images]
  sandbox = "{PAUSE_IMAGE}"
"""


def kubelet_config(*, node: NodeConfig, socket: Path, pki: Path, root: Path, cgroup: str) -> str:
    """Return a kubelet's configuration; a lost node is noticed after about ten seconds."""
    return json.dumps(
        {
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "address": node.address,
            "healthzBindAddress": node.address,
            "tlsCertFile": str(pki / f"{node.name}.crt"),
            "tlsPrivateKeyFile": str(pki / f"{node.name}.key"),
            "authentication": {
                "anonymous": {"enabled": False},
                "webhook": {"enabled": True},
                "x509": {"clientCAFile": str(pki / "ca.crt")},
            },
            "authorization": {"mode": "Webhook"},
            "containerRuntimeEndpoint": f"unix://{socket}",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": cgroup,
            "enforceNodeAllocatable": [],
            "failCgroupV1": False,
            "failSwapOn": False,
            "makeIPTablesUtilChains": False,
            "podLogsDir": str(root / "pod-logs"),
            "volumePluginDir": str(root / "volume-plugins"),
            "evictionHard": {
                "imagefs.available": "0%",
                "nodefs.available": "0%",
                "memory.available": "10Mi",
            },
            "imageGCHighThresholdPercent": 100,
            "nodeLeaseDurationSeconds": 8,
            "nodeStatusUpdateFrequency": "4s",
            "clusterDNS": [DNS_SERVICE],
            "clusterDomain": "cluster.local",
            "resolvConf": "",
        },
        indent=1,
    )


def dns_objects() -> tuple[tuple[str, dict[str, Any]], ...]:
    """Return what makes CoreDNS the cluster's name server: (collection, object) in order."""
    rbac = "/apis/rbac.authorization.k8s.io/v1"
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "coredns"}
    port = {"name": "dns", "protocol": "UDP", "port": 53}
    port_tcp = {"name": "dns-tcp", "protocol": "TCP", "port": 53}
    read = ["get", "list", "watch"]
    return (
        (
            f"{rbac}/clusterroles",
            {
                "metadata": {"name": "coredns"},
                "rules": [
                    {"apiGroups": [""], "resources": ["services", "namespaces"], "verbs": read},
                    {
                        "apiGroups": ["discovery.k8s.io"],
                        "resources": ["endpointslices"],
                        "verbs": read,
                    },
                ],
            },
        ),
        (
            f"{rbac}/clusterrolebindings",
            {
                "metadata": {"name": "coredns"},
                "roleRef": role,
                "subjects": [
                    {
                        "kind": "User",
                        "apiGroup": "rbac.authorization.k8s.io",
                        "name": "system:coredns",
                    }
                ],
            },
        ),
        (
            "/api/v1/namespaces/kube-system/services",
            {
                "metadata": {"name": "kube-dns"},
                "spec": {"clusterIP": DNS_SERVICE, "ports": [port, port_tcp]},
            },
        ),
        (
            "/apis/discovery.k8s.io/v1/namespaces/kube-system/endpointslices",
            {
                "metadata": {
                    "name": "kube-dns",
                    "labels": {"kubernetes.io/service-name": "kube-dns"},
                },
                "addressType": "IPv4",
                "endpoints": [{"addresses": [GATEWAY], "conditions": {"ready": True}}],
                "ports": [port, port_tcp],
            },
        ),
    )
