"""Owns what a user's claim tells of a service: whether it can be shared and is waited for; pure.

Does not own reading it (``reconcile``), its rules (``spec``) nor the words about it (``status``).
"""

from mizzen_operator.errors import Problem
from mizzen_operator.observed import ClaimFacts, Observed
from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.spec.validate import validate_claim


def users_claim(resolved: Resolved, observed: Observed) -> ClaimFacts | None:
    """The claim that the spec names, if it was found."""
    source = resolved.spec.model.source.pvc
    found = (item for item in observed.claims if source and item.name == source.claim_name)
    return next(found, None)


def claim_problems(resolved: Resolved, observed: Observed) -> list[Problem]:
    """Why the claim with the weights cannot be mounted by all pods; empty while it is not known."""
    claim = users_claim(resolved, observed)
    if claim is None:
        return []
    return validate_claim(resolved, claim.access_modes, claim.storage_class)


def is_claim_bound(resolved: Resolved, observed: Observed) -> bool:
    """Whether there is nothing to wait for at the claim."""
    if resolved.spec.model.source.pvc is None or not observed.claims_known:
        return True
    claim = users_claim(resolved, observed)
    return claim is not None and claim.phase == "Bound"
