"""Breaks services of the fake cluster in the ways that people ask about, and asks the verbs."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

from tests.operator.fake_cluster import POD, STATEFULSET, FakeCluster
from tests.operator.fake_operator import (
    FakeOperator,
)
from tests.operator.fake_reader import FakeReader, around

from mizzen_operator.store import ObjectRef
from mizzen_operator.support import verbs

VERBS: dict[str, Callable[..., int]] = dict(verbs.VERBS)
NO_GPU = "0/4 nodes are available: 4 Insufficient nvidia.com/gpu."


def run(
    operator: FakeOperator, verb: str, *arguments: str, reader: FakeReader | None = None
) -> int:
    reader = reader or FakeReader(operator.cluster)
    return VERBS[verb](arguments, around(reader, operator.clock))


def worker_pod(cluster: FakeCluster) -> ObjectRef:
    return next(ref for ref in cluster.refs(POD) if "-w-" in ref.name)


def stamp(operator: FakeOperator, seconds: float) -> str:
    at = operator.clock.now() + timedelta(seconds=seconds)
    return at.strftime("%Y-%m-%dT%H:%M:%SZ")


def break_pod(operator: FakeOperator, change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    """A worker pod that is not ready for some reason, seen by the operator; the pod."""
    cluster = operator.cluster
    ref = worker_pod(cluster)

    def lame(pod: dict[str, Any]) -> None:
        pod["status"]["conditions"][1]["status"] = "False"
        change(pod)

    cluster.edit(ref, lame)
    cluster.edit(
        ObjectRef(kind=STATEFULSET, namespace=ref.namespace, name=ref.name.rpartition("-")[0]),
        lambda item: item["status"].update(readyReplicas=0),
    )
    operator.run()
    found = cluster.find(ref)
    assert found is not None
    return found


def unschedulable(pod: dict[str, Any]) -> None:
    pod["spec"].pop("nodeName")
    pod["status"]["phase"] = "Pending"
    pod["status"]["containerStatuses"] = []
    pod["status"]["conditions"][0] |= {"status": "False", "message": NO_GPU}


def container(operator: FakeOperator, **facts: Any) -> Callable[[dict[str, Any]], None]:
    return lambda pod: pod["status"]["containerStatuses"][0].update(ready=False, **facts)
