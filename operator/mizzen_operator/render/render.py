"""Owns the whole: resolved service and living groups → all objects, in the order of applying.

Does not own how many groups there are (``planner``). Pure and deterministic: equal input gives
equal objects.
"""

from dataclasses import dataclass
from typing import Any

from mizzen_operator.render import labels
from mizzen_operator.render.disruption import disruption_budgets
from mizzen_operator.render.names import account_name, keys_name
from mizzen_operator.render.network_policy import network_policies
from mizzen_operator.render.objects import finished, in_apply_order, metadata
from mizzen_operator.render.services import leader_service, public_service, rank_service
from mizzen_operator.render.tokenizer import tokenizer_deployment
from mizzen_operator.render.worker_group import worker_group
from mizzen_operator.spec.resolve import Resolved


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderContext:
    """What the planner decided, as far as objects depend on it."""

    groups: tuple[int, ...]
    """Indices of the groups of the wanted revision that shall exist now."""
    revisions: frozenset[str] = frozenset()
    """Other revisions with living groups, whose Services must stay."""
    cohorts: frozenset[str] = frozenset()
    """Other cohorts with living groups, whose Services must stay."""


def render(resolved: Resolved, context: RenderContext) -> tuple[dict[str, Any], ...]:
    """Every object that shall exist, except groups of other revisions and the CURVE Secret."""
    objects = [
        _account(resolved),
        *network_policies(resolved),
        public_service(resolved),
        *(rank_service(resolved, revision) for revision in context.revisions | {resolved.revision}),
        *disruption_budgets(resolved),
        *(worker_group(resolved, index) for index in context.groups),
    ]
    if resolved.tokenizer is not None:
        objects += [
            *(leader_service(resolved, cohort) for cohort in context.cohorts | {resolved.cohort}),
            tokenizer_deployment(resolved, resolved.tokenizer),
        ]
    return in_apply_order([finished(obj) for obj in objects])


def keys_metadata(resolved: Resolved) -> dict[str, Any] | None:
    """Metadata of the Secret with the CURVE keys; None where no pod talks to another."""
    return metadata(resolved, keys_name(resolved)) if resolved.tokenizer is not None else None


def _account(resolved: Resolved) -> dict[str, Any]:
    meta = metadata(resolved, account_name(resolved))
    meta["annotations"] = {labels.PINNED: resolved.pinned.as_text()}
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": meta,
        "automountServiceAccountToken": False,
    }
