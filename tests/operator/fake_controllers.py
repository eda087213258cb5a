"""The Deployment and StatefulSet controllers and the kubelet, over the API server in memory."""

from typing import Any

from tests.operator.fake_cluster import DEPLOYMENT, FOREGROUND, STATEFULSET, FakeCluster, as_sent
from tests.operator.fake_jobs import JobController

from mizzen_operator.errors import RefusedError
from mizzen_operator.spec.revision import canonical_hash
from mizzen_operator.store import CONTROLLER_REVISION, POD, ObjectRef, ResourceKind, ref_of


def revision_of(workload: dict[str, Any]) -> str:
    """The controller's name for the template."""
    return canonical_hash(workload["spec"]["template"])[:10]


class Controllers:
    """Brings Deployments and StatefulSets to life: pods that are admitted exist and are ready.

    What is deleted in the foreground ends after its pods: at once, unless ``pods_drain``.
    """

    def __init__(self, cluster: FakeCluster) -> None:
        self._cluster = cluster
        self.pods_drain = False
        self.binds_claims = True

    def settle(self) -> None:
        """Let every controller do all it has to do."""
        JobController(self._cluster, binds_claims=self.binds_claims).settle()
        for kind in (DEPLOYMENT, STATEFULSET):
            for workload in self._cluster.objects(kind):
                metadata = workload["metadata"]
                if FOREGROUND not in metadata.get("finalizers", ()):
                    self._settle_one(kind, workload)
                elif not self.pods_drain and not self._has_lost_pods(metadata["uid"]):
                    ref = ObjectRef(
                        kind=kind, namespace=metadata["namespace"], name=metadata["name"]
                    )
                    self._cluster.remove(ref)

    def _has_lost_pods(self, uid: str) -> bool:
        """Whether pods of what is being deleted stay; their end is begun, as by the collector."""
        lost = [
            pod
            for pod in self._cluster.objects(POD)
            if pod["metadata"]["ownerReferences"][0]["uid"] == uid
            and pod["spec"].get("nodeName") in self._cluster.lost_nodes
        ]
        for pod in lost:
            self._cluster.end_pod(ref_of(pod))
        return bool(lost)

    def _settle_one(self, kind: ResourceKind, workload: dict[str, Any]) -> None:
        metadata = workload["metadata"]
        replicas = workload["spec"].get("replicas", 1)
        made = sum(self._put_pod(workload, index) for index in range(replicas))
        if kind == STATEFULSET:
            self._put_history(workload)
        ref = ObjectRef(kind=kind, namespace=metadata["namespace"], name=metadata["name"])
        status = {
            "observedGeneration": metadata["generation"],
            "replicas": made,
            "readyReplicas": made,
            "updatedReplicas": made,
            "availableReplicas": made,
            "currentRevision": revision_of(workload),
            "updateRevision": revision_of(workload),
            "conditions": [{"type": "Available", "status": "True"}],
        }
        self._cluster.edit(ref, lambda manifest: manifest.update(status=status))

    def _put_history(self, workload: dict[str, Any]) -> None:
        """The controller's own record of the template, with the labels of its pods."""
        metadata, template = workload["metadata"], workload["spec"]["template"]
        revision = revision_of(workload)
        owner = {
            "apiVersion": workload["apiVersion"],
            "kind": workload["kind"],
            "name": metadata["name"],
            "uid": metadata["uid"],
            "controller": True,
        }
        self._cluster.put(
            CONTROLLER_REVISION,
            {
                "apiVersion": "apps/v1",
                "kind": "ControllerRevision",
                "metadata": {
                    "name": f"{metadata['name']}-{revision}",
                    "namespace": metadata["namespace"],
                    "labels": {
                        **template["metadata"]["labels"],
                        "controller.kubernetes.io/hash": revision,
                    },
                    "ownerReferences": [owner],
                },
                "data": {"spec": {"template": template}},
                "revision": 1,
            },
        )

    def _put_pod(self, workload: dict[str, Any], index: int) -> bool:
        """Whether the pod exists afterwards: a controller tries one that is refused again."""
        pod = self._pod_of(workload, index)
        name = pod["metadata"]["name"]
        ref = ObjectRef(kind=POD, namespace=pod["metadata"]["namespace"], name=name)
        found = self._cluster.find(ref)
        if found is not None and workload["kind"] == STATEFULSET.kind:
            # OnDelete: what is there stays as it was made.
            return "deletionTimestamp" not in found["metadata"]
        if found is None:
            try:
                self._cluster.admit(ref, as_sent(pod))
            except RefusedError:
                return False
        self._cluster.put(POD, pod)
        return True

    def _pod_of(self, workload: dict[str, Any], index: int) -> dict[str, Any]:
        metadata, template = workload["metadata"], workload["spec"]["template"]
        labels = {
            **template["metadata"]["labels"],
            "apps.kubernetes.io/pod-index": str(index),
            "controller-revision-hash": revision_of(workload),
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{metadata['name']}-{index}",
                "namespace": metadata["namespace"],
                "labels": labels,
                "annotations": template["metadata"].get("annotations", {}),
                "ownerReferences": [
                    {
                        "apiVersion": workload["apiVersion"],
                        "kind": workload["kind"],
                        "name": metadata["name"],
                        "uid": metadata["uid"],
                        "controller": True,
                    }
                ],
            },
            "spec": {**template["spec"], "nodeName": "node0"},
            "status": {
                "phase": "Running",
                "conditions": [
                    {"type": "PodScheduled", "status": "True"},
                    {"type": "Ready", "status": "True"},
                ],
                "containerStatuses": [
                    {"name": "mizzen", "ready": True, "restartCount": 0, "state": {"running": {}}}
                ],
            },
        }
