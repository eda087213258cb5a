"""Owns the device functions of tokens' weights and of inverting their sums; launches nothing.

A weight is exp2((logit - largest) * scale): 1 for the best token, 0 for minus infinity.
"""

import triton
import triton.language as tl

BLOCK = tl.constexpr(128)
"""Ids that lie in one block."""


@triton.jit
def weigh(value, largest, scale):
    """Unnormalised probability."""
    return tl.exp2((value - largest) * scale)


@triton.jit
def weigh_kept(value, column, largest, scale, cut, last_id, least_weight):
    """Weights of kept tokens, 0 for others.

    Kept: above ``cut``, or equal to it with an id up to ``last_id``; and not below
    ``least_weight``.
    """
    weight = weigh(value, largest, scale)
    is_kept = (value > cut) | ((value == cut) & (column <= last_id))
    return tl.where(is_kept & (weight >= least_weight), weight, 0.0)


@triton.jit
def locate(weights, start, target, N: tl.constexpr):
    """The first of [N] float64 weights whose end exceeds the target, and the sum before it.

    Sums begin with ``start``. Where rounding leaves none, the last one that is not 0.
    """
    index = tl.arange(0, N)
    ends = tl.cumsum(weights, 0) + start
    first = tl.min(tl.where((ends > target) & (weights > 0), index, N), 0)
    last = tl.max(tl.where(weights > 0, index, 0), 0)
    chosen = tl.minimum(first, last)
    before = tl.sum(tl.where(index == chosen - 1, ends, 0.0), 0)
    return chosen, tl.where(chosen == 0, start, before)
