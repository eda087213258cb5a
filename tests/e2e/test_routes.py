"""Routes and pools on a real API server with the definitions that their projects published.

No Gateway runs here: the tests write what controllers of Gateways write into the status.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.devcluster.api import MERGE_PATCH
from tests.devcluster.cluster import Cluster
from tests.devcluster.published import HTTP_ROUTES, INFERENCE_POOLS
from tests.e2e.definitions import published_definitions
from tests.e2e.operator_process import (
    OperatorProcess,
    account_kubeconfig,
    apply,
    condition,
    get,
    install,
    operator_writes,
    reconcile_again,
    service,
)
from tests.e2e.waiting import wait_for
from tests.operator.documents import resolved

from mizzen_operator.cluster.drift import drifted_fields
from mizzen_operator.render.objects import finished
from mizzen_operator.render.routes import route_objects
from mizzen_operator.store import ref_of

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(600)]

PARENTS = [{"name": "public", "namespace": "infra"}, {"name": "inner"}]
ROUTING: dict[str, Any] = {
    "httpRoute": {"parentRefs": PARENTS, "hostnames": ["chat.example.com"]},
    "inferencePool": {"endpointPickerRef": {"name": "picker"}},
}
WORDS = "no listener of this Gateway has a host name of the route"


@pytest.mark.parametrize(
    "routing",
    [
        ROUTING,
        {"httpRoute": {"parentRefs": [{"name": "a"}]}},
        {
            "service": {"port": 8080},
            "httpRoute": {
                "parentRefs": [
                    {"name": "a.b", "namespace": "n", "sectionName": "s.t"},
                    {"name": "a.b", "namespace": "n", "sectionName": "s"},
                    {"name": "a.b"},
                ],
                "hostnames": ["*.example.com", "a"],
                "path": "/-team/_a~/v1.2",
            },
            "inferencePool": {
                "endpointPickerRef": {"name": "picker", "port": 65535},
                "failureMode": "FailOpen",
            },
        },
    ],
    ids=["both", "least", "most"],
)
def test_the_published_schemas_take_what_is_rendered_and_add_nothing_that_seems_to_drift(
    cluster: Cluster, namespace: str, routing: dict[str, Any]
) -> None:
    with published_definitions(cluster, HTTP_ROUTES, INFERENCE_POOLS):
        for rendered in map(finished, route_objects(resolved(routing=routing))):
            rendered["metadata"]["namespace"] = namespace
            path = ref_of(rendered).kind.path(namespace=namespace)
            made = cluster.api.call("POST", f"{path}?dryRun=All&fieldValidation=Strict", rendered)
            assert drifted_fields(rendered, made) == frozenset()


@pytest.fixture
def operator(installed: Cluster, tmp_path: Path) -> Iterator[OperatorProcess]:
    """A running operator with the right to routes, whose LISTs come soon."""
    install(installed, {"replicas": 0, "gatewayApi": True})
    process = OperatorProcess(
        kubeconfig=account_kubeconfig(installed, tmp_path),
        log=tmp_path / "operator.log",
        settings={"RESYNC_SECONDS": "2"},
    )
    with process.running():
        yield process


def answer(cluster: Cluster, namespace: str, *said: tuple[dict[str, str], str, str]) -> None:
    """Write what controllers say of the route: parent, controller, and words of a refusal."""
    generation = get(cluster, "httproute", "chat", "-n", namespace)["metadata"]["generation"]
    parents = [
        {
            "parentRef": parent,
            "controllerName": controller,
            "conditions": [
                {
                    "type": "Accepted",
                    "status": "False" if words else "True",
                    "reason": "NoMatchingListenerHostname" if words else "Accepted",
                    "message": words,
                    "observedGeneration": generation,
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                }
            ],
        }
        for parent, controller, words in said
    ]
    path = f"/apis/gateway.networking.k8s.io/v1/namespaces/{namespace}/httproutes/chat/status"
    cluster.api.call("PATCH", path, {"status": {"parents": parents}}, kind=MERGE_PATCH)


def wait_for_reason(cluster: Cluster, namespace: str, reason: str) -> str:
    def told() -> dict[str, Any] | None:
        found = condition(cluster, namespace, "chat", "RoutingReady")
        return found if found.get("reason") == reason else None

    message: str = wait_for(f"RoutingReady says {reason}", told)["message"]
    return message


def test_row_13_a_route_is_as_ready_as_each_gateway_that_the_user_brought_says(
    cluster: Cluster, operator: OperatorProcess, namespace: str
) -> None:
    apply(cluster, namespace, service(routing=ROUTING))
    message = wait_for_reason(cluster, namespace, "ApiNotInstalled")
    assert "install the Gateway API, which brings gateway.networking.k8s.io/v1" in message
    assert get(cluster, "service", "chat", "-n", namespace)
    with published_definitions(cluster, HTTP_ROUTES, INFERENCE_POOLS):
        message = wait_for_reason(cluster, namespace, "GatewayPending")
        assert f"Gateway infra/public and Gateway {namespace}/inner" in message
        pool = ("inferencepool", "chat", "-n", namespace)
        wait_for("the pool is there", lambda: get(cluster, *pool))
        public, inner = PARENTS
        answer(
            cluster, namespace, (public, "example.com/ours", ""), (inner, "example.org/x", WORDS)
        )
        assert wait_for_reason(cluster, namespace, "NotAccepted") == (
            f"Gateway {namespace}/inner (example.org/x) says of HTTPRoute chat that Accepted is "
            f"False: NoMatchingListenerHostname: {WORDS}"
        )
        answer(cluster, namespace, (public, "example.com/ours", ""), (inner, "example.org/x", ""))
        message = wait_for_reason(cluster, namespace, "ServiceReady")
        assert f"accepted by Gateway infra/public, Gateway {namespace}/inner" in message
        reconcile_again(operator, cluster, namespace, times=3)
        assert of_routes(cluster, namespace) == ["create", "create"]
        apply(cluster, namespace, service())
        wait_for(
            "route and pool are gone",
            lambda: (
                not json.loads(
                    cluster.kubectl(
                        "get", "httproutes,inferencepools", "-n", namespace, "-o", "json"
                    )
                )["items"]
            ),
        )
        assert condition(cluster, namespace, "chat", "RoutingReady")["status"] == "True"


def of_routes(cluster: Cluster, namespace: str) -> list[str]:
    """The operator's writes of routes and pools."""
    return [
        event.verb
        for event in operator_writes(cluster, namespace)
        if event.resource in ("httproutes", "inferencepools")
    ]
