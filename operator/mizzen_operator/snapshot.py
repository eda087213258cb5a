"""Owns the way from stored objects of one service to its typed snapshot and resolved spec; pure.

Does not own the snapshot's types (``observed``) nor what is done with it (``reconcile``).
"""

from collections.abc import Mapping, Sequence

from mizzen_operator.errors import SpecError
from mizzen_operator.observed import (
    Child,
    ClaimFacts,
    Lack,
    Observed,
    child_of,
    deployment_of,
    job_of,
    own_claim_of,
    pod_of,
    revision_facts_of,
    role_scaler_of,
    service_facts_of,
    service_of,
    stateful_set_of,
)
from mizzen_operator.planner.history import history_of, pinned_defaults
from mizzen_operator.planner.scale import with_scale
from mizzen_operator.render.preflight import render_problems
from mizzen_operator.render.routes import HTTP_ROUTE, INFERENCE_POOL
from mizzen_operator.route_answers import answers_of
from mizzen_operator.spec.parse import parse
from mizzen_operator.spec.resolve import Defaults, Resolved, resolve
from mizzen_operator.spec.scaler_crd import SCALER_KIND
from mizzen_operator.spec.validate import validate
from mizzen_operator.store import POD, Manifest, StoredObject


def resolve_live(manifest: Manifest, observed: Observed, defaults: Defaults) -> Resolved:
    """The service as this release would carry it out; SpecError if it would not; pure."""
    service = parse(manifest)
    problems = validate(service)
    if problems:
        raise SpecError(problems)
    resolved = resolve(service, defaults, pinned_defaults(service, history_of(observed)))
    problems = render_problems(resolved)
    if problems:
        raise SpecError(problems)
    return with_scale(resolved, observed)


def observed_of(
    service: StoredObject,
    children: Sequence[StoredObject],
    *,
    claims: tuple[ClaimFacts, ...] | None,
    lacking: Mapping[str, Lack],
) -> Observed:
    """The typed snapshot of stored objects; pure. Pods belong to other controllers."""
    by_kind: dict[str, list[Manifest]] = {}
    for child in children:
        manifest = {
            **child.manifest,
            "apiVersion": child.kind.api_version,
            "kind": child.kind.kind,
        }
        by_kind.setdefault(child.kind.kind, []).append(manifest)
    owned: list[Child] = [
        child_of(manifest)
        for kind, manifests in by_kind.items()
        if kind != POD.kind
        for manifest in manifests
    ]
    return Observed(
        service=service_of(service.manifest),
        children=tuple(owned),
        stateful_sets=tuple(map(stateful_set_of, by_kind.get("StatefulSet", ()))),
        deployments=tuple(map(deployment_of, by_kind.get("Deployment", ()))),
        services=tuple(map(service_facts_of, by_kind.get("Service", ()))),
        revisions=tuple(map(revision_facts_of, by_kind.get("ControllerRevision", ()))),
        role_scalers=tuple(map(role_scaler_of, by_kind.get(SCALER_KIND, ()))),
        own_claims=tuple(map(own_claim_of, by_kind.get("PersistentVolumeClaim", ()))),
        jobs=tuple(map(job_of, by_kind.get("Job", ()))),
        pods=tuple(map(pod_of, by_kind.get("Pod", ()))),
        route_answers={
            (kind, manifest["metadata"]["name"]): answers_of(manifest)
            for kind in (HTTP_ROUTE, INFERENCE_POOL)
            for manifest in by_kind.get(kind, ())
        },
        claims=claims or (),
        claims_known=claims is not None,
        lacking=lacking,
    )
