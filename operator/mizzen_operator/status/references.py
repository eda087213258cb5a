"""Owns the judgement whether what the spec refers to is there: the claim, and Secrets.

Does not own what is on the claim (ModelReady). Secrets are never read: one that is missing is known
only when the kubelet says so of a pod.
"""

from collections.abc import Iterable

from mizzen_operator.observed import Observed, PodFacts
from mizzen_operator.planner.claims import users_claim
from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.spec.sources import PvcSource
from mizzen_operator.status.conditions import Verdict, no, unknown, yes
from mizzen_operator.status.holdups import SECRET_MISSING, living, told_by_kubelet
from mizzen_operator.status.running import RESOLVED_REFS

CLAIM_NOT_FOUND = "ClaimNotFound"


def resolved_refs(resolved: Resolved, observed: Observed) -> Verdict:
    """Of an accepted service."""
    missing = missing_secret(observed.pods)
    if missing is not None:
        return missing
    if resolved.spec.model.source.pvc is None:
        return yes(RESOLVED_REFS, "Resolved", "the spec names no claim, and no pod lacks a Secret")
    source = weights_claim(resolved)
    if not observed.claims_known:
        return unknown(RESOLVED_REFS, "NotLookedAt", f"claim {source.claim_name} is not read yet")
    if users_claim(resolved, observed) is None:
        return no(RESOLVED_REFS, CLAIM_NOT_FOUND, claim_not_found(resolved))
    return yes(RESOLVED_REFS, "Resolved", f"claim {source.claim_name} exists")


def missing_secret(pods: Iterable[PodFacts]) -> Verdict | None:
    """The verdict on a pod that lacks a Secret; None if none does."""
    for pod in living(pods):
        reason, message = told_by_kubelet(pod)
        if reason == SECRET_MISSING:
            return no(RESOLVED_REFS, SECRET_MISSING, f"{pod.child.name}: {message}")
    return None


def weights_claim(resolved: Resolved) -> PvcSource:
    """The claim that the spec names."""
    source = resolved.spec.model.source.pvc
    assert source is not None, "other weights are fetched"
    return source


def claim_not_found(resolved: Resolved) -> str:
    """Field, name, remedy."""
    return (
        f"spec.model.source.pvc.claimName: claim {weights_claim(resolved).claim_name} does not "
        f"exist in namespace {resolved.namespace}; create it or correct the name"
    )
