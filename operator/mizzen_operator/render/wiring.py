"""Owns the proof, before any pod is made, that the ranks of a rendered group will find each other.

Reads the rendered objects as Kubernetes and the worker will, not what they were rendered from:
which ranks each pod runs, where the leader is, which connections the policies allow. Does not own
rendering. What it finds is a fault of the operator, for admission lets through no spec that cannot
be wired.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import permutations, product
from typing import Any

from mizzen_operator.render import labels
from mizzen_operator.render.reachability import Labels, allows
from mizzen_operator.worker_contract import (
    CONTAINER,
    DEVICE_GPU,
    ENV_LEADER_ADDRESS,
    ENV_NODE_COUNT,
    ENV_NODE_RANK,
    FLAG_CURVE_DIR,
    FLAG_DATA_PARALLEL,
    FLAG_DEVICE,
    FLAG_PIPELINE_PARALLEL,
    FLAG_RANK_PORT,
    FLAG_TENSOR_PARALLEL,
    PORT_RANKS,
    PORT_WORKER,
)

Object = Mapping[str, Any]
COLLECTIVE_PORT = 40_000
"""Stands for the ports that the system chooses for collectives."""
_LABEL_FIELD = "metadata.labels['"


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPod:
    """One pod of a group, as the worker in it will see itself."""

    name: str
    labels: Mapping[str, str]
    """With those that the StatefulSet controller adds."""
    ranks: range
    """Ranks of each tensor parallel group that it runs."""
    num_nodes: int
    """Pods that it believes its group to have."""
    leader: str
    """Where it looks for rank 0: host:port."""


def rank_pods(stateful_set: Object) -> tuple[RankPod, ...]:
    """The pods that a rendered StatefulSet leads to, in the order of their index."""
    name, spec = stateful_set["metadata"]["name"], stateful_set["spec"]
    container = _container(stateful_set)
    size = int(_flag(container, FLAG_TENSOR_PARALLEL, "1"))
    port = _flag(container, FLAG_RANK_PORT, str(PORT_RANKS))
    pods = []
    for index in range(spec["replicas"]):
        own = {**spec["template"]["metadata"]["labels"], labels.POD_INDEX: str(index)}
        num_nodes = int(_variable(container, ENV_NODE_COUNT, own))
        node_rank = int(_variable(container, ENV_NODE_RANK, own))
        per_node = size // num_nodes
        pods.append(
            RankPod(
                name=f"{name}-{index}",
                labels=own,
                ranks=range(node_rank * per_node, (node_rank + 1) * per_node),
                num_nodes=num_nodes,
                leader=f"{_variable(container, ENV_LEADER_ADDRESS, own)}:{port}",
            )
        )
    return tuple(pods)


def wiring_faults(objects: Sequence[Object], gpu_resource: str) -> list[str]:
    """What would keep the groups among ``objects`` from working, in words; empty if nothing.

    ``objects`` hold the Services and policies too.
    """
    groups = [
        obj
        for obj in objects
        if obj["kind"] == "StatefulSet"
        and obj["metadata"]["labels"][labels.ROLE] == labels.ROLE_WORKER
    ]
    found = (
        *(fault for group in groups for fault in _rank_faults(group)),
        *(fault for group in groups for fault in _gpu_faults(group, gpu_resource)),
        *(fault for group in groups if _num_pods(group) > 1 for fault in _meeting(group, objects)),
        *_policy_faults(groups, objects),
    )
    return list(found)


def _rank_faults(group: Object) -> Iterator[str]:
    name, pods = group["metadata"]["name"], rank_pods(group)
    size = int(_flag(_container(group), FLAG_TENSOR_PARALLEL, "1"))
    ranks = [rank for pod in pods for rank in pod.ranks]
    if {pod.num_nodes for pod in pods} != {len(pods)}:
        told = ", ".join(str(pod.num_nodes) for pod in pods)
        yield f"{name} has {len(pods)} pods, which are told that there are {told}"
    if sorted(ranks) != list(range(size)):
        yield f"the pods of {name} run ranks {ranks} and not each of 0 to {size - 1} once"
    if 0 not in pods[0].ranks:
        yield f"rank 0 of {name} is not in its first pod, to which its leader's name leads"
    if len(pods) > 1 and group["spec"]["podManagementPolicy"] != "Parallel":
        yield f"the pods of {name} are made one after the other, and each waits for all of them"


def _gpu_faults(group: Object, gpu_resource: str) -> Iterator[str]:
    container = _container(group)
    sizes = (FLAG_TENSOR_PARALLEL, FLAG_PIPELINE_PARALLEL, FLAG_DATA_PARALLEL)
    num_ranks = 1
    for flag in sizes:
        num_ranks *= int(_flag(container, flag, "1"))
    per_pod = int(container["resources"].get("limits", {}).get(gpu_resource, 0))
    is_on_gpus = _flag(container, FLAG_DEVICE, "") == DEVICE_GPU
    if per_pod * _num_pods(group) != (num_ranks if is_on_gpus else 0):
        yield (
            f"{group['metadata']['name']} has {_num_pods(group)} pods with {per_pod} GPUs each, and"
            f" {num_ranks} ranks on {'GPUs' if is_on_gpus else 'the CPU'}"
        )


def _meeting(group: Object, objects: Iterable[Object]) -> Iterator[str]:
    """Whether the leader's name, as every rank knows it, leads to pod 0 and its port."""
    meta, spec, container = group["metadata"], group["spec"], _container(group)
    name, port = meta["name"], int(_flag(container, FLAG_RANK_PORT, str(PORT_RANKS)))
    wanted = f"{name}-0.{spec['serviceName']}.{meta['namespace']}.svc:{port}"
    pods = rank_pods(group)
    if strays := sorted({pod.leader for pod in pods} - {wanted}):
        yield f"ranks of {name} look for their leader at {', '.join(strays)} and not at {wanted}"
    if not _flag(container, FLAG_CURVE_DIR, ""):
        yield f"ranks of {name} have no keys to prove themselves with"
    service = next(
        (
            obj["spec"]
            for obj in objects
            if obj["kind"] == "Service" and obj["metadata"]["name"] == spec["serviceName"]
        ),
        None,
    )
    if service is None:
        yield f"{name} gives its pods names in Service {spec['serviceName']}, which does not exist"
        return
    if service.get("clusterIP") != "None" or not service.get("publishNotReadyAddresses"):
        yield f"Service {spec['serviceName']} names pods of {name} only when they are ready"
    if not all(service["selector"].items() <= pod.labels.items() for pod in pods):
        yield f"Service {spec['serviceName']} does not select all pods of {name}"
    number_of = {item["name"]: item["containerPort"] for item in container["ports"]}
    leads_to = {item["port"]: number_of.get(item["targetPort"]) for item in service["ports"]}
    if leads_to.get(port) != port:
        yield f"Service {spec['serviceName']} does not lead to port {port} of the pods of {name}"


