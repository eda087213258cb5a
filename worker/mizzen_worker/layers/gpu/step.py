"""Owns what GPU implementations of ``Operations`` are made with and give back; computes nothing.

One object of operations lives for one forward, eager or captured. Captured ones are replayed with
other contents of the very same tensors, so an implementation never looks at a device value, and
sizes grids by the host arrays of the ``ForwardBatch`` (in a captured batch: the bucket's bounds).
"""

import enum
from collections.abc import Callable
from dataclasses import dataclass

import torch

from mizzen_worker.layers.operations import AttendFunction
from mizzen_worker.memory.device_pool import DevicePool
from mizzen_worker.memory.forward_batch import ForwardBatch


class HeadResult(enum.Enum):
    """What ``norm_head`` gives: all logits, or the best of each block of the vocabulary."""

    LOGITS = "logits"
    BEST = "best"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSettings:
    """Facts of the model that kernels need; ``table`` as of ``rotary_table``, on the device.

    ``expert_counts``: where steps of few tokens count experts, see ``ExpertTally``.
    """

    num_heads: int
    num_kv_heads: int
    head_dim: int
    eps: float
    table: torch.Tensor
    expert_counts: torch.Tensor | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuStep:
    """One forward. ``is_dependent``: kernels are launched with PDL where the device has it.

    ``begin_attention`` gives attention of another batch over the same pool: of the sampled tokens
    alone, in the last layer. Without it every token is attended to there. ``is_exact``: the host
    arrays of the batch are the step's own, not a bucket's bounds.
    """

    batch: ForwardBatch
    pool: DevicePool
    attend: AttendFunction
    settings: GpuSettings
    head: HeadResult = HeadResult.LOGITS
    is_dependent: bool = False
    begin_attention: Callable[[ForwardBatch], AttendFunction] | None = None
    is_exact: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadOutput:
    """What ``norm_head`` returns; one of the two forms is there, by ``GpuStep.head``.

    ``logits`` [n, vocab] float32. ``best_values`` [n, blocks] float32 and ``best_ids`` [n, blocks]
    int32: the largest logit of each block of the vocabulary (NaN where a logit is NaN) and the
    lowest id that has it. Blocks are in the order of their ids.
    """

    logits: torch.Tensor | None = None
    best_values: torch.Tensor | None = None
    best_ids: torch.Tensor | None = None
