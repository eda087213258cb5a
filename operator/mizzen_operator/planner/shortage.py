"""Owns which roles have fewer pods than their owners want, and by which owner that shows; pure.

Does not own why (``cluster/trial`` asks, and a Deployment says it in its own status).
"""

from collections import Counter
from collections.abc import Iterable
from typing import Any

from mizzen_operator.observed import Observed
from mizzen_operator.render import labels
from mizzen_operator.spec.resolve import Resolved


def owners_short_of_pods(
    resolved: Resolved, observed: Observed, applied: Iterable[dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """The first of the rendered objects of each role that lives and has too few pods."""
    groups = _short_groups(observed)
    tokenizers = _num_tokenizers(resolved, observed)
    jobs = _jobs_without_pods(observed)
    short: dict[str, dict[str, Any]] = {}
    for obj in applied:
        kind, metadata = obj["kind"], obj["metadata"]
        is_short = (kind == "StatefulSet" and metadata["name"] in groups) or (
            kind == "Deployment" and tokenizers < obj["spec"]["replicas"]
        )
        is_short = is_short or (kind == "Job" and metadata["name"] in jobs)
        if is_short:
            short.setdefault(metadata["labels"][labels.ROLE], obj)
    return short


def _short_groups(observed: Observed) -> frozenset[str]:
    """Their names. A pod that ends still counts: the next one is made when it has ended."""
    num_pods = Counter(pod.child.owner_uid for pod in observed.pods)
    return frozenset(
        facts.child.name
        for facts in observed.stateful_sets
        if observed.owns(facts.child)
        and not facts.child.deleting
        and num_pods[facts.child.uid] < facts.replicas
    )


def _jobs_without_pods(observed: Observed) -> frozenset[str]:
    """Names of Jobs that never had a pod: between two attempts they have one that failed."""
    owners = {pod.child.owner_uid for pod in observed.pods}
    return frozenset(
        job.child.name
        for job in observed.jobs
        if observed.owns(job.child)
        and not (job.is_complete or job.is_failed or job.child.deleting)
        and job.child.uid not in owners
    )


def _num_tokenizers(resolved: Resolved, observed: Observed) -> int:
    return sum(
        pod.child.labels.get(labels.ROLE) == labels.ROLE_TOKENIZER
        and pod.child.labels.get(labels.COHORT) == resolved.cohort
        and not pod.child.deleting
        for pod in observed.pods
    )
