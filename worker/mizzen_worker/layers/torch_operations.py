"""Owns the plain-torch implementation of ``Operations``: every device, every float dtype.

Weights are dense in the compute dtype. One ``TorchOperations`` lives for one step.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)

from mizzen_worker.kernels.quantised_matrix import QuantisedMatrix
from mizzen_worker.kernels.reference.rms_norm import rms_norm
from mizzen_worker.kernels.reference.rotary import rotate
from mizzen_worker.layers.operations import HeadNorms, StoredMatrix
from mizzen_worker.memory.device_pool import DevicePool
from mizzen_worker.memory.forward_batch import ForwardBatch

AttendFunction = Callable[[int, torch.Tensor, int | None], torch.Tensor]
"""Layer, queries of all tokens and window to their attention; see ``attention/base.py``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchWeight:
    """``values`` of a matrix [outputs, inputs] or of a norm [size]; ``bias`` [outputs].

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
        dense = [
            torch.from_numpy(part.dequantise()) if isinstance(part, QuantisedMatrix) else part
            for part in parts
        ]
        return TorchWeight(
            values=torch.cat([part.to(self._device, self._dtype) for part in dense]),
            bias=None if bias is None else bias.to(self._device, self._dtype),
        )

    def gate_up(
        self, gate: StoredMatrix, up: StoredMatrix, bias: torch.Tensor | None = None
    ) -> TorchWeight:
        """See ``WeightPreparer``."""
        return self.linear([gate, up], bias)

    def normed(self, weight: TorchWeight, norm: torch.Tensor) -> TorchWeight:
        """See ``WeightPreparer``."""
        return replace(weight, input_norm=norm.to(self._device, self._dtype))

    def norm(self, weight: torch.Tensor) -> TorchWeight:
        """See ``WeightPreparer``."""
        return TorchWeight(values=weight.to(self._device, self._dtype))


class TorchOperations:
    """One step in plain torch."""

    def __init__(
        self,
        batch: ForwardBatch,
        pool: DevicePool,
        attend: AttendFunction,
        table: torch.Tensor,
        eps: float,
    ) -> None:
        self._batch = batch
        self._pool = pool
        self._attend = attend
        self._table = table[batch.positions]
        self._eps = eps

    def embed(self, embedding: TorchWeight) -> torch.Tensor:
        """See ``Operations``."""
        return F.embedding(self._batch.token_ids, embedding.values)

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
        return residual + F.linear(value, weight.values, weight.bias)

    def norm_gate_up_silu(self, hidden: torch.Tensor, gate_up: TorchWeight) -> torch.Tensor:
        """See ``Operations``."""
        gate, up = self._norm_linear(hidden, gate_up).chunk(2, dim=-1)
        return F.silu(gate) * up

    def select_sampled(self, value: torch.Tensor) -> torch.Tensor:
        """See ``Operations``."""
        return value[self._batch.sampled_tokens]

    def norm_head(self, hidden: torch.Tensor, norm: TorchWeight, head: TorchWeight) -> torch.Tensor:
        """See ``Operations``."""
        normed = rms_norm(hidden, norm.values, self._eps)
        return F.linear(normed, head.values, head.bias).float()

    def _norm_linear(self, hidden: torch.Tensor, weight: TorchWeight) -> torch.Tensor:
        if weight.input_norm is None:
            message = "this weight was not prepared with a norm of its input"
            raise ValueError(message)
        return F.linear(rms_norm(hidden, weight.input_norm, self._eps), weight.values, weight.bias)

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
