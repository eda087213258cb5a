"""ResolvedRefs: the claim that the spec names, and Secrets as far as pods tell of them."""

from dataclasses import replace
from typing import Any

from tests.operator.documents import resolved
from tests.operator.planner.world import World, foreign, ready_pod

from mizzen_operator.observed import ClaimFacts, Observed
from mizzen_operator.status.conditions import Verdict
from mizzen_operator.status.references import resolved_refs

BOUND = ClaimFacts(name="weights", phase="Bound", access_modes=("ReadOnlyMany",))


def seen(**facts: Any) -> Observed:
    base = replace(World(service=resolved()).observed(), claims=(BOUND,), claims_known=True)
    return replace(base, **facts)


def judged(**facts: Any) -> Verdict:
    return resolved_refs(resolved(), seen(**facts))


def test_a_claim_that_exists_is_enough() -> None:
    assert (judged().status, judged().reason) == ("True", "Resolved")


def test_row_17_a_claim_that_is_missing_is_named_with_its_field() -> None:
    verdict = judged(claims=())
    assert (verdict.status, verdict.reason) == ("False", "ClaimNotFound")
    assert verdict.message.startswith("spec.model.source.pvc.claimName: claim weights does not")


def test_a_claim_that_may_not_be_read_is_not_judged() -> None:
    verdict = judged(claims=(), claims_known=False)
    assert (verdict.status, verdict.reason) == ("Unknown", "NotLookedAt")


def test_row_17_a_missing_secret_is_named_by_the_pod_that_needs_it() -> None:
    pod = replace(
        ready_pod(foreign("p-0", "Pod", "owner")),
        is_ready=False,
        waiting_reason="CreateContainerConfigError",
        waiting_message='secret "hub-token" not found',
    )
    verdict = judged(pods=(pod,))
    assert (verdict.status, verdict.reason) == ("False", "SecretMissing")
    assert verdict.message == 'p-0: secret "hub-token" not found'
