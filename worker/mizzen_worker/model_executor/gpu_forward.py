"""Owns the forward over GPU operations: which regime computes a step, and what the head gives.

A regime is one class of operations, tuned for a range of tokens: one, a few, many. Models know
nothing of it; neither does whoever runs the forward, eagerly or captured in a graph.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from mizzen_worker.attention.base import AttentionBackend
from mizzen_worker.layers.gpu.once_operations import OnceOperations
from mizzen_worker.layers.gpu.step import GpuSettings, GpuStep, HeadOutput, HeadResult
from mizzen_worker.layers.gpu.weights import GpuWeight
from mizzen_worker.layers.operations import Operations
from mizzen_worker.memory.device_pool import DevicePool
from mizzen_worker.memory.forward_batch import ForwardBatch
from mizzen_worker.models.registry import Model

GpuOperations = Callable[[GpuStep], Operations[Any, GpuWeight]]
"""A class of operations: made for one forward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Regimes:
    """Operations by number of tokens: 1; 2 to ``max_skinny_tokens``; more.

    ``is_chained``: their launches may be dependent ones.
    """

    one: GpuOperations
    skinny: GpuOperations
    large: GpuOperations
    max_skinny_tokens: int
    is_chained: bool = True

    def for_tokens(self, num_tokens: int) -> GpuOperations:
        """The regime of a step."""
        if num_tokens == 1:
            return self.one
        return self.skinny if num_tokens <= self.max_skinny_tokens else self.large


class CapturableForward(Protocol):
    """A forward that a graph may capture: it looks at no value on the device."""

    def run_head(self, batch: ForwardBatch, head: HeadResult, *, is_dependent: bool) -> HeadOutput:
        """Run one step; writes the KV of all tokens into the pool."""
        ...

    def rehearse_head(
        self, batch: ForwardBatch, head: HeadResult, *, is_dependent: bool
    ) -> HeadOutput:
        """Launch every kernel of ``run_head`` at least once; numbers mean nothing.

        It takes the host a fraction of ``run_head``, and writes no more KV than that.
        """
        ...


class GpuForward:
    """One launch after the other on the current stream."""

    def __init__(
        self,
        model: Model[GpuWeight],
        pool: DevicePool,
        attention: AttentionBackend,
        settings: GpuSettings,
        regimes: Regimes,
    ) -> None:
        self._model = model
        self._pool = pool
        self._attention = attention
        self._settings = settings
        self._regimes = regimes

    def run(self, batch: ForwardBatch) -> torch.Tensor:
        """See ``Forward``."""
        step = self._step(batch, HeadResult.LOGITS, is_dependent=False, is_exact=True)
        logits = self._run(step).logits
        if logits is None:
            message = "the head gave no logits although these were asked for"
            raise RuntimeError(message)
        return logits

    def run_head(self, batch: ForwardBatch, head: HeadResult, *, is_dependent: bool) -> HeadOutput:
        """See ``CapturableForward``."""
        return self._run(self._step(batch, head, is_dependent=is_dependent, is_exact=False))

    def rehearse_head(
        self, batch: ForwardBatch, head: HeadResult, *, is_dependent: bool
    ) -> HeadOutput:
        """See ``CapturableForward``."""
        step = self._step(batch, head, is_dependent=is_dependent, is_exact=False)
        operations = self._regimes.for_tokens(batch.num_tokens)(step)
        output: HeadOutput = self._model.forward(
            OnceOperations(operations, self._pool.shape.num_layers)
        )
        return output

    def _step(
        self, batch: ForwardBatch, head: HeadResult, *, is_dependent: bool, is_exact: bool
    ) -> GpuStep:
        """``is_exact``: the host arrays of the batch are no bounds; see ``GpuStep``."""
        is_dependent = is_dependent and self._regimes.is_chained
        return GpuStep(
            batch=batch,
            pool=self._pool,
            attend=self._attention.begin(batch, is_dependent=is_dependent).attend,
            settings=self._settings,
            head=head,
            is_dependent=is_dependent,
            begin_attention=lambda other: self._attention.begin(other).attend,
            is_exact=is_exact,
        )

    def _run(self, step: GpuStep) -> HeadOutput:
        operations = self._regimes.for_tokens(step.batch.num_tokens)(step)
        output: HeadOutput = self._model.forward(operations)
        return output
