"""Owns running the rule table and the checks that need more than the spec: the claim's sharing.

Does not own the rules themselves (``rules``) nor the form of single fields (``model``).
"""

from collections.abc import Iterable

from mizzen_operator.errors import CLAIM_NOT_SHAREABLE, Problem
from mizzen_operator.spec.model import InferenceService
from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.spec.rules import RULES

SHAREABLE_MODES = frozenset({"ReadOnlyMany", "ReadWriteMany"})


def validate(service: InferenceService) -> list[Problem]:
    """Every rule of the table that the service breaks; empty means it can be rendered."""
    return [rule.problem(service) for rule in RULES if not rule.holds(service)]


def validate_claim(
    resolved: Resolved, access_modes: Iterable[str] | None, storage_class: str = ""
) -> list[Problem]:
    """Whether the weights claim can be mounted by all pods; None means it is not known yet."""
    source = resolved.spec.model.source.pvc
    if source is None or access_modes is None:
        return []
    modes = sorted(access_modes)
    pods = resolved.worker_scale.asked * resolved.nodes + (
        resolved.tokenizer_scale.asked if resolved.tokenizer else 0
    )
    if pods <= 1 or SHAREABLE_MODES.intersection(modes):
        return []
    of_class = f" of storage class {storage_class}" if storage_class else ""
    return [
        Problem(
            field="spec.model.source.pvc.claimName",
            value=f"{source.claim_name}{of_class} with access modes {', '.join(modes) or 'none'}",
            message=f"{pods} pods mount this claim and it cannot be shared over nodes",
            remedy="use a claim with access mode ReadOnlyMany or ReadWriteMany, or one pod only",
            reason=CLAIM_NOT_SHAREABLE,
        )
    ]
