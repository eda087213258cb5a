"""RoutingReady is the verdict of each Gateway that the user brought, in its controller's words."""

from typing import Any

import pytest
from tests.operator.documents import resolved

from mizzen_operator.observed import Child, Lack, Observed, ObservedService
from mizzen_operator.route_answers import answers_of
from mizzen_operator.status.routes import awaited_routes, routes_problem, routes_told

OURS, OTHERS = "example.com/ours", "example.com/others"
ROUTE, POOL = "HTTPRoute", "InferencePool"
PUBLIC, INNER = {"name": "public", "namespace": "infra"}, {"name": "inner"}
ASKED: dict[str, Any] = {"httpRoute": {"parentRefs": [PUBLIC, INNER]}}
POOLED: dict[str, Any] = {"inferencePool": {"endpointPickerRef": {"name": "picker"}}}


def said(
    parent: dict[str, str], *, generation: int | None = 2, controller: str = OURS, **false: str
) -> dict[str, Any]:
    """What one controller writes; `false` are conditions that do not hold, with its words."""
    seen = {} if generation is None else {"observedGeneration": generation}
    conditions = [
        {
            "type": kind,
            "status": "False" if kind in false else "True",
            "reason": "Refused" if kind in false else kind,
            "message": false.get(kind, ""),
            **seen,
        }
        for kind in ("Accepted", "ResolvedRefs")
    ]
    ref = {"group": "gateway.networking.k8s.io", "kind": "Gateway", **parent}
    return {"parentRef": ref, "controllerName": controller, "conditions": conditions}


def observed(
    *parents: dict[str, Any],
    kind: str = ROUTE,
    lacking: dict[str, Lack] | None = None,
    owner: str | None = None,
    there: bool = True,
) -> Observed:
    service = resolved()
    metadata = {"name": service.name, "namespace": service.namespace, "generation": 2}
    child = Child(
        api_version="v1",
        kind=kind,
        name=service.name,
        uid="uid-route",
        resource_version="1",
        owner_uid=service.uid if owner is None else owner,
    )
    answers = answers_of({"metadata": metadata, "status": {"parents": list(parents)}})
    return Observed(
        service=ObservedService(
            name=service.name, namespace=service.namespace, uid=service.uid, generation=1
        ),
        children=(child,) if there else (),
        route_answers={(kind, service.name): answers},
        lacking=lacking or {},
    )


def problem(found: Observed, asked: dict[str, Any] = ASKED, **spec: Any) -> tuple[str, str] | None:
    verdict = routes_problem(resolved(routing=asked, **spec), found)
    return verdict and (verdict.reason, verdict.message)


def test_who_asks_for_nothing_hears_nothing() -> None:
    assert problem(observed(lacking={ROUTE: Lack.NOT_INSTALLED}), {}) is None
    assert routes_told(resolved(), observed()) == ""


def test_row_13_a_route_is_ready_once_each_gateway_has_accepted_it() -> None:
    assert problem(observed()) == (
        "GatewayPending",
        "no controller has accepted HTTPRoute demo for Gateway infra/public and Gateway "
        "default/inner yet",
    )
    assert problem(observed(said(PUBLIC))) == (
        "GatewayPending",
        "no controller has accepted HTTPRoute demo for Gateway default/inner yet",
    )
    both = observed(said(PUBLIC), said(INNER, controller=OTHERS))
    assert problem(both) is None
    assert routes_told(resolved(routing=ASKED), both) == (
        "; HTTPRoute demo is accepted by Gateway infra/public, Gateway default/inner"
    )


def test_row_13_one_refusal_among_two_gateways_is_told_in_its_controllers_words() -> None:
    words = "no listener has this host name"
    refused = said(INNER, controller=OTHERS, Accepted=words)
    assert problem(observed(said(PUBLIC), refused)) == (
        "NotAccepted",
        "Gateway default/inner (example.com/others) says of HTTPRoute demo that Accepted is False: "
        f"Refused: {words}",
    )
    found = problem(observed(said(PUBLIC, Accepted="a"), refused))
    assert found is not None
    assert found[1].endswith("; refused by Gateway default/inner too")


