"""Reading how far roles are scaled out of the snapshot, and keeping what others wrote."""

from dataclasses import replace
from typing import Any

import pytest
from tests.operator.documents import DEFAULTS, document

from mizzen_operator.observed import Child, Observed, ObservedService, RoleScalerFacts
from mizzen_operator.planner.scale import with_live_scale, with_scale
from mizzen_operator.render import labels
from mizzen_operator.render.role_scaler import role_scalers
from mizzen_operator.spec.parse import parse
from mizzen_operator.spec.resolve import Resolved, resolve
from mizzen_operator.spec.scale import RoleScale


def resolved(replicas: int = 2) -> Resolved:
    return resolve(parse(document({"spec": {"replicas": replicas}})), DEFAULTS)


def facts(service: Resolved, replicas: int, note: str, owner: str = "") -> RoleScalerFacts:
    return RoleScalerFacts(
        child=Child(
            api_version="serving.mizzen.dev/v1alpha1",
            kind="InferenceRoleScaler",
            name=f"{service.name}-worker",
            uid="s",
            resource_version="1",
            owner_uid=owner or service.uid,
            annotations={labels.PROPAGATED: note},
        ),
        generation=1,
        replicas=replicas,
        status={},
    )


def observed(service: Resolved, *scalers: RoleScalerFacts, **row: int) -> Observed:
    return Observed(
        service=ObservedService(
            name=service.name,
            namespace=service.namespace,
            uid=service.uid,
            generation=1,
            status={"roles": {"worker": row}} if row else {},
        ),
        role_scalers=scalers,
    )


def test_only_a_scaler_of_the_service_counts() -> None:
    service = replace(resolved(), uid="me")
    foreign = facts(service, 9, "2", owner="other")
    assert with_scale(service, observed(service, foreign)) == service
    own = with_scale(service, observed(service, facts(service, 9, "2"), foreign))
    assert (own.groups, own.worker_scale) == (9, RoleScale(asked=9, propagated=2))
    assert own.spec.replicas == 2


@pytest.mark.parametrize(
    ("row", "wanted"),
    [
        ({}, 2),
        ({"desired": 2}, 2),
        ({"desired": 5}, 2),
        ({"desired": 5, "asked": 5, "propagated": 2}, 5),
        ({"desired": 0, "asked": 5, "propagated": 2}, 5),
        ({"desired": 5, "asked": 5, "propagated": 3}, 2),
    ],
)
def test_the_status_stands_in_for_a_scaler_that_is_gone(row: dict[str, int], wanted: int) -> None:
    service = resolved()
    assert with_scale(service, observed(service, **row)).groups == wanted


def test_scaling_changes_neither_revision_nor_cohort() -> None:
    service = replace(resolved(), uid="me")
    scaled = with_scale(service, observed(service, facts(service, 9, "2")))
    assert (scaled.revision, scaled.cohort) == (service.revision, service.cohort)


@pytest.mark.parametrize(
    ("note", "replicas", "kept"),
    [("2", 7, 7), (None, 7, 7), ("x", 7, 7), ("3", 7, 2)],
    ids=["up to date", "note lost", "note spoilt", "field changed"],
)
def test_a_rendered_scaler_keeps_what_lives_unless_the_field_changed(
    note: str | None, replicas: int, kept: int
) -> None:
    rendered, *_ = role_scalers(resolved())
    annotations = {} if note is None else {labels.PROPAGATED: note}
    live: dict[str, Any] = {
        "metadata": {"annotations": annotations},
        "spec": {"replicas": replicas},
    }
    assert with_live_scale(rendered, live)["spec"] == {"replicas": kept}


def test_the_hash_of_a_scaler_leaves_its_scale_out() -> None:
    hashes = {
        scaler["metadata"]["annotations"][labels.APPLIED_HASH]
        for replicas in (1, 7)
        for scaler in role_scalers(resolved(replicas))[:1]
    }
    assert len(hashes) == 1
