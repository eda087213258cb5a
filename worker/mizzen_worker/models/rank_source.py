"""Owns giving a rank its part of every weight by the weight's name; divides nothing itself.

A model asks for weights of its own sizes, as if it were whole, and knows of no ranks.
"""

import torch

from mizzen_worker.kernels.fp8_matrix import Fp8Matrix
from mizzen_worker.kernels.quantised_matrix import QuantisedMatrix
from mizzen_worker.models.known_architectures import ARCHITECTURE_BY_NAME
from mizzen_worker.models.shard_plan import Axis, ShardPlan
from mizzen_worker.models.weight_source import Part, PartialWeightSource


class RankSource:
    """Implements ``WeightSource`` for one rank."""

    def __init__(self, source: PartialWeightSource, plan: ShardPlan) -> None:
        self._source = source
        self._is_leader = plan.rank == 0
        vocabulary = plan.vocabulary
        self._rows_by_word = {
            "q_proj": plan.queries,
            "k_proj": plan.keys,
            "v_proj": plan.keys,
            "gate_proj": plan.inner,
            "up_proj": plan.inner,
            "embed_tokens": vocabulary,
            "lm_head": vocabulary,
        }
        self._columns_by_word = {"o_proj": plan.queries, "down_proj": plan.inner}
        self._expert_inner = plan.expert_inner
        self._expert_names = ARCHITECTURE_BY_NAME[plan.facts.architecture].experts

    def vector(self, name: str, length: int) -> torch.Tensor:
        """See ``WeightSource``; what is added to a sum over ranks is rank 0's, others add zeros."""
        rows, columns = self._axes(name)
        values = (
            self._source.vector(name, length)
            if rows is None
            else self._source.vector(name, rows.length, rows.own)
        )
        is_added_once = columns is not None and not self._is_leader
        return torch.zeros_like(values) if is_added_once else values

    def matrix(
        self, name: str, rows: int, columns: int
    ) -> torch.Tensor | QuantisedMatrix | Fp8Matrix:
        """See ``WeightSource``."""
        row_axis, column_axis = self._axes(name)
        return self._source.matrix(
            name,
            rows if row_axis is None else row_axis.length,
            columns if column_axis is None else column_axis.length,
            Part(
                rows=None if row_axis is None else row_axis.own,
                columns=None if column_axis is None else column_axis.own,
            ),
        )

    def _axes(self, name: str) -> tuple[Axis | None, Axis | None]:
        """By which axes the rows and the columns of a weight are divided, None: not at all."""
        word = name.rsplit(".", 2)[-2]
        if ".experts." not in name or self._expert_names is None:
            return self._rows_by_word.get(word), self._columns_by_word.get(word)
        is_down = word == self._expert_names.down
        return (None, self._expert_inner) if is_down else (self._expert_inner, None)
