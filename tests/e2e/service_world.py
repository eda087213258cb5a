"""What is there of one service in a namespace, in a form that is equal for equal worlds.

What the API server chooses (UIDs, addresses, times) and the namespace's own name are left out.
"""

import json
from typing import Any

from tests.devcluster.api import ApiError
from tests.devcluster.cluster import Cluster
from tests.e2e.waiting import wait_for

from mizzen_operator.render import labels
from mizzen_operator.store import OPTIONAL_KINDS, OWNED_KINDS, SERVICE_KIND

KINDS = tuple(kind for kind in OWNED_KINDS if kind not in OPTIONAL_KINDS)
_CHOSEN = frozenset(
    {"clusterIP", "clusterIPs", "internalTrafficPolicy", "ipFamilies", "ipFamilyPolicy"}
)
_OURS = "serving.mizzen.dev/service-uid,!controller.kubernetes.io/hash"


def world(cluster: Cluster, namespace: str, name: str = "chat") -> list[Any]:
    """Every owned object, Secrets by name, and how the service's conditions stand; sorted."""
    try:
        service = cluster.api.call("GET", SERVICE_KIND.path(namespace=namespace, name=name))
    except ApiError:
        return []
    conditions = (service.get("status") or {}).get("conditions") or ()
    found = [sorted((item["type"], item["status"], item["reason"]) for item in conditions)]
    generations = {item["observedGeneration"] for item in conditions}
    found.append([generation == service["metadata"]["generation"] for generation in generations])
    objects = [
        _essence(kind.kind, item) for kind in KINDS for item in _items(cluster, kind, namespace)
    ]
    secrets = f"/api/v1/namespaces/{namespace}/secrets?labelSelector={_OURS}"
    names = [item["metadata"]["name"] for item in cluster.api.call("GET", secrets)["items"]]
    text = json.dumps([*found, *sorted(objects, key=json.dumps), sorted(names)], sort_keys=True)
    text = text.replace(service["metadata"]["uid"], "UID").replace(namespace, "NAMESPACE")
    return list(json.loads(text))


def is_world(cluster: Cluster, namespace: str, expected: list[Any]) -> bool:
    return world(cluster, namespace) == expected


def wait_for_world(what: str, cluster: Cluster, namespace: str, expected: list[Any]) -> None:
    """Wait until the world is as expected; the failure tells what there is and what is missing."""
    try:
        wait_for(what, lambda: is_world(cluster, namespace, expected))
    except AssertionError as error:
        found = world(cluster, namespace)
        surplus = [item for item in found if item not in expected]
        missing = [item for item in expected if item not in found]
        raise AssertionError(f"{error}\nsurplus: {surplus}\nmissing: {missing}") from None


def _items(cluster: Cluster, kind: Any, namespace: str) -> list[dict[str, Any]]:
    path = f"{kind.path(namespace=namespace)}?labelSelector={_OURS}"
    items: list[dict[str, Any]] = cluster.api.call("GET", path)["items"]
    return items


def _essence(kind: str, item: dict[str, Any]) -> dict[str, Any]:
    metadata = item["metadata"]
    kept = {key: metadata.get(key) for key in ("name", "labels")}
    # Kubernetes' controllers add their own in their own time; the hash is also one of the UID.
    kept["annotations"] = {
        key: value
        for key, value in metadata.get("annotations", {}).items()
        if not key.split("/")[0].endswith("kubernetes.io") and key != labels.APPLIED_HASH
    }
    owners = [owner["name"] for owner in metadata.get("ownerReferences", ())]
    spec = {key: value for key, value in item.get("spec", {}).items() if key not in _CHOSEN}
    rest = {key: item[key] for key in ("data", "revision") if key in item}
    return {"kind": kind, **kept, "owners": owners, "spec": spec, **rest}
