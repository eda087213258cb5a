"""Owns finding the operator defaults that a service started with, among its live objects.

Does not own what a pin means (``spec/resolve``). The pin is an annotation of the ServiceAccount,
because that object lives exactly as long as the service.
"""

from mizzen_operator.observed import Observed
from mizzen_operator.render import labels
from mizzen_operator.spec.resolve import Pinned, pinned_of


def pinned_defaults(observed: Observed) -> Pinned | None:
    """The pin, or None for a service that has no objects yet."""
    for child in observed.children:
        is_account = child.kind == "ServiceAccount" and observed.owns(child)
        if is_account and labels.PINNED in child.annotations:
            return pinned_of(child.annotations[labels.PINNED])
    return None
