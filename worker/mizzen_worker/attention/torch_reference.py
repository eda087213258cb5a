"""Owns the meaning of paged attention: one token and one head at a time; not for serving."""

import torch

from mizzen_worker.attention.base import StepAttention
from mizzen_worker.kernels.reference.paged_attention import attend_one
from mizzen_worker.memory.device_pool import DevicePool
from mizzen_worker.memory.forward_batch import ForwardBatch


class _ReferenceStep:
    def __init__(self, pool: DevicePool, batch: ForwardBatch) -> None:
        self._pool = pool
        self._batch = batch

    def attend(
        self, layer: int, queries: torch.Tensor, window: int | None, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """See ``StepAttention``."""
        batch = self._batch
        keys, values = self._pool.keys(layer), self._pool.values(layer)
        output = torch.empty_like(queries) if out is None else out.view(queries.shape)
        for row in range(batch.num_rows):
            locations = batch.row_locations(row)
            for token in range(int(batch.row_starts[row]), int(batch.row_starts[row + 1])):
                after = int(batch.positions[token]) + 1
                visible = locations[0 if window is None else max(0, after - window) : after]
                output[token] = attend_one(queries[token], keys[visible], values[visible])
        return output.flatten(1)


class TorchReferenceAttention:
    """Slow and obvious."""

    def __init__(self, pool: DevicePool) -> None:
        self._pool = pool

    def begin(self, batch: ForwardBatch, *, is_dependent: bool = False) -> StepAttention:  # noqa: ARG002
        """See ``AttentionBackend``."""
        return _ReferenceStep(self._pool, batch)