def test_row_13_two_controllers_that_speak_of_one_gateway_are_told_apart() -> None:
    """Only one of them has it; which one, the other has to say."""
    found = problem(
        observed(said(PUBLIC), said(INNER), said(PUBLIC, controller=OTHERS, Accepted="x"))
    )
    assert found is not None
    assert found[0] == "NotAccepted"
    assert OTHERS in found[1]


def test_references_that_a_gateway_cannot_follow_are_told() -> None:
    found = problem(observed(said(PUBLIC), said(INNER, ResolvedRefs="no Service demo")))
    assert found == (
        "RefsNotResolved",
        "Gateway default/inner (example.com/ours) says of HTTPRoute demo that ResolvedRefs is "
        "False: Refused: no Service demo",
    )


def test_answers_to_an_earlier_form_of_the_route_do_not_count() -> None:
    for old in (said(INNER, generation=1), said(INNER, generation=1, Accepted="x")):
        found = problem(observed(said(PUBLIC), old))
        assert found is not None
        assert found[0] == "GatewayPending"
    assert problem(observed(said(PUBLIC), said(INNER, generation=None))) is None


def test_parents_that_are_not_asked_for_any_more_do_not_count() -> None:
    others = said({"name": "old", "namespace": "infra"}, Accepted="x")
    assert problem(observed(said(PUBLIC), said(INNER), others)) is None


def test_a_listener_is_part_of_who_answers() -> None:
    asked = {"httpRoute": {"parentRefs": [{**INNER, "sectionName": "https"}]}}
    assert problem(observed(said({**INNER, "sectionName": "https"})), asked) is None
    found = problem(observed(said({**INNER, "sectionName": "http"})), asked)
    assert found is not None
    assert "Gateway default/inner listener https" in found[1]


def test_a_pool_needs_no_gateway_but_none_may_refuse_it() -> None:
    waiting = {
        "parentRef": {"kind": "Status", "name": "default"},
        "conditions": [
            {"type": "Accepted", "status": "Unknown", "reason": "Pending", "message": "Waiting"}
        ],
    }
    for parents in ((), (waiting,)):
        found = observed(*parents, kind=POOL)
        assert problem(found, POOLED) is None
        told = routes_told(resolved(routing=POOLED), found)
        assert told == "; InferencePool demo is not used by a Gateway yet"
    refused = said(PUBLIC, ResolvedRefs="no Service picker")
    found = problem(observed(refused, kind=POOL), POOLED)
    assert found is not None
    assert (found[0], "no Service picker" in found[1]) == ("RefsNotResolved", True)


@pytest.mark.parametrize(
    ("lack", "sentence"),
    [
        (
            Lack.NOT_INSTALLED,
            "spec.routing.httpRoute: this cluster does not know HTTPRoute; install the Gateway "
            "API, which brings gateway.networking.k8s.io/v1, or remove the field",
        ),
        (
            Lack.NOT_ALLOWED,
            "spec.routing.httpRoute: the operator has no right to HTTPRoute; install its chart "
            "with gatewayApi=true, or remove the field",
        ),
        (
            Lack.NAME_TAKEN,
            "spec.routing.httpRoute: the name demo is taken: this service does not own the "
            "HTTPRoute that has it in this namespace; delete or rename that, or remove the field",
        ),
    ],
)
def test_what_the_cluster_lacks_is_one_sentence(lack: Lack, sentence: str) -> None:
    assert problem(observed(lacking={ROUTE: lack})) == (lack.value, sentence)


def test_a_route_that_is_not_there_yet_is_told() -> None:
    for missing in (observed(there=False), observed(owner="other")):
        assert problem(missing) == ("NotApplied", "HTTPRoute demo does not exist yet")
    assert problem(observed(there=False), paused=True) == (
        "Paused",
        "spec.paused is true: HTTPRoute demo is not made",
    )


def test_only_what_is_there_and_not_taken_is_looked_at_again() -> None:
    service = resolved(routing=ASKED)
    assert [child.kind for child in awaited_routes(service, observed(said(PUBLIC)))] == [ROUTE]
    assert awaited_routes(service, observed(said(PUBLIC), said(INNER))) == ()
    assert awaited_routes(service, observed(there=False)) == ()
    assert awaited_routes(service, observed(lacking={ROUTE: Lack.NOT_ALLOWED})) == ()
