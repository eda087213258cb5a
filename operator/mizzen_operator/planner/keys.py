"""Owns which CURVE keys each cohort has, which must be made, and which nobody needs any more; pure.

Does not own making and deleting them (``cluster/curve_secret``). Secrets are never read, so what
bears a cohort's label tells of them. Invariant: a Secret exists only while a leader Service tells
of it: that comes before the Secret and goes after it, so none is ever forgotten.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from mizzen_operator.observed import Child, Observed
from mizzen_operator.planner.model import KeysWanted
from mizzen_operator.render import labels
from mizzen_operator.render.names import keys_name, leader_service_name
from mizzen_operator.render.render import keys_metadata
from mizzen_operator.spec.resolve import Resolved


def key_generations(observed: Observed) -> dict[str, str]:
    """By cohort, which keys the objects and pods have that belong to it."""
    found: dict[str, str] = {}
    bearers = [child for child in observed.children if observed.owns(child)]
    for child in (*bearers, *(pod.child for pod in observed.pods)):
        cohort = child.labels.get(labels.COHORT, "")
        if cohort:
            found[cohort] = found.get(cohort) or child.labels.get(labels.KEYS, "")
    return found


def keys_wanted(
    resolved: Resolved, observed: Observed, applied: Iterable[Mapping[str, Any]]
) -> KeysWanted | None:
    """The Secret that must exist; None if no pod needs one, or nothing would tell of it yet.

    The keys that a service begins with need nobody to tell of them before pods do.
    """
    metadata = keys_metadata(resolved)
    if metadata is None:
        return None
    leaders = ("Service", leader_service_name(resolved, resolved.cohort))
    told = {(obj["kind"], obj["metadata"]["name"]) for obj in applied}
    told |= {(child.kind, child.name) for child in observed.children if observed.owns(child)}
    is_told = leaders in told or not resolved.key_generation
    return KeysWanted(metadata=metadata) if is_told else None


def leader_services_in_use(observed: Observed, cohorts: frozenset[str]) -> set[tuple[str, str]]:
    """Kind and name of the leader Services of living cohorts, rendered or not."""
    return {
        (child.kind, child.name)
        for child in observed.children
        if child.kind == "Service" and child.labels.get(labels.COHORT) in cohorts
    }


def unused_keys(
    resolved: Resolved,
    orphan: Child,
    generations: Mapping[str, str],
    cohorts: frozenset[str],
) -> str:
    """Name of the Secret that goes with a leader Service; empty if others need it.

    ``cohorts`` are those that have groups or pods, besides the wanted one.
    """
    cohort = orphan.labels.get(labels.COHORT, "")
    if orphan.kind != "Service" or not cohort:
        return ""
    used = {generations.get(living, "") for living in cohorts - {resolved.cohort}}
    if resolved.tokenizer is not None:
        used.add(resolved.key_generation)
    generation = generations.get(cohort, "")
    return "" if generation in used else keys_name(resolved, generation)
