"""Owns the stored revisions of a service: which pin a spec gets, which are kept, which are drawn.

Does not own their form (``spec/stored``). Pure. Invariants: a stored revision that a worker group
or the present spec uses is kept, whatever the limit, and so is one that only another release can
read; of those that this one can read, the one wanted last has the highest number.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mizzen_operator.observed import Child, Observed, ObservedService
from mizzen_operator.planner.groups import Group
from mizzen_operator.render import labels
from mizzen_operator.render.names import stored_revision_name
from mizzen_operator.render.render import FormerGroup
from mizzen_operator.render.templates import template_problems
from mizzen_operator.spec.model import InferenceService
from mizzen_operator.spec.resolve import Pinned, Resolved, resolve_with
from mizzen_operator.spec.stored import Origin, origin_of


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredRevision:
    """One revision as it lies in the cluster."""

    service: ObservedService
    """Whose revision it is."""
    child: Child
    number: int
    origin: Origin

    @property
    def revision(self) -> str:
        """The revision that its worker groups bear."""
        return self.child.labels.get(labels.REVISION, "")


def history_of(observed: Observed) -> tuple[StoredRevision, ...]:
    """The service's own stored revisions, the one wanted last first."""
    found = [
        StoredRevision(
            service=observed.service, child=facts.child, number=facts.number, origin=origin
        )
        for facts in observed.revisions
        if observed.owns(facts.child) and (origin := origin_of(facts.data)) is not None
    ]
    return tuple(sorted(found, key=lambda item: (item.number, item.child.name), reverse=True))


def unreadable_names(observed: Observed) -> frozenset[str]:
    """Names of the service's own stored revisions whose form only another release can read.

    They are not this release's to judge: after a downgrade, the next upgrade needs their pins.
    """
    return frozenset(
        facts.child.name
        for facts in observed.revisions
        if observed.owns(facts.child) and origin_of(facts.data) is None
    )


def pinned_defaults(service: InferenceService, history: Sequence[StoredRevision]) -> Pinned | None:
    """The pin with which this spec was wanted last, else that of the newest revision.

    So an earlier spec that is applied again is the earlier revision, images included, and any
    other one keeps what the service has. None for a service without history.
    """
    if not history:
        return None
    same = (item.origin.pinned for item in history if item.origin.is_of(service.spec))
    return next(same, history[0].origin.pinned)


def number_of(resolved: Resolved, history: Sequence[StoredRevision]) -> int:
    """The number of the wanted revision: it becomes the highest one, and stays as it is then."""
    if not history:
        return 1
    newest = history[0]
    is_newest = newest.child.name == stored_revision_name(resolved)
    return newest.number if is_newest else newest.number + 1


def kept_names(
    resolved: Resolved, history: Sequence[StoredRevision], groups: Iterable[Group]
) -> frozenset[str]:
    """Names of the stored revisions that stay: those in use, and the newest of the others."""
    used = {stored_revision_name(resolved)}
    for revision in {group.revision for group in groups}:
        used.update(item.child.name for item in _of_revision(history, revision)[:1])
    others = [item.child.name for item in history if item.child.name not in used]
    return frozenset(used) | frozenset(others[: resolved.spec.revision_history_limit])


def former_groups(
    resolved: Resolved, history: Sequence[StoredRevision], groups: Iterable[Group]
) -> tuple[FormerGroup, ...]:
    """Those of the groups that are of other revisions, each with what it was rendered from.

    One whose revision is not stored, or cannot be read by this release, is left as it is.
    """
    found = []
    for group in groups:
        if group.revision == resolved.revision:
            continue
        former = as_stored(group, history)
        if former is not None:
            found.append(FormerGroup(resolved=former, index=group.index))
    return tuple(found)


def _of_revision(history: Sequence[StoredRevision], revision: str) -> list[StoredRevision]:
    """Several may have equal worker pods: they differ in tokenizers or in unused defaults."""
    return [item for item in history if item.revision == revision]


def revision_of_cohort(history: Sequence[StoredRevision], cohort: str) -> Resolved | None:
    """The service as it was in the newest stored revision of a cohort that this release reads."""
    read = (_read(item) for item in history)
    return next((former for former in read if former and former.cohort == cohort), None)


def as_stored(group: Group, history: Sequence[StoredRevision]) -> Resolved | None:
    """What a group was rendered from; None if it is not stored or not readable by this release."""
    for item in _of_revision(history, group.revision):
        former = _read(item)
        if former is None:
            continue
        is_same = (former.revision, former.cohort) == (group.revision, group.cohort)
        if is_same and not template_problems(former):
            return former
    return None


def _read(item: StoredRevision) -> Resolved | None:
    spec = item.origin.typed_spec()
    if spec is None:
        return None
    service = InferenceService(
        name=item.service.name,
        namespace=item.service.namespace,
        uid=item.service.uid,
        generation=item.service.generation,
        spec=spec,
    )
    return resolve_with(service, item.origin.pinned)
