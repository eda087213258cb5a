"""Owns why pods cannot be made, by role: a reason, and the sentence of the API server behind it.

Does not own finding it out: ``cluster/trial`` asks for StatefulSets, a Deployment tells it itself.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from mizzen_operator.errors import Objection, objection_of, words_of
from mizzen_operator.observed import Observed
from mizzen_operator.planner.holds import NO_OBJECTION, TemplateAnswers
from mizzen_operator.render import labels
from mizzen_operator.status.running import tokenizer_deployment

QUOTA_PENDING = "QuotaPending"
PODS_REFUSED = "PodsRefused"


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptOut:
    """Why pods of a role are missing."""

    reason: str
    text: str


def kept_out(observed: Observed, answers: TemplateAnswers = NO_OBJECTION) -> dict[str, KeptOut]:
    """By role, where something is known; ``answers`` are what dry runs found."""
    said: Mapping[str, str] = answers.kept_out
    deployment = tokenizer_deployment(observed)
    if deployment is not None and deployment.replica_failure:
        said = {**said, labels.ROLE_TOKENIZER: words_of(deployment.replica_failure)}
    return {role: _kept_out(text) for role, text in said.items()}


def _kept_out(said: str) -> KeptOut:
    is_quota = objection_of(said) is Objection.QUOTA_FULL
    return KeptOut(reason=QUOTA_PENDING if is_quota else PODS_REFUSED, text=said)


def as_one(found: Iterable[KeptOut]) -> KeptOut | None:
    """All of them as one sentence; a refusal weighs more than a quota, which others may free."""
    several = sorted(set(found), key=lambda item: (item.reason == QUOTA_PENDING, item.text))
    if not several:
        return None
    reason = several[0].reason
    until = "there is room" if reason == QUOTA_PENDING else "they are let in"
    texts = "; ".join(item.text for item in several)
    return KeptOut(reason=reason, text=f"{texts}; pods are made as soon as {until}")
