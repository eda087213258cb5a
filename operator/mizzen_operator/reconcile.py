"""Owns the straight path of one service: observe, resolve, plan, apply, delete, status.

Does not own any decision (`spec`, `planner`, `status` are pure) nor when it runs (`workqueue`).

Invariants: level-triggered, so running it twice changes nothing; serial per service (the queue's
promise); a spec that cannot work changes only the status. Nothing is kept here between two runs.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from mizzen_operator.cluster.apply import Applier
from mizzen_operator.cluster.client import ClusterClient
from mizzen_operator.cluster.curve_secret import CurveSecrets
from mizzen_operator.cluster.events import EventPoster
from mizzen_operator.cluster.failures import LingeringError, NotFoundError
from mizzen_operator.cluster.prune import Pruner
from mizzen_operator.cluster.status_writer import StatusWriter
from mizzen_operator.errors import (
    ClusterError,
    ForbiddenError,
    NameConflictError,
    Problem,
    RejectedError,
    SpecError,
)
from mizzen_operator.observed import (
    Child,
    ClaimFacts,
    Observed,
    child_of,
    claim_of,
    deployment_of,
    pod_of,
    service_facts_of,
    service_of,
    stateful_set_of,
)
from mizzen_operator.planner.model import Plan
from mizzen_operator.planner.pins import pinned_defaults
from mizzen_operator.planner.plan import plan
from mizzen_operator.spec.parse import parse
from mizzen_operator.spec.resolve import Defaults, Resolved, resolve
from mizzen_operator.spec.validate import validate, validate_claim
from mizzen_operator.status.refused import refused_status
from mizzen_operator.status.status import service_status
from mizzen_operator.store import (
    CLAIM,
    POD,
    SECRET,
    Manifest,
    ObjectRef,
    ServiceUid,
    Store,
    StoredObject,
    kind_named,
)

logger = logging.getLogger(__name__)

CLAIM_RECHECK_S = 15.0
"""Claims are not watched: how soon to look again at one that is missing or not bound."""
NAME_CONFLICT_RECHECK_S = 60.0
"""Foreign objects are not watched: how soon to look whether the name is free."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Edge:
    """Everything with an effect that a reconcile uses."""

    client: ClusterClient
    store: Store
    applier: Applier
    pruner: Pruner
    secrets: CurveSecrets
    status_writer: StatusWriter


def edge_of(
    client: ClusterClient,
    store: Store,
    *,
    clock: Callable[[], float],
    now: Callable[[], datetime],
    instance: str,
) -> Edge:
    """The acting half over one client and one store."""
    events = EventPoster(client, now=now, instance=instance)
    return Edge(
        client=client,
        store=store,
        applier=Applier(client, store, clock=clock),
        pruner=Pruner(client, store, clock=clock),
        secrets=CurveSecrets(client, clock=clock),
        status_writer=StatusWriter(client, store, events, clock=clock),
    )


