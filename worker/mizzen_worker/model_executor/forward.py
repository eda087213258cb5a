"""Owns the protocol between the runner and whatever computes a step, and its plain-torch form."""

from typing import Protocol

import torch

from mizzen_worker.attention.base import AttentionBackend
from mizzen_worker.layers.ranks import LONE_RANK, Ranks
from mizzen_worker.layers.torch_operations import TorchOperations, TorchWeight
from mizzen_worker.memory.device_pool import DevicePool
from mizzen_worker.memory.forward_batch import ForwardBatch
from mizzen_worker.models.registry import Model


class Forward(Protocol):
    """Runs one step of the model."""

    def run(self, batch: ForwardBatch) -> torch.Tensor:
        """Logits [num_sampled, vocab] float32; writes the KV of all tokens into the pool.

        The result is valid until the next call.
        """
        ...


class EagerForward:
    """One torch call after the other."""

    def __init__(
        self,
        model: Model[TorchWeight],
        pool: DevicePool,
        attention: AttentionBackend,
        table: torch.Tensor,
        eps: float,
        ranks: Ranks = LONE_RANK,
    ) -> None:
        self._ranks = ranks
        self._model = model
        self._pool = pool
        self._attention = attention
        self._table = table
        self._eps = eps

    def run(self, batch: ForwardBatch) -> torch.Tensor:
        """See ``Forward``."""
        attend = self._attention.begin(batch).attend
        ops = TorchOperations(batch, self._pool, attend, self._table, self._eps, self._ranks)
        return self._model.forward(ops)
