"""Owns what the attention kernels have in common: how one tile of keys and values is taken in.

Knows no page table and no grid. Softmax is online and in base 2: per query row ``top`` (the largest
score so far), ``total`` (sum of weights) and ``acc`` (weighted values, not yet divided). A row that
has seen nothing has ``top`` EMPTY and ``total`` 0; EMPTY is finite, so that no NaN can arise from
the difference of two of them, and masked scores are -inf, so that their weight is 0 beside it.
"""

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from mizzen_worker.kernels.gpu.base_two import LOG2E

EMPTY = tl.constexpr(-1.0e30)
LEAST_SEEN = tl.constexpr(-1.0e29)
"""Tells the log of a sum that exists from EMPTY."""

IEEE = "ieee"
"""Products of float32 are not rounded to TF32; for other types it means nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRule:
    """How scores are made of products; the same for all rows of a call.

    ``scale`` multiplies query times key (natural logarithm). ``window``: a token sees itself and
    the ``window - 1`` positions before it. ``soft_cap`` > 0 bounds scores: cap * tanh(score / cap).
    ``sinks`` [num_heads] any float dtype, device: a logit per head that takes its part of the sum
    and has no value. ``key_scale`` and ``value_scale`` are what stored keys and values are
    multiplied with (a quantised cache), else 1.
    """

    scale: float
    window: int | None = None
    soft_cap: float = 0.0
    sinks: torch.Tensor | None = None
    key_scale: float = 1.0
    value_scale: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PagedRows:
    """Rows with one new token each, and where their KV lies; all on the device.

    ``page_table`` [slots, max_pages] int32; ``row_slots`` [num_rows] int64; ``row_lengths``
    [num_rows] int32, the new token included; a row of length 0 gives zeros.
    """

    page_table: torch.Tensor
    row_slots: torch.Tensor
    row_lengths: torch.Tensor
    page_size: int


@triton.jit
def attend_tile(
    query,
    key,
    value,
    is_visible,
    scale,
    top,
    total,
    acc,
    SOFT_CAP: tl.constexpr,
    PRECISION: tl.constexpr,
):
    """Take in one tile. ``scale`` is the rule's times LOG2E; ``is_visible`` broadcasts to scores.

    Rows of ``query`` [M, D], ``key`` and ``value`` [N, D]; gives the new top, total and acc.
    """
    scores = tl.dot(query, tl.trans(key), input_precision=PRECISION)
    if SOFT_CAP > 0:
        # tanh(x) = 1 - 2 / (1 + e^2x), which is exact at both ends; e^2x = 2^(2x LOG2E).
        scores = 1.0 - 2.0 / (1.0 + tl.exp2(scores * (2.0 * scale / SOFT_CAP)))
        unit = SOFT_CAP * LOG2E
    else:
        unit = scale
    scores = tl.where(is_visible, scores, float("-inf"))
    new_top = tl.maximum(top, tl.max(scores, axis=1) * unit)
    weights = tl.exp2(scores * unit - new_top[:, None])
    keep = tl.exp2(top - new_top)
    total = total * keep + tl.sum(weights, axis=1)
    acc = tl.dot(weights.to(value.dtype), value, acc * keep[:, None], input_precision=PRECISION)
    return new_top, total, acc


@triton.jit
def log_of_sum(top, total):
    """Logarithm, base 2, of the sum of a row's weights; EMPTY where it has seen nothing."""
    return tl.where(total > 0, top + tl.log2(tl.where(total > 0, total, 1.0)), EMPTY)


@triton.jit
def divided(acc, total):
    """The weighted mean; zeros where a row has seen nothing."""
    return acc / tl.where(total > 0, total, 1.0)[:, None]
