"""Owns the plain-torch implementation of ``Operations``: every device, every float dtype.

Weights are dense in the compute dtype. One ``TorchOperations`` lives for one step.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)

from mizzen_worker.kernels.reference.moe import choose_experts, mix_experts
from mizzen_worker.kernels.reference.rms_norm import rms_norm
from mizzen_worker.kernels.reference.rotary import rotate
from mizzen_worker.layers.expert_stack import stack_experts
from mizzen_worker.layers.operations import AttendFunction, Experts, HeadNorms, StoredMatrix
from mizzen_worker.layers.ranks import LONE_RANK, Ranks
from mizzen_worker.layers.stored_matrix import as_tensor
from mizzen_worker.memory.device_pool import DevicePool
from mizzen_worker.memory.forward_batch import ForwardBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchWeight:
    """``values`` of a matrix [outputs, inputs] or of a norm [size]; ``bias`` [outputs].

    The matrices of experts are one [num_experts, outputs, inputs], gate rows before those of up.
    ``input_norm`` [inputs] is the RMS norm that stands before the projection.
    """

    values: torch.Tensor
    bias: torch.Tensor | None = None
    input_norm: torch.Tensor | None = None


class TorchWeightPreparer:
    """Dense tensors on the device in the compute dtype."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = dtype
        self._device = device

    def linear(
        self, parts: Sequence[StoredMatrix], bias: torch.Tensor | None = None
    ) -> TorchWeight:
        """See ``WeightPreparer``."""
        return TorchWeight(
            values=torch.cat([self._dense(part) for part in parts]),
            bias=None if bias is None else bias.to(self._device, self._dtype),
        )

    def gate_up(
        self, gate: StoredMatrix, up: StoredMatrix, bias: torch.Tensor | None = None
    ) -> TorchWeight:
        """See ``WeightPreparer``."""
        return self.linear([gate, up], bias)

    def expert_gate_up(
        self, pairs: Iterable[tuple[StoredMatrix, StoredMatrix]], num_experts: int
    ) -> TorchWeight:
        """See ``WeightPreparer``."""
        both = (torch.cat([self._dense(gate), self._dense(up)]) for gate, up in pairs)
        return self.expert_down(both, num_experts)

    def expert_down(self, matrices: Iterable[StoredMatrix], num_experts: int) -> TorchWeight:
        """See ``WeightPreparer``."""
        dense = (self._dense(matrix) for matrix in matrices)
        return TorchWeight(values=stack_experts(dense, num_experts))

    def normed(self, weight: TorchWeight, norm: torch.Tensor) -> TorchWeight:
        """See ``WeightPreparer``."""
        return replace(weight, input_norm=norm.to(self._device, self._dtype))

    def unnormed(self, weight: TorchWeight) -> TorchWeight:
        """See ``WeightPreparer``."""
        return weight

    def norm(self, weight: torch.Tensor) -> TorchWeight:
        """See ``WeightPreparer``."""
        return TorchWeight(values=weight.to(self._device, self._dtype))

    def _dense(self, part: StoredMatrix) -> torch.Tensor:
        return as_tensor(part).to(self._device, self._dtype)


