"""Owns the judgement of weights that are fetched, and what the status tells of them.

Does not own how far they are (``planner/weights``) nor the weights on a user's claim (``judge``).
"""

from typing import Any

from mizzen_operator.planner.weights import WeightsPhase, WeightsState
from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.status.conditions import Verdict, no, yes
from mizzen_operator.status.references import weights_claim
from mizzen_operator.status.running import DEGRADED, MODEL_READY, PROGRESSING

WEIGHTS_NOT_READY = "WeightsNotReady"
"""Reason of what waits for the weights; ModelReady has the reason why they are not there."""


def are_awaited(weights: WeightsState | None) -> bool:
    """Whether pods wait for weights that are fetched."""
    return weights is not None and not weights.is_ready


def fetched_model_ready(weights: WeightsState, num_loaded: int) -> Verdict:
    """Whether the weights are there; ``num_loaded`` groups of this revision have loaded them."""
    if weights.reason is not None:
        return no(MODEL_READY, weights.reason.value, weights.message)
    if num_loaded:
        return yes(MODEL_READY, "Loaded", f"{num_loaded} worker groups have loaded it")
    return yes(MODEL_READY, "Fetched", f"the weights are whole on claim {weights.claim}")


def given_up(weights: WeightsState | None) -> Verdict | None:
    """The verdict that a person has to help; None while it goes on by itself."""
    if weights is None or weights.reason is None or weights.phase is not WeightsPhase.FAILED:
        return None
    return yes(DEGRADED, weights.reason.value, weights.message)


def stopped_by_weights(weights: WeightsState | None) -> Verdict | None:
    """The verdict that nothing goes on for lack of weights; None while it does."""
    if weights is None or weights.phase is not WeightsPhase.FAILED:
        return None
    return no(PROGRESSING, WEIGHTS_NOT_READY, weights.waits_for)


def resolved_model(resolved: Resolved, weights: WeightsState | None) -> dict[str, Any]:
    """The weights as a reference, and what it was resolved to once they were fetched.

    Those on a user's claim have no revision that could be told.
    """
    cache = resolved.spec.model.cache
    if weights is None:
        claim = weights_claim(resolved)
        return {"source": f"pvc://{claim.claim_name}/{claim.path}"}
    if weights.fetched is None or cache is None:
        return {"source": weights.source}
    fetched = weights.fetched
    known = {"revision": fetched.revision} if fetched.revision else {}
    size = {"bytes": fetched.size_bytes} if fetched.size_bytes else {}
    kept = {"claim": fetched.claim, "retained": cache.retain}
    return {"source": weights.source, **known, **size, **kept}
