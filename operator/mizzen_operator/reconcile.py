"""Owns the straight path of one service: observe, resolve, plan, dry run, apply, delete, status.

Does not own any decision (`spec`, `planner`, `status` are pure) nor when it runs (`workqueue`).

Invariants: level-triggered, so running it twice changes nothing; serial per service (the queue's
promise); a spec that cannot work changes only the status, and what runs is healed as the last spec
that could work said. Nothing is kept here between two runs.
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import takewhile
from typing import Any

from mizzen_operator.cluster.edge import Edge
from mizzen_operator.cluster.failures import LingeringError, NotFoundError
from mizzen_operator.cluster.trial import TrialResult
from mizzen_operator.errors import (
    ClusterError,
    ConflictError,
    ForbiddenError,
    NameConflictError,
    Problem,
    RefusedError,
    SpecError,
)
from mizzen_operator.observed import (
    ClaimFacts,
    Lack,
    Observed,
    claim_of,
)
from mizzen_operator.planner.claims import claim_problems, is_claim_bound
from mizzen_operator.planner.healing import healed_only
from mizzen_operator.planner.holds import NO_OBJECTION, role_templates
from mizzen_operator.planner.model import Plan
from mizzen_operator.planner.plan import plan
from mizzen_operator.planner.shortage import owners_short_of_pods
from mizzen_operator.snapshot import observed_of, resolve_live
from mizzen_operator.spec.parse import restart_of_refused
from mizzen_operator.spec.resolve import Defaults, Resolved
from mizzen_operator.status.refused import refused_status
from mizzen_operator.status.routes import awaited_routes
from mizzen_operator.status.scalers import scaler_statuses
from mizzen_operator.status.status import service_status
from mizzen_operator.store import (
    CLAIM,
    OPTIONAL_KINDS,
    SECRET,
    Manifest,
    ObjectRef,
    ObjectUid,
    ServiceUid,
    StoredObject,
    kind_named,
    ref_of,
)

logger = logging.getLogger(__name__)

CLAIM_RECHECK_S = 15.0
"""Claims are not watched: how soon to look again at one that is missing or not bound."""
NAME_CONFLICT_RECHECK_S = 60.0
"""Foreign objects are not watched: how soon to look whether the name is free."""
ROUTE_RECHECK_S = 15.0
"""Routes are not watched: how soon to look whether a Gateway has taken one."""
HOLDERS_OF_PODS = ("StatefulSet", "Deployment")
"""Kinds whose pods mount keys."""
NOT_ASKED = TrialResult(answers=NO_OBJECTION, wait_s=None, failure=None)


class Reconciler:
    """Brings one service at a time to what its spec says."""

    def __init__(self, edge: Edge, defaults: Defaults, *, now: Callable[[], datetime]) -> None:
        self._edge = edge
        self._defaults = defaults
        self._now = now

    async def reconcile(self, uid: ServiceUid) -> float | None:
        """One pass; seconds after which to look again although nothing happens, or None.

        Raises ClusterError when the cluster did not do what was asked: try again later, but no
        later than its `look_again_s`.
        """
        service = self._edge.store.service(uid)
        if service is None or service.is_being_deleted:
            # Owner references delete the children; nothing here needs a finalizer.
            self._edge.drop_memory(uid)
            return None
        children = self._edge.store.children(uid)
        lacking = self._edge.store.lacking()
        observed = observed_of(service, children, claims=None, lacking=lacking)
        try:
            resolved = resolve_live(service.manifest, observed, self._defaults)
        except SpecError as error:
            return await self._refuse_and_heal(service, observed, error.problems)
        claims = await self._claims(resolved)
        observed = observed_of(service, children, claims=claims, lacking=lacking)
        problems = claim_problems(resolved, observed)
        if problems:
            wait_s = await self._refuse_and_heal(service, observed, problems)
            return _earliest(wait_s, CLAIM_RECHECK_S)
        waits_s = [None if is_claim_bound(resolved, observed) else CLAIM_RECHECK_S]
        try:
            await self._carry_out(service, resolved, observed, waits_s)
        except ClusterError as error:
            # The back-off knows nothing of deadlines, nor of a status that is still to be written.
            error.look_again_s = _earliest(*waits_s)
            raise
        return _earliest(*waits_s)

    async def _carry_out(
        self,
        service: StoredObject,
        resolved: Resolved,
        observed: Observed,
        waits_s: list[float | None],
    ) -> None:
        """Act on the plan, then say in the status how it went, then let a failure be retried.

        What there is to wait for is added to `waits_s`, also if it fails.
        """
        wanted = plan(resolved, observed, self._now())
        trial = NOT_ASKED
        failure: ClusterError | None = None
        failure_text = ""
        put_off: Sequence[ClusterError] = ()
        lacking = dict(observed.lacking)
        try:
            trial = await self._try_templates(service, resolved, observed, wanted)
            if trial.answers != NO_OBJECTION:
                wanted = plan(resolved, observed, self._now(), trial.answers)
            put_off = [
                *await self._act(service, wanted, lacking),
                *await self._look_at_routes(service, resolved, observed),
            ]
        except NameConflictError as error:
            waits_s += (
                NAME_CONFLICT_RECHECK_S,
                await self._refuse(service, observed, [error.problem]),
            )
            return
        except LingeringError as error:
            # Usually for a moment only, so nothing is wrong yet; but it may take for ever.
            failure = error
            wanted = replace(wanted, blocked_by=str(error), is_rolling=True)
        except RefusedError as error:
            # These do not heal by waiting a moment: a person has to see them.
            failure, failure_text = error, str(error)
        finally:
            waits_s += (wanted.requeue_after_s, trial.wait_s)
        if failure is None and not put_off and trial.failure is not None:
            put_off = [trial.failure]
        if put_off:
            failure = put_off[0]
            lasting = (str(item) for item in put_off if isinstance(item, RefusedError))
            failure_text = next(lasting, "")
        # The status shall speak of what is there now.
        observed = self._observed_again(service, observed, lacking)
        if wanted.is_refused:
            # What is there belongs to another spec: this one is no measure for it.
            problems = tuple(wanted.templates.refused.values())
            status = refused_status(problems, observed, self._now())
        else:
            status = service_status(resolved, observed, wanted, self._now(), failure=failure_text)
        waits_s += (
            await self._tell(service, status, resolved, observed),
            NAME_CONFLICT_RECHECK_S if Lack.NAME_TAKEN in lacking.values() else None,
            ROUTE_RECHECK_S if awaited_routes(resolved, observed) else None,
        )
        if failure is not None:
            raise failure

    def _observed_again(
        self, service: StoredObject, before: Observed, lacking: Mapping[str, Lack]
    ) -> Observed:
        children = self._edge.store.children(ServiceUid(service.uid))
        claims = before.claims if before.claims_known else None
        return observed_of(service, children, claims=claims, lacking=lacking)

    async def _try_templates(
        self, service: StoredObject, resolved: Resolved, observed: Observed, wanted: Plan
    ) -> TrialResult:
        """Ask about pod templates before anything is changed for them.

        While nothing is to be changed, as in a paused service, what was answered last still holds.
        """
        # No pod is admitted whose ServiceAccount does not exist, in a dry run neither.
        # One that is being deleted still serves; what follows from it is told when all is applied.
        accounts = [obj for obj in wanted.apply if obj["kind"] == "ServiceAccount"]
        await self._apply(service, accounts, [], {})
        return await self._edge.trials.ask(
            service,
            resolved,
            role_templates(resolved, wanted.apply),
            known=self._known(service),
            short=owners_short_of_pods(resolved, observed, wanted.apply),
            may_ask=bool(wanted.apply),
        )

    async def _act(
        self, service: StoredObject, wanted: Plan, lacking: dict[str, Lack]
    ) -> Sequence[ClusterError]:
        """Objects and keys, then deletions; what failed of objects that are optional.

        Optional kinds whose object's name is taken by a foreign one are added to `lacking`.
        """
        put_off: list[ClusterError] = []
        # Keys after the Services that tell of them, before the pods that need them.
        first = tuple(takewhile(lambda obj: obj["kind"] not in HOLDERS_OF_PODS, wanted.apply))
        lingering = await self._apply(service, first, put_off, lacking)
        if wanted.keys is not None:
            await self._ensure_keys(service, wanted.keys.metadata)
        rest = wanted.apply[len(first) :]
        lingering += await self._apply(service, rest, put_off, lacking)
        if lingering:
            # It holds up only what is deleted next: other objects do not need it.
            raise lingering[0]
        for restart in wanted.restarts:
            logger.warning(
                "group %s starts anew as epoch %d: %s", restart.group, restart.epoch, restart.cause
            )
            self._edge.count_restart(restart.cause.value)
        for planned in wanted.delete:
            if planned.keys:
                await self._edge.secrets.drop(service, _secret(service, planned.keys))
            try:
                await self._edge.pruner.delete(planned)
            except ClusterError as error:
                if kind_named(planned.api_version, planned.kind) not in OPTIONAL_KINDS:
                    raise
                put_off.append(error)
        return put_off

    async def _look_at_routes(
        self, service: StoredObject, resolved: Resolved, observed: Observed
    ) -> Sequence[ClusterError]:
        """Read those again for which an answer is awaited; what failed of that."""
        put_off: list[ClusterError] = []
        awaited = {child.uid for child in awaited_routes(resolved, observed)}
        for known in self._known(service).values():
            if known.uid in awaited:
                await self._look_again(known, put_off)
        return put_off

    async def _apply(
        self,
        service: StoredObject,
        objects: Iterable[Manifest],
        put_off: list[ClusterError],
        lacking: dict[str, Lack],
    ) -> list[LingeringError]:
        """Bring objects to their rendered form, in this order; those that cannot be for now."""
        known = self._known(service)
        lingering: list[LingeringError] = []
        for rendered in objects:
            ref = ref_of(rendered)
            try:
                await self._edge.applier.bring_to(service, ref, rendered, known.get(ref))
            except NameConflictError:
                if ref.kind not in OPTIONAL_KINDS:
                    raise
                lacking[ref.kind.kind] = Lack.NAME_TAKEN
            except ClusterError as error:
                if ref.kind in OPTIONAL_KINDS:
                    # Serving does not need it: everything else goes on.
                    put_off.append(error)
                    if isinstance(error, ConflictError | NotFoundError) and ref in known:
                        await self._look_again(known[ref], put_off)
                elif isinstance(error, LingeringError):
                    lingering.append(error)
                else:
                    raise
        return lingering

    async def _look_again(self, known: StoredObject, put_off: list[ClusterError]) -> None:
        try:
            await self._edge.applier.look_again(known)
        except ClusterError as error:
            put_off.append(error)

    def _known(self, service: StoredObject) -> dict[ObjectRef, StoredObject]:
        return {child.ref: child for child in self._edge.store.children(ServiceUid(service.uid))}

    async def _ensure_keys(self, service: StoredObject, metadata: Mapping[str, Any]) -> None:
        ref = _secret(service, metadata["name"])
        rendered = {
            "apiVersion": SECRET.api_version,
            "kind": SECRET.kind,
            "metadata": metadata,
            "type": "Opaque",
        }
        await self._edge.secrets.ensure(
            service, ref, rendered, is_service_well=is_available(service.manifest)
        )

    async def _refuse_and_heal(
        self, service: StoredObject, observed: Observed, problems: Sequence[Problem]
    ) -> float | None:
        """Tell of a spec that cannot work; pods of the last one that could are healed as before."""
        restart = restart_of_refused(service.manifest)
        healing = Plan() if restart is None else healed_only(observed, restart, self._now())
        failure: ClusterError | None = None
        try:
            await self._act(service, healing, {})
        except ClusterError as error:
            # A status that is still to be written must not wait for it.
            failure = error
        observed = self._observed_again(service, observed, observed.lacking)
        wait_s = await self._refuse(service, observed, problems)
        wait_s = _earliest(wait_s, healing.requeue_after_s)
        if failure is not None:
            failure.look_again_s = wait_s
            raise failure
        return wait_s

    async def _refuse(
        self, service: StoredObject, observed: Observed, problems: Sequence[Problem]
    ) -> float | None:
        status = refused_status(problems, observed, self._now())
        return await self._tell(service, status, None, observed)

    async def _tell(
        self, service: StoredObject, status: Manifest, resolved: Resolved | None, observed: Observed
    ) -> float | None:
        """Write the statuses of the service and of its role scalers, as far as they changed."""
        wait_s = await self._edge.status_writer.write(service, status)
        known = {child.uid: child for child in self._edge.store.children(ServiceUid(service.uid))}
        for uid, scaler_status in scaler_statuses(resolved, observed, self._now()):
            scaler = known.get(ObjectUid(uid))
            if scaler is not None:
                written = await self._edge.status_writer.write(scaler, scaler_status)
                wait_s = _earliest(wait_s, written)
        return wait_s

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


def _secret(service: StoredObject, name: str) -> ObjectRef:
    return ObjectRef(kind=SECRET, namespace=service.namespace, name=name)


def is_available(manifest: Manifest) -> bool:
    """Whether the last status called the service available."""
    conditions = (manifest.get("status") or {}).get("conditions") or ()
    return any(item["type"] == "Available" and item["status"] == "True" for item in conditions)


def _earliest(*delays_s: float | None) -> float | None:
    return min((delay_s for delay_s in delays_s if delay_s is not None), default=None)
