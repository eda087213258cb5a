"""Owns the judgement whether the route and the pool that a service asked for are there and taken.

Does not own the Service (``judge``). The words are those of each Gateway's own controller, read per
parent from the object's status: the Gateways are the user's, and are not looked at.
"""

from collections.abc import Iterable, Iterator

from mizzen_operator.observed import Child, Lack, Observed
from mizzen_operator.render.kinds import GATEWAY_API
from mizzen_operator.render.routes import (
    HTTP_ROUTE,
    INFERENCE_POOL,
    POOL_API,
    ROUTE_API,
    asked_routes,
)
from mizzen_operator.route_answers import ACCEPTED, Parent, ParentAnswer
from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.status.conditions import Verdict, no
from mizzen_operator.status.lacks import Remedy, lack_sentence
from mizzen_operator.status.running import ROUTING_READY

_REMEDIES = {
    HTTP_ROUTE: Remedy(
        source=f"the Gateway API, which brings {ROUTE_API}", chart_value=GATEWAY_API
    ),
    INFERENCE_POOL: Remedy(
        source=f"the Gateway API Inference Extension, which brings {POOL_API}",
        chart_value=GATEWAY_API,
    ),
}


def routes_problem(resolved: Resolved, observed: Observed) -> Verdict | None:
    """The first thing that is wrong with what was asked for; None if nothing is."""
    return next(_problems(resolved, observed), None)


def routes_told(resolved: Resolved, observed: Observed) -> str:
    """Who has taken what, in words; empty if nothing was asked for."""
    return "".join(
        f"; {kind} {resolved.name} is {_taken_by(_current(resolved, observed, kind))}"
        for kind in asked_routes(resolved)
    )


def awaited_routes(resolved: Resolved, observed: Observed) -> tuple[Child, ...]:
    """Objects of ours that are there and not taken yet: nothing watches what is said of them."""
    if routes_problem(resolved, observed) is None:
        return ()
    found = (_object(resolved, observed, kind) for kind in asked_routes(resolved))
    return tuple(child for child in found if child and child.kind not in observed.lacking)


def _problems(resolved: Resolved, observed: Observed) -> Iterator[Verdict]:
    name = resolved.name
    for kind, field in asked_routes(resolved).items():
        why = observed.lacking.get(kind)
        if why is not None:
            yield no(ROUTING_READY, why.value, _lack_text(kind, field, why, name))
        elif _object(resolved, observed, kind) is None:
            paused = resolved.spec.paused
            yield (
                no(ROUTING_READY, "Paused", f"spec.paused is true: {kind} {name} is not made")
                if paused
                else no(ROUTING_READY, "NotApplied", f"{kind} {name} does not exist yet")
            )
        else:
            yield from _refusals(kind, name, _current(resolved, observed, kind))
            if kind == HTTP_ROUTE:
                yield from _unanswered(resolved, _current(resolved, observed, kind))


def _lack_text(kind: str, field: str, why: Lack, name: str) -> str:
    return f"{field}: {lack_sentence(why, kind, name, _REMEDIES[kind])}, or remove the field"


def _object(resolved: Resolved, observed: Observed, kind: str) -> Child | None:
    found = (
        child
        for child in observed.children
        if child.kind == kind and child.name == resolved.name and observed.owns(child)
    )
    return next((child for child in found if not child.deleting), None)


def _current(resolved: Resolved, observed: Observed, kind: str) -> tuple[ParentAnswer, ...]:
    """Answers to the object as it is now."""
    answers = observed.route_answers.get((kind, resolved.name), ())
    asked = tuple(_asked_parents(resolved))
    # A pool does not say whose it is: a route of the user's brings Gateways to it.
    return tuple(
        answer
        for answer in answers
        if answer.is_current and (kind != HTTP_ROUTE or answer.parent in asked)
    )


def _refusals(kind: str, name: str, answers: Iterable[ParentAnswer]) -> Iterator[Verdict]:
    refused = [answer for answer in answers if answer.refused]
    if not refused:
        return
    first = refused[0]
    condition = ACCEPTED if ACCEPTED in first.refused else min(first.refused)
    by = f" ({first.controller})" if first.controller else ""
    others = ", ".join(str(answer.parent) for answer in refused[1:])
    more = f"; refused by {others} too" if others else ""
    yield no(
        ROUTING_READY,
        "NotAccepted" if condition == ACCEPTED else "RefsNotResolved",
        f"{first.parent}{by} says of {kind} {name} that {condition} is False: "
        f"{first.refused[condition]}{more}",
    )


def _unanswered(resolved: Resolved, answers: Iterable[ParentAnswer]) -> Iterator[Verdict]:
    taken = {answer.parent for answer in answers if answer.is_accepted}
    missing = [str(parent) for parent in _asked_parents(resolved) if parent not in taken]
    if missing:
        yield no(
            ROUTING_READY,
            "GatewayPending",
            f"no controller has accepted HTTPRoute {resolved.name} for {' and '.join(missing)} yet",
        )


def _asked_parents(resolved: Resolved) -> Iterator[Parent]:
    route = resolved.spec.routing.http_route
    for ref in route.parent_refs if route is not None else ():
        yield Parent(
            kind="Gateway",
            namespace=ref.namespace or resolved.namespace,
            name=ref.name,
            section=ref.section_name or "",
        )


def _taken_by(answers: Iterable[ParentAnswer]) -> str:
    parents = dict.fromkeys(str(answer.parent) for answer in answers if answer.is_accepted)
    return f"accepted by {', '.join(parents)}" if parents else "not used by a Gateway yet"
