"""Owns the StatefulSet of one worker group, in topologies Unified and Split.

Does not own how many groups there are (``planner``), their lives (``group_life``) nor their
Services (``services``). Invariant: a
group's StatefulSet has one replica per node and is never resized; its pod template depends only on
what is in the revision hash.
"""

from typing import Any

from mizzen_operator.render import labels, pod
from mizzen_operator.render.names import group_name, rank_service_name
from mizzen_operator.render.objects import metadata
from mizzen_operator.render.pod_template import with_pod_template
from mizzen_operator.render.worker_args import unified_args, worker_args
from mizzen_operator.spec.model import Topology
from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.worker_contract import (
    CURVE_CLIENT_PUBLIC,
    CURVE_SERVER_PUBLIC,
    CURVE_SERVER_SECRET,
    DRAIN_FINISH,
    DRAIN_HANDBACK,
    ENV_COHORT,
    ENV_GROUP_EPOCH,
    ENV_GROUP_ID,
    ENV_INSTANCE_ID,
    ENV_LEADER_ADDRESS,
    ENV_NODE_COUNT,
    ENV_NODE_RANK,
    ENV_ROLE,
    PORT_HTTP,
    PORT_RANKS,
    PORT_WORKER,
    VERB_UNIFIED,
    VERB_WORKER,
)

ROLE_UNIFIED = "unified"
FIRST_EPOCH = "0"
DEFAULT_REQUESTS = {"cpu": "1", "memory": "2Gi"}
KEY_FILES = (CURVE_SERVER_SECRET, CURVE_SERVER_PUBLIC, CURVE_CLIENT_PUBLIC)


def worker_group(resolved: Resolved, index: int) -> dict[str, Any]:
    """The StatefulSet of group ``index`` at the wanted revision, in its first life."""
    name = group_name(resolved, index)
    own = {
        labels.REVISION: resolved.revision,
        labels.COHORT: resolved.cohort,
        **labels.of_keys(resolved.key_generation),
        labels.GROUP_INDEX: str(index),
    }
    selector = labels.group_selector(resolved, index)
    template = {
        "metadata": {
            "labels": {**labels.common(resolved, labels.ROLE_WORKER), **own},
            "annotations": {labels.EPOCH: FIRST_EPOCH},
        },
        "spec": {
            **pod.pod_spec(resolved, _container(resolved, name)),
            **_apart(resolved, selector),
        },
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": metadata(resolved, name, role=labels.ROLE_WORKER, extra_labels=own),
        "spec": {
            "replicas": resolved.nodes,
            "serviceName": rank_service_name(resolved, resolved.revision),
            "podManagementPolicy": "Parallel",
            "updateStrategy": {"type": "OnDelete"},
            "selector": {"matchLabels": selector},
            "template": with_pod_template(template, resolved.spec.worker.pod_template),
        },
    }


def _apart(resolved: Resolved, group: dict[str, str]) -> dict[str, Any]:
    """Pods of one group on nodes of their own: with GPUs by all means, else where it can be."""
    if resolved.nodes == 1:
        return {}
    term = {"labelSelector": {"matchLabels": group}, "topologyKey": "kubernetes.io/hostname"}
    return {
        "affinity": {
            "podAntiAffinity": (
                {"requiredDuringSchedulingIgnoredDuringExecution": [term]}
                if resolved.spec.worker.gpu.count_per_node
                else {
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {"weight": 100, "podAffinityTerm": term}
                    ]
                }
            )
        }
    }


def _container(resolved: Resolved, name: str) -> pod.Container:
    is_unified = resolved.spec.topology is Topology.UNIFIED
    pairs = _volumes(resolved, is_unified=is_unified)
    serving = (
        pod.port(pod.PORT_NAME_HTTP, PORT_HTTP)
        if is_unified
        else pod.port(pod.PORT_NAME_WORKER, PORT_WORKER)
    )
    # One template for all ranks: of a follower only the admin port is ever opened, and its probes
    # and its drain speak of what it does for its leader.
    meeting = (pod.port(pod.PORT_NAME_RANKS, PORT_RANKS),) if resolved.nodes > 1 else ()
    worker = resolved.spec.worker
    gpu = (
        {worker.gpu.resource_name: str(worker.gpu.count_per_node)}
        if worker.gpu.count_per_node
        else {}
    )
    return pod.Container(
        image=resolved.worker_image,
        verb=VERB_UNIFIED if is_unified else VERB_WORKER,
        drain_mode=DRAIN_FINISH if is_unified else DRAIN_HANDBACK,
        args=unified_args(resolved) if is_unified else worker_args(resolved),
        env=_env(resolved, name),
        ports=(serving, *meeting, pod.admin_port()),
        resources=pod.container_resources(worker.resources, DEFAULT_REQUESTS, gpu),
        volumes=tuple(volume for volume, _ in pairs),
        mounts=tuple(mount for _, mount in pairs),
    )


def _env(resolved: Resolved, name: str) -> tuple[dict[str, Any], ...]:
    ranks = f"{rank_service_name(resolved, resolved.revision)}.{resolved.namespace}.svc"
    is_unified = resolved.spec.topology is Topology.UNIFIED
    own = (
        pod.value_env(ENV_ROLE, ROLE_UNIFIED if is_unified else labels.ROLE_WORKER),
        pod.value_env(ENV_NODE_COUNT, str(resolved.nodes)),
        pod.field_env(ENV_NODE_RANK, f"metadata.labels['{labels.POD_INDEX}']"),
        pod.value_env(ENV_LEADER_ADDRESS, f"{name}-0.{ranks}"),
        pod.value_env(ENV_GROUP_ID, name),
        pod.field_env(ENV_GROUP_EPOCH, f"metadata.annotations['{labels.EPOCH}']"),
        pod.field_env(ENV_INSTANCE_ID, "metadata.uid"),
        pod.value_env(ENV_COHORT, resolved.cohort),
        pod.value_env("HOME", pod.DIR_CACHE),
        pod.value_env("XDG_CACHE_HOME", pod.DIR_CACHE),
        pod.value_env("TRITON_CACHE_DIR", f"{pod.DIR_CACHE}/triton"),
        pod.value_env("TORCHINDUCTOR_CACHE_DIR", f"{pod.DIR_CACHE}/inductor"),
    )
    given = [pod.value_env(item.name, item.value) for item in resolved.spec.engine.env]
    # A name given twice could be created, but never applied again: the user's wins.
    names = {item["name"] for item in given}
    return (*(item for item in own if item["name"] not in names), *given)


def _volumes(
    resolved: Resolved, *, is_unified: bool
) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    pairs = [
        pod.weights_volume(resolved),
        pod.scratch_volume("tmp", "/tmp", "1Gi"),
        pod.scratch_volume("cache", pod.DIR_CACHE, "8Gi"),
    ]
    if resolved.spec.worker.gpu.count_per_node > 1:
        pairs.append(pod.scratch_volume("shm", "/dev/shm", "8Gi", in_memory=True))
    if not is_unified:
        pairs.append(pod.keys_volume(resolved, KEY_FILES))
    return pairs
