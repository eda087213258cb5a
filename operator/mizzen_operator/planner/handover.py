"""Owns the hand-over between cohorts: new requests meet only worker groups of their own.

Does not own the steps of groups (``rollout``). Rules that keep clients served while both roll:
- tokenizers stay with their cohort while it has more ready groups than the new one;
- the last ready group of a cohort stays while tokenizers need it, unless there is no other group
  that could make room for the new cohort;
- tokenizers that end take no new request but stay until their streams have ended. Where any group
  of the new cohort can go on with those, the name under which they look for workers leads to all
  groups; where none can, the last ready group of their own cohort stays for them.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from mizzen_operator.observed import Observed, PodFacts
from mizzen_operator.planner.groups import Group, is_lost
from mizzen_operator.planner.history import StoredRevision, revision_of_cohort
from mizzen_operator.render import labels
from mizzen_operator.render.names import tokenizer_name
from mizzen_operator.spec.resolve import Resolved
from mizzen_operator.spec.weights import weights_identity


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenizerCohorts:
    """Cohorts that have tokenizer pods, by how far these are."""

    former: frozenset[str]
    """All but the wanted one, whatever their pods do."""
    ready: frozenset[str]
    """Some of whose pods are ready."""
    leaving: frozenset[str]
    """Some of whose pods end."""
    open: frozenset[str]
    """Former ones of which only ending pods are left, whose streams may go anywhere.

    As long as one takes new requests it must meet its own cohort alone.
    """


def tokenizer_cohorts(
    resolved: Resolved, observed: Observed, history: Sequence[StoredRevision], now: datetime
) -> TokenizerCohorts:
    """By the tokenizer pods that there are; one that was to end long ago counts no more."""
    pods = _tokenizer_pods(resolved, observed, now)
    former = frozenset(_cohort_of(pod) for pod in pods) - {resolved.cohort, ""}
    only_leaving = former - {_cohort_of(pod) for pod in pods if not pod.child.deleting}
    return TokenizerCohorts(
        former=former,
        ready=frozenset(_cohort_of(pod) for pod in pods if pod.is_ready),
        leaving=frozenset(_cohort_of(pod) for pod in pods if pod.child.deleting),
        open=frozenset(one for one in only_leaving if _can_take_over(resolved, history, one)),
    )


def are_tokenizers_held(resolved: Resolved, observed: Observed, groups: Iterable[Group]) -> bool:
    """Whether the tokenizer Deployment keeps its present template for now.

    ``groups`` are those that stay after this step.
    """
    cohort = deployed_cohort(resolved, observed)
    if cohort in ("", resolved.cohort) or resolved.groups == 0:
        return False
    ready = [group.cohort for group in groups if group.is_ready]
    return ready.count(cohort) > ready.count(resolved.cohort)


def protected_groups(
    resolved: Resolved, groups: Iterable[Group], tokenizers: TokenizerCohorts
) -> frozenset[str]:
    """Names of the ready groups that tokenizers still need although the service moves on."""
    ready = [group for group in groups if group.is_ready]
    needed = tokenizers.ready | (tokenizers.leaving - tokenizers.open)
    # Without another group to spend, one of these has to make room for the new cohort.
    if all(group.cohort in needed - {resolved.cohort} for group in ready):
        return frozenset()
    last = {group.cohort: group.name for group in ready if group.cohort != resolved.cohort}
    return frozenset(name for cohort, name in last.items() if cohort in needed)


def _can_take_over(resolved: Resolved, history: Sequence[StoredRevision], cohort: str) -> bool:
    """Whether workers of the wanted cohort can go on with streams of a former one.

    The worker has the last word (the same weights, vocabulary and wire version, told in its
    Hello). What may change those is compared here, so that nothing waits for what cannot come.
    """
    former = revision_of_cohort(history, cohort)
    return former is not None and _stream_inputs(former) == _stream_inputs(resolved)


def _stream_inputs(resolved: Resolved) -> tuple[object, ...]:
    spec = resolved.spec
    engine = spec.engine
    weights = weights_identity(spec.model)
    return (
        spec.topology,
        weights,
        resolved.worker_image,
        engine.dtype,
        engine.args,
        # Tokenizers that end have the keys that they began with: no worker with others hears them.
        resolved.key_generation,
    )


def _tokenizer_pods(resolved: Resolved, observed: Observed, now: datetime) -> list[PodFacts]:
    """Without those that should have ended long ago: their node is lost, and so are streams."""
    restart = resolved.spec.worker.restart
    return [
        pod
        for pod in observed.pods
        if pod.child.labels.get(labels.ROLE) == labels.ROLE_TOKENIZER
        and not is_lost(pod, restart, now)
    ]


def _cohort_of(pod: PodFacts) -> str:
    return pod.child.labels.get(labels.COHORT, "")


def deployed_cohort(resolved: Resolved, observed: Observed) -> str:
    """Cohort of the tokenizer Deployment's present template; empty without one."""
    deployed = observed.deployment(tokenizer_name(resolved))
    return "" if deployed is None else deployed.child.labels.get(labels.COHORT, "")
