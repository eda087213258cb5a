"""Why pods cannot be made: what the Deployment says counts more than what was asked before."""

from dataclasses import replace

from tests.operator.documents import resolved
from tests.operator.planner.world import World

from mizzen_operator.observed import Observed
from mizzen_operator.planner.holds import TemplateAnswers
from mizzen_operator.status.keptout import KeptOut, as_one, kept_out

QUOTA = KeptOut(reason="QuotaPending", text="exceeded quota: q")
POLICY = KeptOut(reason="PodsRefused", text="no pods on Mondays")


def seen(failure: str = "") -> Observed:
    world = World(service=resolved(topology="Split"))
    world.carry_out(world.plan())
    (deployment,) = world.observed().deployments
    told = replace(deployment, replica_failure=failure)
    return replace(world.observed(), deployments=(told,))


def test_nothing_is_known_where_nothing_was_said() -> None:
    assert kept_out(seen()) == {}
    assert as_one([]) is None


def test_what_a_deployment_says_is_newer_than_a_dry_run() -> None:
    answers = TemplateAnswers(kept_out={"worker": QUOTA.text, "tokenizer": QUOTA.text})
    assert kept_out(seen(), answers) == {"worker": QUOTA, "tokenizer": QUOTA}
    told = kept_out(seen(f'pods "x-8fhs2" is forbidden: {POLICY.text}'), answers)
    assert told == {"worker": QUOTA, "tokenizer": POLICY}


def test_one_sentence_is_said_once_and_a_refusal_first() -> None:
    assert as_one([QUOTA, QUOTA]) == replace(
        QUOTA, text=f"{QUOTA.text}; pods are made as soon as there is room"
    )
    assert as_one([QUOTA, POLICY]) == replace(
        POLICY, text=f"{POLICY.text}; {QUOTA.text}; pods are made as soon as they are let in"
    )
