"""Routes and pools: only what is asked for, by the ports and pods of the Service, without cuts."""

from typing import Any

import pytest
from tests.operator.documents import resolved

from mizzen_operator.errors import SpecError
from mizzen_operator.render.routes import asked_routes, route_objects
from mizzen_operator.render.services import public_service
from mizzen_operator.worker_contract import PORT_HTTP

PARENTS = [{"name": "public"}]
PICKER = {"endpointPickerRef": {"name": "picker"}}
SPLIT = {"topology": "Split"}


def made(**routing: Any) -> dict[str, dict[str, Any]]:
    return {obj["kind"]: obj["spec"] for obj in route_objects(resolved(routing=routing))}


def test_nothing_is_made_unasked() -> None:
    assert route_objects(resolved()) == []
    assert asked_routes(resolved()) == {}


def test_each_field_asks_for_one_object() -> None:
    assert set(made(httpRoute={"parentRefs": PARENTS})) == {"HTTPRoute"}
    assert set(made(inferencePool=PICKER)) == {"InferencePool"}
    both = {"httpRoute": {"parentRefs": PARENTS}, "inferencePool": PICKER}
    assert asked_routes(resolved(routing=both)) == {
        "HTTPRoute": "spec.routing.httpRoute",
        "InferencePool": "spec.routing.inferencePool",
    }


def test_a_route_leads_to_the_port_of_the_service_and_never_ends_a_stream() -> None:
    (rule,) = made(service={"port": 8080}, httpRoute={"parentRefs": PARENTS})["HTTPRoute"]["rules"]
    (backend,) = rule["backendRefs"]
    assert (backend["kind"], backend["name"], backend["port"]) == ("Service", "demo", 8080)
    assert rule["timeouts"] == {"request": "0s"}
    assert "filters" not in rule


def test_a_path_is_taken_away_before_the_service() -> None:
    (rule,) = made(httpRoute={"parentRefs": PARENTS, "path": "/a/b"})["HTTPRoute"]["rules"]
    assert rule["matches"] == [{"path": {"type": "PathPrefix", "value": "/a/b"}}]
    (rewrite,) = rule["filters"]
    assert rewrite["urlRewrite"]["path"] == {
        "type": "ReplacePrefixMatch",
        "replacePrefixMatch": "/",
    }


@pytest.mark.parametrize("spec", [{}, SPLIT], ids=["unified", "split"])
def test_a_pool_holds_the_pods_behind_the_service(spec: dict[str, Any]) -> None:
    service = resolved(routing={"inferencePool": PICKER}, **spec)
    (pool,) = route_objects(service)
    assert pool["spec"]["selector"] == {"matchLabels": public_service(service)["spec"]["selector"]}
    assert pool["spec"]["targetPorts"] == [{"number": PORT_HTTP}]
    assert pool["spec"]["endpointPickerRef"] == {
        "group": "",
        "kind": "Service",
        "name": "picker",
        "port": {"number": 9002},
        "failureMode": "FailClose",
    }


@pytest.mark.parametrize(
    "route",
    [
        {"parentRefs": []},
        {"parentRefs": [{"name": str(index)} for index in range(5)]},
        {"parentRefs": [{"name": "A"}]},
        {"parentRefs": [{"name": "a", "namespace": "a.b"}]},
        {"parentRefs": PARENTS, "hostnames": ["*"]},
        {"parentRefs": PARENTS, "hostnames": ["a.*.b"]},
        {"parentRefs": PARENTS, "path": "a"},
        {"parentRefs": PARENTS, "path": "/a/"},
        {"parentRefs": PARENTS, "path": "/a//b"},
        {"parentRefs": PARENTS, "path": "/a/../b"},
    ],
)
def test_what_the_gateway_api_would_refuse_is_refused_at_once(route: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="httpRoute"):
        resolved(routing={"httpRoute": route})
