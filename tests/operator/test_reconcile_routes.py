"""Routes come and go with what is asked for and with what the cluster has; pods never notice."""

from typing import Any

from tests.operator.fake_cluster import Call
from tests.operator.fake_operator import (
    NAMESPACE,
    FakeOperator,
    cluster_with_claim,
    condition,
    converge,
    service_manifest,
    started,
)

from mizzen_operator.cluster.failures import NotFoundError
from mizzen_operator.errors import ConflictError, UnavailableError
from mizzen_operator.reconcile import ROUTE_RECHECK_S
from mizzen_operator.store import OPTIONAL_KINDS, SERVICE_KIND, ObjectRef

HTTP_ROUTE, POOL = (
    next(kind for kind in OPTIONAL_KINDS if kind.kind == name)
    for name in ("HTTPRoute", "InferencePool")
)
ROUTING: dict[str, Any] = {
    "httpRoute": {"parentRefs": [{"name": "public"}]},
    "inferencePool": {"endpointPickerRef": {"name": "picker"}},
}
REF = ObjectRef(kind=HTTP_ROUTE, namespace=NAMESPACE, name="chat")


def routed() -> FakeOperator:
    return started(routing=ROUTING)


def answer(operator: FakeOperator, status: str, message: str = "") -> None:
    """What a Gateway's controller writes; nothing tells the operator."""
    found = {
        "parentRef": {"name": "public"},
        "controllerName": "example.com/ours",
        "conditions": [
            {"type": "Accepted", "status": status, "reason": "Said", "message": message}
        ],
    }
    operator.cluster.edit(REF, lambda manifest: manifest.update(status={"parents": [found]}))


def look_after(operator: FakeOperator, seconds: float) -> None:
    operator.clock.now_s += seconds
    operator.reconcile_all()
    converge(operator)


def num_gets(operator: FakeOperator) -> int:
    return len([call for call in operator.cluster.calls if (call.verb, call.ref) == ("get", REF)])


def test_an_answer_is_waited_for_and_then_nothing_is_asked_any_more() -> None:
    operator = routed()
    cluster = operator.cluster
    assert [ref.name for kind in (HTTP_ROUTE, POOL) for ref in cluster.refs(kind)] == ["chat"] * 2
    assert condition(cluster, "RoutingReady")["reason"] == "GatewayPending"
    assert condition(cluster, "Available")["status"] == "True"
    assert condition(cluster, "Ready")["reason"] == "GatewayPending"
    assert list(operator.waits_s.values()) == [ROUTE_RECHECK_S]
    answer(operator, "True")
    look_after(operator, ROUTE_RECHECK_S)
    assert condition(cluster, "Ready")["status"] == "True"
    before, num_writes = num_gets(operator), len(cluster.writes)
    for _ in range(3):
        look_after(operator, ROUTE_RECHECK_S)
    assert (num_gets(operator), len(cluster.writes)) == (before, num_writes)
    assert list(operator.waits_s.values()) != [ROUTE_RECHECK_S]
    answer(operator, "False", "the listener is gone")
    operator.run_lists()
    converge(operator)
    told = condition(cluster, "RoutingReady")
    assert told["reason"] == "NotAccepted"
    assert told["message"].endswith("Said: the listener is gone")


def test_without_the_api_all_else_goes_on_and_what_is_installed_later_is_used() -> None:
    cluster = cluster_with_claim()

    def before(call: Call) -> None:
        if call.ref.kind in (HTTP_ROUTE, POOL):
            raise NotFoundError("no such kind")

    cluster.before = before
    operator = started(cluster, routing=ROUTING)
    assert condition(cluster, "RoutingReady")["reason"] == "ApiNotInstalled"
    assert condition(cluster, "Available")["status"] == "True"
    assert operator.errors == []
    cluster.before = lambda call: None
    operator.run_lists()
    converge(operator)
    assert cluster.refs(HTTP_ROUTE) == [REF]
    assert condition(cluster, "RoutingReady")["reason"] == "GatewayPending"


def test_what_is_not_asked_for_any_more_goes() -> None:
    operator = routed()
    cluster = operator.cluster
    answer(operator, "True")
    cluster.put(SERVICE_KIND, service_manifest())
    converge(operator)
    assert cluster.refs(HTTP_ROUTE) == cluster.refs(POOL) == []
    assert condition(cluster, "Ready")["status"] == "True"
    # It had changed since it was read last, so it was looked at once more.
    assert [type(error) for error in operator.errors] == [ConflictError]


def test_a_route_that_cannot_be_looked_at_holds_up_nothing_else() -> None:
    operator = routed()
    cluster = operator.cluster

    def before(call: Call) -> None:
        if call.ref == REF and call.verb == "get":
            cluster.before = lambda call: None
            raise UnavailableError("later")

    cluster.before = before
    cluster.put(SERVICE_KIND, service_manifest(replicas=2, routing=ROUTING))
    converge(operator)
    assert [type(error) for error in operator.errors] == [UnavailableError]
    assert condition(cluster, "Available")["status"] == "True"
