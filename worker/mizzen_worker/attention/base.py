"""Owns the protocol between operations and attention backends; computes nothing.

A backend is chosen once per process; ``begin`` prepares what all layers of one step share.
"""

from typing import Protocol

import torch

from mizzen_worker.memory.forward_batch import ForwardBatch


class StepAttention(Protocol):
    """Attention of one step."""

    def attend(
        self, layer: int, queries: torch.Tensor, window: int | None, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Causal attention of every token over its row's KV, which is already in the pool.

        ``queries`` [num_tokens, num_heads, head_dim]; returns [num_tokens, num_heads * head_dim]
        of the same dtype, in ``out`` (contiguous) where one is given. With a ``window`` a token
        sees itself and the ``window - 1`` positions before it. Mutates nothing outside this step.
        """
        ...


class AttentionBackend(Protocol):
    """One way of computing attention over the pool."""

    def begin(self, batch: ForwardBatch, *, is_dependent: bool = False) -> StepAttention:
        """Prepare a step; mutates nothing.

        ``is_dependent``: kernels may be launched with PDL; a backend without such ones ignores it.
        """
        ...
