"""Owns the whole: resolved service and living groups → all objects, in the order of applying.

Does not own how many groups there are (``planner``). Pure and deterministic: equal input gives
equal objects.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from mizzen_operator.render import labels
from mizzen_operator.render.disruption import disruption_budgets
from mizzen_operator.render.group_life import NEW_LIFE, GroupLife, with_life
from mizzen_operator.render.history import FetchedWeights, stored_revision
from mizzen_operator.render.monitoring import monitoring_objects
from mizzen_operator.render.names import account_name, group_name, keys_name
from mizzen_operator.render.network_policy import group_policies, network_policies
from mizzen_operator.render.objects import finished, in_apply_order, metadata
from mizzen_operator.render.role_scaler import role_scalers
from mizzen_operator.render.routes import route_objects
from mizzen_operator.render.services import leader_service, public_service, rank_service
from mizzen_operator.render.templates import template_of
from mizzen_operator.render.weights import EVERYTHING, FetchContext, weights_objects
from mizzen_operator.spec.model import Tokenizer
from mizzen_operator.spec.resolve import Resolved


@dataclass(frozen=True, slots=True, kw_only=True)
class FormerGroup:
    """A living group of a revision that is wanted no more."""

    resolved: Resolved
    """What it is rendered from: the service as it was in its own revision."""
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderContext:
    """What the planner decided, as far as objects depend on it."""

    groups: tuple[int, ...]
    """Indices of the groups of the wanted revision that shall exist now."""
    number: int = 1
    """Of the wanted revision in the history."""
    former: tuple[FormerGroup, ...] = ()
    """Groups of other revisions that stay for now, as they are."""
    revisions: frozenset[str] = frozenset()
    """Other revisions with living groups, whose Services must stay."""
    cohorts: frozenset[str] = frozenset()
    """Other cohorts with living groups or tokenizers, whose Services must stay."""
    open_cohorts: frozenset[str] = frozenset()
    """Those of them whose Services lead to the groups of every cohort."""
    key_generations: Mapping[str, str] = field(default_factory=dict)
    """Which keys other cohorts have."""
    lives: Mapping[str, GroupLife] = field(default_factory=dict)
    """Of groups that exist, by name; the others begin a new one."""
    fetch: FetchContext = EVERYTHING
    """Of weights that are fetched."""
    fetched: FetchedWeights | None = None
    """The weights that were fetched for the wanted revision; None before and for a user's claim."""

    @property
    def former_pairs(self) -> tuple[tuple[Resolved, int], ...]:
        """Each former group as what it is rendered from, and its index."""
        return tuple((group.resolved, group.index) for group in self.former)


def render(resolved: Resolved, context: RenderContext) -> tuple[dict[str, Any], ...]:
    """Every object that shall exist, except other stored revisions and CURVE Secrets."""
    template = template_of(resolved)
    living = [*((resolved, index) for index in context.groups), *context.former_pairs]
    shapes = [resolved, *(one for one, _ in context.former_pairs)]
    objects = [
        stored_revision(resolved, context.number, context.fetched),
        _account(resolved),
        *network_policies(resolved, have_followers=any(one.nodes > 1 for one in shapes)),
        *weights_objects(resolved, context.fetch),
        public_service(resolved),
        *_rank_services(resolved, context),
        *disruption_budgets(resolved),
        *monitoring_objects(resolved),
        *route_objects(resolved),
    ]
    if resolved.tokenizer is not None:
        keys = {**context.key_generations, resolved.cohort: resolved.key_generation}
        objects += [
            *(
                leader_service(
                    resolved,
                    cohort,
                    is_open=cohort in context.open_cohorts,
                    key_generation=keys.get(cohort, ""),
                )
                for cohort in context.cohorts | {resolved.cohort}
            ),
            template.tokenizer_deployment(resolved, resolved.tokenizer),
        ]
    if resolved.spec.network_policy != "Off":
        objects += [policy for one, index in living for policy in group_policies(one, index)]
    groups = [
        rendered_worker_group(one, index, context.lives.get(group_name(one, index), NEW_LIFE))
        for one, index in living
    ]
    return in_apply_order([*map(finished, objects), *groups, *role_scalers(resolved)])


def _rank_services(resolved: Resolved, context: RenderContext) -> Iterator[dict[str, Any]]:
    """One for each living revision; one of which only leaving groups are left has no form of its
    own any more, and needs none beyond its pods' names."""
    form = {one.revision: one for one, _ in context.former_pairs}
    for revision in context.revisions | {resolved.revision}:
        yield rank_service(form.get(revision, resolved), revision)


def rendered_worker_group(
    resolved: Resolved, index: int, life: GroupLife = NEW_LIFE
) -> dict[str, Any]:
    """One group by itself, as ``render`` has it."""
    return with_life(finished(template_of(resolved).worker_group(resolved, index)), life)


def rendered_tokenizer(resolved: Resolved, tokenizer: Tokenizer) -> dict[str, Any]:
    """The tokenizer Deployment by itself, as ``render`` has it."""
    return finished(template_of(resolved).tokenizer_deployment(resolved, tokenizer))


def keys_metadata(resolved: Resolved) -> dict[str, Any] | None:
    """Metadata of the Secret with the CURVE keys; None where no pod talks to another."""
    if resolved.tokenizer is None:
        return None
    generation = resolved.key_generation
    return metadata(
        resolved, keys_name(resolved, generation), extra_labels=labels.of_keys(generation)
    )


def _account(resolved: Resolved) -> dict[str, Any]:
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": metadata(resolved, account_name(resolved)),
        "automountServiceAccountToken": False,
    }
    names = resolved.account_pull_secrets
    # The API server gives them to new pods that name none: no template changes, no pod moves.
    return {**account, "imagePullSecrets": [{"name": name} for name in names]} if names else account