class Reconciler:
    """Brings one service at a time to what its spec says."""

    def __init__(self, edge: Edge, defaults: Defaults, *, now: Callable[[], datetime]) -> None:
        self._edge = edge
        self._defaults = defaults
        self._now = now

    async def reconcile(self, uid: ServiceUid) -> float | None:
        """One pass; seconds after which to look again although nothing happens, or None.

        Raises ClusterError when the cluster did not do what was asked: try again later.
        """
        service = self._edge.store.service(uid)
        if service is None or service.is_being_deleted:
            # Owner references delete the children; nothing here needs a finalizer.
            self._edge.applier.drop_memory(uid)
            self._edge.secrets.drop_memory(uid)
            self._edge.status_writer.drop_memory(uid)
            return None
        children = self._edge.store.children(uid)
        observed = observed_of(service, children, claims=None)
        try:
            resolved = self._resolve(service.manifest, observed)
        except SpecError as error:
            return await self._refuse(service, observed, error.problems)
        claims = await self._claims(resolved)
        observed = observed_of(service, children, claims=claims)
        problems = validate_claim(resolved, access_modes_of(resolved, claims))
        if problems:
            wait_s = await self._refuse(service, observed, problems)
            return _earliest(wait_s, CLAIM_RECHECK_S)
        return _earliest(
            await self._carry_out(service, resolved, observed),
            None if is_claim_bound(resolved, claims) else CLAIM_RECHECK_S,
        )

    def _resolve(self, manifest: Manifest, observed: Observed) -> Resolved:
        service = parse(manifest)
        problems = validate(service)
        if problems:
            raise SpecError(problems)
        return resolve(service, self._defaults, pinned_defaults(observed))

    async def _carry_out(
        self, service: StoredObject, resolved: Resolved, observed: Observed
    ) -> float | None:
        """Act on the plan, then say in the status how it went, then let a failure be retried."""
        wanted = plan(resolved, observed, self._now())
        failure: ClusterError | None = None
        failure_text = ""
        try:
            await self._act(service, wanted)
        except NameConflictError as error:
            wait_s = await self._refuse(service, observed, [error.problem])
            return _earliest(wait_s, NAME_CONFLICT_RECHECK_S)
        except LingeringError as error:
            # Usually for a moment only, so nothing is wrong yet; but it may take for ever.
            failure = error
            wanted = replace(wanted, blocked_by=str(error), is_rolling=True)
        except (ForbiddenError, RejectedError) as error:
            # These do not heal by waiting a moment: a person has to see them.
            failure, failure_text = error, str(error)
        # The status shall speak of what is there now.
        children = self._edge.store.children(ServiceUid(service.uid))
        claims = observed.claims if observed.claims_known else None
        observed = observed_of(service, children, claims=claims)
        status = service_status(resolved, observed, wanted, self._now(), failure=failure_text)
        wait_s = await self._edge.status_writer.write(service, status)
        if failure is not None:
            raise failure
        return _earliest(wanted.requeue_after_s, wait_s)

    async def _act(self, service: StoredObject, wanted: Plan) -> None:
        """Keys, objects, deletions, in this order."""
        known = {child.ref: child for child in self._edge.store.children(ServiceUid(service.uid))}
        lingering: list[LingeringError] = []
        if wanted.keys is not None:
            await self._ensure_keys(service, wanted.keys.metadata)
        for rendered in wanted.apply:
            ref = ObjectRef(
                kind=kind_named(rendered["apiVersion"], rendered["kind"]),
                namespace=service.namespace,
                name=rendered["metadata"]["name"],
            )
            try:
                await self._edge.applier.bring_to(service, ref, rendered, known.get(ref))
            except LingeringError as error:
                # It holds up only what is deleted next: other objects do not need it.
                lingering.append(error)
        if lingering:
            raise lingering[0]
        for planned in wanted.delete:
            await self._edge.pruner.delete(planned)

    async def _ensure_keys(self, service: StoredObject, metadata: Mapping[str, Any]) -> None:
        ref = ObjectRef(kind=SECRET, namespace=service.namespace, name=metadata["name"])
        rendered = {
            "apiVersion": SECRET.api_version,
            "kind": SECRET.kind,
            "metadata": metadata,
            "type": "Opaque",
        }
        await self._edge.secrets.ensure(
            service, ref, rendered, is_service_well=is_available(service.manifest)
        )

    async def _refuse(
        self, service: StoredObject, observed: Observed, problems: Sequence[Problem]
    ) -> float | None:
        return await self._edge.status_writer.write(
            service, refused_status(problems, observed, self._now())
        )

    async def _claims(self, resolved: Resolved) -> tuple[ClaimFacts, ...] | None:
        """The user's claim, read live; None if the operator may not read claims."""
        source = resolved.spec.model.source.pvc
        if source is None:
            return ()
        ref = ObjectRef(kind=CLAIM, namespace=resolved.namespace, name=source.claim_name)
        try:
            return (claim_of(await self._edge.client.get(ref)),)
        except NotFoundError:
            return ()
        except ForbiddenError:
            return None


def observed_of(
    service: StoredObject,
    children: Sequence[StoredObject],
    *,
    claims: tuple[ClaimFacts, ...] | None,
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
        pods=tuple(map(pod_of, by_kind.get("Pod", ()))),
        claims=claims or (),
        claims_known=claims is not None,
    )


def access_modes_of(
    resolved: Resolved, claims: tuple[ClaimFacts, ...] | None
) -> tuple[str, ...] | None:
    """Access modes of the claim with the weights; None while they are not known."""
    source = resolved.spec.model.source.pvc
    if source is None or claims is None:
        return None
    return next((item.access_modes for item in claims if item.name == source.claim_name), None)


def is_claim_bound(resolved: Resolved, claims: tuple[ClaimFacts, ...] | None) -> bool:
    """Whether there is nothing to wait for at the claim."""
    if resolved.spec.model.source.pvc is None or claims is None:
        return True
    return any(claim.phase == "Bound" for claim in claims)


def is_available(manifest: Manifest) -> bool:
    """Whether the last status called the service available."""
    conditions = (manifest.get("status") or {}).get("conditions") or ()
    return any(item["type"] == "Available" and item["status"] == "True" for item in conditions)


def _earliest(*delays_s: float | None) -> float | None:
    return min((delay_s for delay_s in delays_s if delay_s is not None), default=None)
