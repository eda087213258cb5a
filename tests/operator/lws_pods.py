"""Owns what the controller and the webhook of LeaderWorkerSet v0.8.0 make of an object: its pods.

Names, labels and variables only, as the kubelet gives them to a container. No part of that project
runs here: what it does was read from its source.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

SET = "leaderworkerset.sigs.k8s.io/name"
GROUP = "leaderworkerset.sigs.k8s.io/group-index"
INDEX = "leaderworkerset.sigs.k8s.io/worker-index"
ORDINAL = "apps.kubernetes.io/pod-index"
_REFERENCE = re.compile(r"\$(?:(\$)|\((\w+)\))")


@dataclass(frozen=True, slots=True, kw_only=True)
class LwsPod:
    """One pod; the leader is the one with index 0."""

    name: str
    group: int
    index: int
    labels: Mapping[str, str]
    variables: Mapping[str, str]
    """Of the container `mizzen`."""


def pods_of(leader_worker_set: Mapping[str, Any]) -> Iterator[LwsPod]:
    """All pods, group by group."""
    spec = leader_worker_set["spec"]
    size = spec["leaderWorkerTemplate"]["size"]
    for group in range(spec["replicas"]):
        for index in range(size):
            yield _pod(leader_worker_set, group, index)


def _pod(leader_worker_set: Mapping[str, Any], group: int, index: int) -> LwsPod:
    meta, spec = leader_worker_set["metadata"], leader_worker_set["spec"]["leaderWorkerTemplate"]
    template = spec["workerTemplate"] if index else spec.get("leaderTemplate")
    template = template or spec["workerTemplate"]
    leader = f"{meta['name']}-{group}"
    labels = {
        **template["metadata"]["labels"],
        SET: meta["name"],
        GROUP: str(group),
        INDEX: str(index),
        # Leaders are pods of one StatefulSet; the followers of each have one that begins with 1.
        ORDINAL: str(index or group),
    }
    (container,) = (c for c in template["spec"]["containers"] if c["name"] == "mizzen")
    injected = [
        {"name": "LWS_LEADER_ADDRESS", "value": f"{leader}.{meta['name']}.{meta['namespace']}"},
        {"name": "LWS_GROUP_SIZE", "value": str(spec["size"])},
        {"name": "LWS_WORKER_INDEX", "value": str(index)},
    ]
    names = {item["name"] for item in injected}
    env = [*injected, *(item for item in container["env"] if item["name"] not in names)]
    fields = {
        **{f"metadata.labels['{key}']": value for key, value in labels.items()},
        **{
            f"metadata.annotations['{key}']": value
            for key, value in template["metadata"]["annotations"].items()
        },
        "metadata.uid": f"uid-{group}-{index}",
    }
    return LwsPod(
        name=f"{leader}-{index}" if index else leader,
        group=group,
        index=index,
        labels=labels,
        variables=_variables(env, fields),
    )


def _variables(env: list[dict[str, Any]], fields: Mapping[str, str]) -> dict[str, str]:
    """As the kubelet reads them: a reference finds what stands before it, or stays as written."""
    found: dict[str, str] = {}
    for item in env:
        if "value" in item:
            found[item["name"]] = _REFERENCE.sub(
                lambda match: "$" if match[1] else found.get(match[2], match[0]), item["value"]
            )
        else:
            found[item["name"]] = fields[item["valueFrom"]["fieldRef"]["fieldPath"]]
    return found