def _policy_faults(groups: Sequence[Object], objects: Iterable[Object]) -> Iterator[str]:
    """Whether the policies allow all connections that are needed, and no other to ranks."""
    of_kind: dict[str, list[Object]] = {"NetworkPolicy": [], "Deployment": []}
    for obj in objects:
        of_kind.setdefault(obj["kind"], []).append(obj)
    policies = of_kind["NetworkPolicy"]
    tokenizers = [obj["spec"]["template"]["metadata"]["labels"] for obj in of_kind["Deployment"]]
    members = {group["metadata"]["name"]: _distinct(rank_pods(group)) for group in groups}
    for name, pods in members.items():
        others = [pod.labels for other in members.keys() - {name} for pod in members[other][:2]]
        yield from _shut_edges(policies, pods, tokenizers)
        if policies:
            yield from _open_edges(policies, pods, [*tokenizers, *others, {}])


def _shut_edges(
    policies: Sequence[Object], pods: Sequence[RankPod], tokenizers: Iterable[Labels]
) -> Iterator[str]:
    for one, pod in permutations(pods, 2):
        for port in (PORT_RANKS, COLLECTIVE_PORT):
            if not allows(policies, one.labels, pod.labels, port):
                yield f"policies keep {one.name} from port {port} of {pod.name}"
    for source in tokenizers:
        if not allows(policies, source, pods[0].labels, PORT_WORKER):
            yield f"policies keep tokenizers from port {PORT_WORKER} of {pods[0].name}"


def _open_edges(
    policies: Sequence[Object], pods: Sequence[RankPod], sources: Iterable[Labels]
) -> Iterator[str]:
    for source, pod in product(sources, pods):
        closed = (PORT_RANKS, COLLECTIVE_PORT, *(() if pod is pods[0] else (PORT_WORKER,)))
        found = [port for port in closed if allows(policies, source, pod.labels, port)]
        if found:
            who = source.get(labels.ROLE, "a pod of somebody else")
            yield f"policies let {who} reach ports {found} of {pod.name}"


def _distinct(pods: Sequence[RankPod]) -> Sequence[RankPod]:
    """Pods that policies could tell apart: those after the second differ in their index alone."""
    return (*pods[:2], *pods[2:][-1:])


def _num_pods(group: Object) -> int:
    return int(group["spec"]["replicas"])


def _container(group: Object) -> Object:
    containers = group["spec"]["template"]["spec"]["containers"]
    return dict(next(item for item in containers if item["name"] == CONTAINER))


def _flag(container: Object, flag: str, default: str) -> str:
    """The value that the worker takes: the last one."""
    args = container["args"]
    values = [args[at + 1] for at, text in enumerate(args[:-1]) if text == flag]
    return str(values[-1]) if values else default


def _variable(container: Object, name: str, own: Mapping[str, str]) -> str:
    """What the kubelet puts into a variable of a pod with these labels."""
    (item,) = (item for item in container["env"] if item["name"] == name)
    if "value" in item:
        return str(item["value"])
    field = item["valueFrom"]["fieldRef"]["fieldPath"]
    return own[field.removeprefix(_LABEL_FIELD).removesuffix("']")]
