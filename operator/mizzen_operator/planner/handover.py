"""Owns the hand-over between cohorts: tokenizer pods work only with worker groups of their own.

Does not own the steps of groups (``rollout``). Two rules keep clients served while both roll:
- tokenizers stay with their cohort while it has more ready groups than the new one;
- the last ready group of a cohort stays while ready tokenizers of that cohort do, once the new
  cohort has a ready group to move to.
"""

from collections.abc import Iterable

from mizzen_operator.observed import Observed
from mizzen_operator.planner.groups import Group
from mizzen_operator.render import labels
from mizzen_operator.render.names import tokenizer_name
from mizzen_operator.spec.resolve import Resolved


def are_tokenizers_held(resolved: Resolved, observed: Observed, groups: Iterable[Group]) -> bool:
    """Whether the tokenizer Deployment keeps its present template for now.

    ``groups`` are those that stay after this step.
    """
    cohort = _deployed_cohort(resolved, observed)
    if cohort in ("", resolved.cohort) or resolved.groups == 0:
        return False
    ready = [group.cohort for group in groups if group.is_ready]
    return ready.count(cohort) > ready.count(resolved.cohort)


def protected_groups(
    resolved: Resolved, observed: Observed, groups: Iterable[Group]
) -> frozenset[str]:
    """Names of the ready groups that tokenizers still need although a newer cohort serves."""
    ready = [group for group in groups if group.is_ready]
    if not any(group.cohort == resolved.cohort for group in ready):
        return frozenset()
    serving = {
        pod.child.labels.get(labels.COHORT, "")
        for pod in observed.pods
        if pod.is_ready and pod.child.labels.get(labels.ROLE) == labels.ROLE_TOKENIZER
    }
    last = {group.cohort: group.name for group in ready if group.cohort != resolved.cohort}
    return frozenset(name for cohort, name in last.items() if cohort in serving)


def _deployed_cohort(resolved: Resolved, observed: Observed) -> str:
    deployed = observed.deployment(tokenizer_name(resolved))
    return "" if deployed is None else deployed.child.labels.get(labels.COHORT, "")
