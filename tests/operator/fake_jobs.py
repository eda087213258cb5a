"""The volume binder, the Job controller and the kubelet of Jobs, over the API server in memory."""

import json
from typing import Any

from tests.operator.fake_cluster import KIND_BY_NAME, FakeCluster, as_sent

from mizzen_operator.errors import RefusedError
from mizzen_operator.store import CLAIM, POD, ObjectRef

JOB = KIND_BY_NAME["Job"]


class JobController:
    """Binds claims and makes pods for Jobs; a pod runs until a test ends it."""

    def __init__(self, cluster: FakeCluster, *, binds_claims: bool = True) -> None:
        self._cluster = cluster
        self._binds_claims = binds_claims

    def settle(self) -> None:
        """Let every controller do all it has to do."""
        if self._binds_claims:
            for claim in self._cluster.objects(CLAIM):
                ref = _ref(CLAIM, claim)
                if "status" not in claim and "deletionTimestamp" not in claim["metadata"]:
                    self._cluster.edit(ref, lambda item: item.update(status={"phase": "Bound"}))
        for job in self._cluster.objects(JOB):
            self._settle_one(job)

    def _settle_one(self, job: dict[str, Any]) -> None:
        if any(item["type"] in ("Complete", "Failed") for item in conditions(job)):
            return
        pods = pods_of(self._cluster, job)
        failed = [pod for pod in pods if pod["status"]["phase"] == "Failed"]
        status: dict[str, Any] = {"failed": len(failed)}
        if any(pod["status"]["phase"] == "Succeeded" for pod in pods):
            status |= {"succeeded": 1, "conditions": [_true("Complete")]}
        elif any(exit_code(pod) == 1 for pod in failed):
            message = "Container mizzen failed with exit code 1 matching FailJob rule"
            status["conditions"] = [_true("Failed", "PodFailurePolicy", message)]
        elif len(failed) > job["spec"]["backoffLimit"]:
            message = "Job has reached the specified backoff limit"
            status["conditions"] = [_true("Failed", "BackoffLimitExceeded", message)]
        elif len(failed) == len(pods):
            self._put_pod(job, len(pods))
        if job.get("status") != status:
            self._cluster.edit(_ref(JOB, job), lambda item: item.update(status=status))

    def _put_pod(self, job: dict[str, Any], number: int) -> None:
        metadata, template = job["metadata"], job["spec"]["template"]
        owner = {
            "apiVersion": job["apiVersion"],
            "kind": "Job",
            "name": metadata["name"],
            "uid": metadata["uid"],
            "controller": True,
        }
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{metadata['name']}-{number}",
                "namespace": metadata["namespace"],
                "labels": template["metadata"]["labels"],
                "creationTimestamp": f"2026-01-01T00:00:{number:02}Z",
                "ownerReferences": [owner],
            },
            "spec": {**template["spec"], "nodeName": "node0"},
            "status": {
                "phase": "Running",
                "conditions": [{"type": "PodScheduled", "status": "True"}],
                "containerStatuses": [{"name": "mizzen", "state": {"running": {}}}],
            },
        }
        try:
            self._cluster.admit(_ref(POD, pod), as_sent(pod))
        except RefusedError:
            return
        self._cluster.put(POD, pod)


def end_fetch(cluster: FakeCluster, code: int = 0, **report: Any) -> None:
    """The one pod that fetches ends with this exit code and termination message."""
    running = [
        pod
        for job in cluster.objects(JOB)
        for pod in pods_of(cluster, job)
        if pod["status"]["phase"] == "Running"
    ]
    (pod,) = running
    ended = {"exitCode": code, "message": json.dumps(report)}
    status = {
        "phase": "Failed" if code else "Succeeded",
        "containerStatuses": [{"name": "mizzen", "state": {"terminated": ended}}],
    }
    cluster.edit(_ref(POD, pod), lambda item: item.update(status=status))


def pods_of(cluster: FakeCluster, job: dict[str, Any]) -> list[dict[str, Any]]:
    uid = job["metadata"]["uid"]
    return [
        pod
        for pod in cluster.objects(POD)
        if pod["metadata"].get("ownerReferences", [{}])[0].get("uid") == uid
    ]


def conditions(job: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = job.get("status", {}).get("conditions", [])
    return found


def exit_code(pod: dict[str, Any]) -> int:
    (status,) = pod["status"]["containerStatuses"]
    code: int = status["state"]["terminated"]["exitCode"]
    return code


def _true(kind: str, reason: str = "", message: str = "") -> dict[str, str]:
    return {"type": kind, "status": "True", "reason": reason, "message": message}


def _ref(kind: Any, manifest: dict[str, Any]) -> ObjectRef:
    metadata = manifest["metadata"]
    return ObjectRef(kind=kind, namespace=metadata["namespace"], name=metadata["name"])
