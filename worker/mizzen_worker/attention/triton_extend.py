"""Owns attention of rows with any number of new tokens through one Triton kernel.

Every row of a step runs in the same launch, decode rows too, though ``TritonAttention`` gives those
to kernels that serve them better. Grids follow from the number of tokens and rows alone, and
lengths are read from the device, so a step can be captured and replayed with other rows.
"""

import torch

from mizzen_worker.attention.triton_attention import AttentionRule
from mizzen_worker.kernels.gpu.extend_attention import extend_attention
from mizzen_worker.kernels.gpu.extend_plan import (
    ExtendPlan,
    ExtendRows,
    HeadShape,
    choose_tile,
    plan_extend,
)
from mizzen_worker.kernels.gpu.launching import shared_memory
from mizzen_worker.memory.device_pool import DevicePool
from mizzen_worker.memory.forward_batch import ForwardBatch


class _ExtendStep:
    """The plan is made with the first layer's queries and serves all layers."""

    def __init__(self, pool: DevicePool, rule: AttentionRule, batch: ForwardBatch) -> None:
        self._pool = pool
        self._rule = rule
        self._num_tokens = batch.num_tokens
        self._rows = ExtendRows(
            page_table=batch.page_table,
            row_slots=batch.row_slots,
            row_starts=batch.device_row_starts,
            row_lengths=batch.device_row_lengths,
            page_size=batch.page_size,
        )
        self._plan: ExtendPlan | None = None

    def attend(
        self, layer: int, queries: torch.Tensor, window: int | None, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See ``StepAttention``."""
        if self._plan is None:
            shape = self._pool.shape
            heads = HeadShape(
                num_heads=queries.shape[1],
                num_kv_heads=shape.num_kv_heads,
                head_dim=shape.head_dim,
            )
            tile = choose_tile(heads, queries.dtype, shared_memory())
            self._plan = plan_extend(self._rows, heads, self._num_tokens, tile)
        rule = self._rule.of(layer, queries.shape[2], window, self._pool.scale(layer))
        keys, values = self._pool.keys(layer), self._pool.values(layer)
        return extend_attention(queries, keys, values, self._plan, rule, out)


class TritonExtend:
    """All rows by the extend kernel."""

    def __init__(self, pool: DevicePool, rule: AttentionRule | None = None) -> None:
        """``rule`` None: scores are scaled by head_dim ** -0.5 and nothing else."""
        self._pool = pool
        self._rule = rule or AttentionRule()

    def begin(self, batch: ForwardBatch, *, is_dependent: bool = False) -> _ExtendStep:  # noqa: ARG002 - no launch here is dependent
        """See ``AttentionBackend``."""
        return _ExtendStep(self._pool, self._rule, batch)
