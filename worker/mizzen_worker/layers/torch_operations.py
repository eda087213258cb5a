"""Owns the plain-torch implementation of ``Operations``: every device, every float dtype.

Weights are dense in the compute dtype. One ``TorchOperations`` lives for one step.
"""

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F  # noqa: N812  (torch's own convention)

from mizzen_worker.kernels.quantised_matrix import QuantisedMatrix
from mizzen_worker.kernels.reference.rms_norm import rms_norm
from mizzen_worker.kernels.reference.rotary import rotate
from mizzen_worker.layers.operations import StoredMatrix
from mizzen_worker.memory.device_pool import DevicePool
from mizzen_worker.memory.forward_batch import ForwardBatch

AttendFunction = Callable[[int, torch.Tensor], torch.Tensor]
"""Layer and queries of all tokens of the step to their attention; see ``attention/base.py``."""


class TorchWeightPreparer:
    """Dense tensors on the device in the compute dtype."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self._dtype = dtype
        self._device = device

    def linear(self, parts: Sequence[StoredMatrix]) -> torch.Tensor:
        """See ``WeightPreparer``."""
        dense = [
            torch.from_numpy(part.dequantise()) if isinstance(part, QuantisedMatrix) else part
            for part in parts
        ]
        return torch.cat([part.to(self._device, self._dtype) for part in dense])

    def norm(self, weight: torch.Tensor) -> torch.Tensor:
        """See ``WeightPreparer``."""
        return weight.to(self._device, self._dtype)


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

    def embed(self, embedding: torch.Tensor) -> torch.Tensor:
        """See ``Operations``."""
        return F.embedding(self._batch.token_ids, embedding)

    def norm_qkv_rotary_store(
        self, hidden: torch.Tensor, norm: torch.Tensor, qkv: torch.Tensor, layer: int
    ) -> torch.Tensor:
        """See ``Operations``."""
        shape = self._pool.shape
        projected = F.linear(rms_norm(hidden, norm, self._eps), qkv)
        heads = projected.view(len(projected), -1, shape.head_dim)
        num_rotated = heads.shape[1] - shape.num_kv_heads
        rotated = rotate(heads[:, :num_rotated], self._table)
        num_heads = num_rotated - shape.num_kv_heads
        pool_keys, pool_values = self._pool.keys(layer), self._pool.values(layer)
        pool_keys[self._batch.kv_locations] = rotated[:, num_heads:].to(pool_keys.dtype)
        pool_values[self._batch.kv_locations] = heads[:, num_rotated:].to(pool_values.dtype)
        return rotated[:, :num_heads]

    def attend(self, queries: torch.Tensor, layer: int) -> torch.Tensor:
        """See ``Operations``."""
        return self._attend(layer, queries)

    def linear_add(
        self, value: torch.Tensor, weight: torch.Tensor, residual: torch.Tensor
    ) -> torch.Tensor:
        """See ``Operations``."""
        return residual + F.linear(value, weight)

    def norm_gate_up_silu(
        self, hidden: torch.Tensor, norm: torch.Tensor, gate_up: torch.Tensor
    ) -> torch.Tensor:
        """See ``Operations``."""
        gate, up = F.linear(rms_norm(hidden, norm, self._eps), gate_up).chunk(2, dim=-1)
        return F.silu(gate) * up

    def select_sampled(self, value: torch.Tensor) -> torch.Tensor:
        """See ``Operations``."""
        return value[self._batch.sampled_tokens]

    def norm_head(
        self, hidden: torch.Tensor, norm: torch.Tensor, head: torch.Tensor
    ) -> torch.Tensor:
        """See ``Operations``."""
        return F.linear(rms_norm(hidden, norm, self._eps), head).float()