class TorchOperations:
    """One step in plain torch."""

    def __init__(
        self,
        batch: ForwardBatch,
        pool: DevicePool,
        attend: AttendFunction,
        table: torch.Tensor,
        eps: float,
        ranks: Ranks = LONE_RANK,
    ) -> None:
        self._ranks = ranks
        self._batch = batch
        self._pool = pool
        self._attend = attend
        self._table = table[batch.positions]
        self._eps = eps

    def embed(self, embedding: TorchWeight) -> torch.Tensor:
        """See ``Operations``."""
        token_ids = self._batch.token_ids
        embedded = F.embedding(self._ranks.own_ids(token_ids), embedding.values)
        self._ranks.sum_embedded(embedded, token_ids)
        return embedded

    def norm_qkv_rotary_store(
        self, hidden: torch.Tensor, qkv: TorchWeight, layer: int
    ) -> torch.Tensor:
        """See ``Operations``."""
        return self._rotate_and_store(*self._heads(hidden, qkv), layer)

    def norm_qkv_head_norm_rotary_store(
        self,
        hidden: torch.Tensor,
        qkv: TorchWeight,
        heads: HeadNorms[TorchWeight],
        layer: int,
    ) -> torch.Tensor:
        """See ``Operations``."""
        queries, keys, values = self._heads(hidden, qkv)
        queries = rms_norm(queries, heads.query.values, self._eps)
        keys = rms_norm(keys, heads.key.values, self._eps)
        return self._rotate_and_store(queries, keys, values, layer)

    def attend(self, queries: torch.Tensor, layer: int, window: int | None) -> torch.Tensor:
        """See ``Operations``."""
        return self._attend(layer, queries, window)

    def linear_add(
        self, value: torch.Tensor, weight: TorchWeight, residual: torch.Tensor
    ) -> torch.Tensor:
        """See ``Operations``."""
        projected = F.linear(value, weight.values, weight.bias)
        self._ranks.sum(projected)
        return residual + projected

    def norm_gate_up_silu(self, hidden: torch.Tensor, gate_up: TorchWeight) -> torch.Tensor:
        """See ``Operations``."""
        gate, up = self._norm_linear(hidden, gate_up).chunk(2, dim=-1)
        return F.silu(gate) * up

    def norm_experts_add(self, hidden: torch.Tensor, experts: Experts[TorchWeight]) -> torch.Tensor:
        """See ``Operations``."""
        normed = rms_norm(hidden, _input_norm(experts.router), self._eps)
        logits = F.linear(normed, experts.router.values)
        routing = experts.routing
        chosen, weights = choose_experts(
            logits, routing.num_chosen, is_normalised=routing.is_normalised
        )
        gate_up, down = experts.gate_up.values, experts.down.values
        mixed = mix_experts(normed, gate_up, down, chosen, weights)
        self._ranks.sum(mixed)
        return hidden + mixed

    def select_sampled(self, value: torch.Tensor) -> torch.Tensor:
        """See ``Operations``."""
        return value[self._batch.sampled_tokens]

    def norm_head(self, hidden: torch.Tensor, norm: TorchWeight, head: TorchWeight) -> torch.Tensor:
        """See ``Operations``."""
        normed = rms_norm(hidden, norm.values, self._eps)
        return self._ranks.whole_logits(F.linear(normed, head.values, head.bias).float())

    def _norm_linear(self, hidden: torch.Tensor, weight: TorchWeight) -> torch.Tensor:
        normed = rms_norm(hidden, _input_norm(weight), self._eps)
        return F.linear(normed, weight.values, weight.bias)

    def _heads(
        self, hidden: torch.Tensor, qkv: TorchWeight
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Queries, keys and values, each [num_tokens, heads, head_dim]."""
        shape = self._pool.shape
        projected = self._norm_linear(hidden, qkv)
        heads = projected.view(len(projected), -1, shape.head_dim)
        num_heads = heads.shape[1] - 2 * shape.num_kv_heads
        queries, rest = heads[:, :num_heads], heads[:, num_heads:]
        return queries, rest[:, : shape.num_kv_heads], rest[:, shape.num_kv_heads :]

    def _rotate_and_store(
        self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, layer: int
    ) -> torch.Tensor:
        pool_keys, pool_values = self._pool.keys(layer), self._pool.values(layer)
        locations = self._batch.kv_locations
        pool_keys[locations] = rotate(keys, self._table).to(pool_keys.dtype)
        pool_values[locations] = values.to(pool_values.dtype)
        return rotate(queries, self._table)


def _input_norm(weight: TorchWeight) -> torch.Tensor:
    if weight.input_norm is None:
        message = "this weight was not prepared with a norm of its input"
        raise ValueError(message)
    return weight.input_norm
