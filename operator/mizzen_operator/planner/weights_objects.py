"""Owns which claims and Jobs for fetched weights are wanted, made or kept.

Does not own the objects (``render/weights``) nor how far the weights are (``weights``). Pure.

Invariants:
- a claim is made only while no Job of that claim exists, so a completed Job vouches for the live
  claim, and a Job only while no pod of another Job writes to the claim;
- a claim stays while a stored revision that fetched onto it stays, and while a group may need it.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mizzen_operator.observed import Observed, OwnClaimFacts
from mizzen_operator.planner.groups import Group
from mizzen_operator.planner.history import StoredRevision, kept_names, unreadable_names
from mizzen_operator.planner.weights import Seen, WeightsState, living_writers, seen_of, state_of
from mizzen_operator.render.history import FetchedWeights, fetched_weights_of
from mizzen_operator.render.weights import FetchContext
from mizzen_operator.spec.quantity import quantity_of, quantity_value
from mizzen_operator.spec.resolve import Resolved

NOTHING_FETCHED = FetchContext(has_claim=False, has_job=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightsPlan:
    """The state, and what it means for the objects."""

    state: WeightsState | None
    """None for weights on a user's claim."""
    context: FetchContext
    noted: FetchedWeights | None
    """What the wanted revision notes; that of a claim that is lost too, to fetch the same again."""
    kept: frozenset[tuple[str, str]]
    """Kind and name of claims and Jobs that stay although they are not applied."""


def weights_plan(
    resolved: Resolved,
    observed: Observed,
    history: Sequence[StoredRevision],
    groups: Sequence[Group],
) -> WeightsPlan:
    """What is to be done about fetched weights, those of former revisions included."""
    kept = _kept_claims(resolved, observed, history, groups)
    source = resolved.spec.model.source.fetched
    if source is None:
        return WeightsPlan(state=None, context=NOTHING_FETCHED, noted=None, kept=kept)
    seen = seen_of(resolved, observed, history, source)
    state = state_of(resolved, seen)
    return WeightsPlan(
        state=state,
        context=_context(resolved, seen, state),
        noted=state.fetched or seen.pin,
        kept=kept | {("Job", name) for name in _kept_jobs(resolved, seen)},
    )


def _kept_claims(
    resolved: Resolved,
    observed: Observed,
    history: Sequence[StoredRevision],
    groups: Sequence[Group],
) -> frozenset[tuple[str, str]]:
    """Claims of former revisions; all there are where it is not known who needs them."""
    known = {item.revision for item in history} | {resolved.revision}
    is_known = not unreadable_names(observed) and all(item.revision in known for item in groups)
    kept = kept_names(resolved, history, groups)
    notes = (
        fetched_weights_of(item.child.annotations) for item in history if item.child.name in kept
    )
    needed = {note.claim for note in notes if note is not None}
    return frozenset(
        ("PersistentVolumeClaim", item.child.name)
        for item in observed.own_claims
        if not is_known or item.child.name in needed
    )


def _kept_jobs(resolved: Resolved, seen: Seen) -> Iterable[str]:
    """A Job that completed stays for its log, as long as its claim is there."""
    if seen.claim is None:
        return
    for job in seen.jobs:
        is_over = job.is_complete or job.is_failed
        is_wanted = job.child.name == seen.job_name and (is_over or not resolved.spec.stopped)
        if job.is_complete or is_wanted:
            yield job.child.name


def _context(resolved: Resolved, seen: Seen, state: WeightsState) -> FetchContext:
    claim, job = seen.claim, seen.job
    writers = {item.child.owner_uid for item in living_writers(seen)}
    others = [item for item in seen.jobs if item.child.name != seen.job_name]
    is_busy = bool(writers - {job.child.uid if job else ""}) or any(
        item.child.deleting or not (item.is_complete or item.is_failed) for item in others
    )
    # A Job that completed on a claim that is gone would vouch for the empty one that is made now.
    may_make = not (seen.jobs or writers) if claim is None else not claim.child.deleting
    may_fetch = (
        may_make
        and not is_busy
        and not resolved.spec.stopped
        and not state.is_ready
        and not any(item.is_complete for item in seen.jobs)
        and not (job is not None and job.child.deleting)
    )
    return FetchContext(
        has_claim=may_make,
        storage=_raised_storage(resolved, claim),
        has_job=may_fetch,
        pinned=seen.pinned,
    )


def _raised_storage(resolved: Resolved, claim: OwnClaimFacts | None) -> str:
    """What the live claim asks for, if somebody made it larger: it could not be lowered."""
    cache = resolved.spec.model.cache
    live = quantity_of(claim.claim.requested) if claim is not None else None
    if claim is None or cache is None or live is None:
        return ""
    return claim.claim.requested if live > quantity_value(cache.size) else ""
