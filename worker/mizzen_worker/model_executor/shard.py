"""Owns a rank's share of one model, and reading it; divides nothing itself.

A rank of size 1 has no share: then everything is as if there were no ranks.
"""

from dataclasses import dataclass

import torch

from mizzen_worker.layers.collective import Collective
from mizzen_worker.layers.operations import W, WeightPreparer
from mizzen_worker.layers.ranks import JoinedRanks
from mizzen_worker.model_executor.weights.checkpoint import Checkpoint
from mizzen_worker.model_executor.weights.progress import ProgressCallback
from mizzen_worker.models.model_facts import ModelFacts
from mizzen_worker.models.rank_source import RankSource
from mizzen_worker.models.registry import Model, build_model
from mizzen_worker.models.shard_plan import ShardPlan, plan_shard


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """What a rank has of a model, and how it reaches the others."""

    plan: ShardPlan
    collective: Collective

    @property
    def ranks(self) -> JoinedRanks:
        """For the operations of the model."""
        vocabulary = self.plan.vocabulary
        return JoinedRanks(self.collective, vocabulary.own, vocabulary.length)

    def least(self, number: int) -> int:
        """The least of all ranks' numbers; every rank asks."""
        return min(self._of_all(number))

    def is_any(self, is_so: bool) -> bool:  # noqa: FBT001  (a question's one argument)
        """Whether it is so on any rank; every rank asks."""
        return any(self._of_all(int(is_so)))

    def _of_all(self, number: int) -> list[int]:
        found: list[int] = self.collective.gather_columns(torch.tensor([[number]]))[0].tolist()
        return found


def shard_of(facts: ModelFacts, collective: Collective | None) -> Shard | None:
    """The rank's share, None where it has everything; raises ``ConfigError``."""
    if collective is None or collective.size == 1:
        return None
    plan = plan_shard(facts, rank=collective.rank, size=collective.size)
    return Shard(plan=plan, collective=collective)


def own_facts(facts: ModelFacts, shard: Shard | None) -> ModelFacts:
    """The model as this rank computes it."""
    return facts if shard is None else shard.plan.facts


def read_model(
    checkpoint: Checkpoint,
    prepare: WeightPreparer[W],
    progress: ProgressCallback,
    shard: Shard | None,
) -> Model[W]:
    """Read all weights that a rank has; raises ``ModelLoadError``."""
    if shard is None:
        weights = checkpoint.open_weights(progress)
        model = build_model(checkpoint.facts, weights.source, prepare)
        weights.finish()
        return model
    size = shard.plan.size
    # Sources count what they read, which is about one part of so many.
    weights = checkpoint.open_weights(lambda done, all_: progress(min(size * done, all_), all_))
    model = build_model(shard.plan.facts, RankSource(weights.source, shard.plan), prepare)
    weights.finish()
    return model
