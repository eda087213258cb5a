"""Owns the status of role scalers: how many there are of a role, and whether a wish is granted.

Does not own the service's status (``status``, ``refused``). Pure.
"""

from collections.abc import Iterator
from datetime import datetime
from typing import Any

from mizzen_operator.observed import Observed, RoleScalerFacts
from mizzen_operator.planner.groups import groups_of
from mizzen_operator.render import labels
from mizzen_operator.spec.resolve import TOKENIZER_BOUNDS, Resolved
from mizzen_operator.status.conditions import Verdict, as_conditions, no, yes
from mizzen_operator.status.holdups import living
from mizzen_operator.status.running import GRANTED, tokenizer_deployment

_ROLES = (labels.ROLE_WORKER, labels.ROLE_TOKENIZER)


def scaler_statuses(
    resolved: Resolved | None, observed: Observed, now: datetime
) -> Iterator[tuple[str, dict[str, Any]]]:
    """UID and status of each role scaler; ``resolved`` is None while the service is refused."""
    for facts in observed.role_scalers:
        role = facts.child.labels.get(labels.ROLE, "")
        if not observed.owns(facts.child) or role not in _ROLES:
            continue
        replicas, ready = _counts(observed, role)
        verdict = _granted(resolved, observed, facts, role)
        yield (
            facts.child.uid,
            {
                "observedGeneration": facts.generation,
                "replicas": replicas,
                "readyReplicas": ready,
                "selector": selector_text(observed.service.uid, role),
                "conditions": as_conditions(
                    [verdict], facts.status, generation=facts.generation, now=now
                ),
            },
        )


def selector_text(service_uid: str, role: str) -> str:
    """The selector of what a role counts, as ``/scale`` shows it."""
    selector = labels.scale_selector(service_uid, role)
    return ",".join(f"{key}={value}" for key, value in sorted(selector.items()))


def _counts(observed: Observed, role: str) -> tuple[int, int]:
    if role == labels.ROLE_WORKER:
        staying = [group for group in groups_of(observed) if not group.is_leaving]
        return len(staying), sum(group.is_ready for group in staying)
    pods = [pod for pod in living(observed.pods) if pod.child.labels.get(labels.ROLE) == role]
    deployment = tokenizer_deployment(observed)
    return len(pods), deployment.ready_replicas if deployment else 0


def _granted(
    resolved: Resolved | None, observed: Observed, facts: RoleScalerFacts, role: str
) -> Verdict:
    service = f"InferenceService {observed.service.name}"
    if resolved is None:
        return no(
            GRANTED, "ServiceRefused", f"{service} is refused: its condition Accepted says why"
        )
    if resolved.spec.stopped:
        return no(GRANTED, "Stopped", f"spec.stopped of {service} is true: nothing runs")
    if resolved.spec.paused:
        return no(GRANTED, "Paused", f"spec.paused of {service} is true: nothing is changed")
    bounds = resolved.worker_bounds if role == labels.ROLE_WORKER else TOKENIZER_BOUNDS
    asked = facts.replicas
    if bounds.granted(asked) != asked:
        why = f" ({bounds.because})" if bounds.because else ""
        return no(
            GRANTED,
            "OutOfBounds",
            f"spec.replicas: {asked} is not from {bounds.lowest} to {bounds.highest}, which role "
            f"{role} of {service} takes{why}; {bounds.granted(asked)} is wanted instead",
        )
    return yes(GRANTED, "AsAsked", f"{asked} of role {role} of {service} are wanted")
