"""Owns the device function of a random number by (seed, position); holds no generator.

The same bits as ``sampler/counter_random.py``, which says what they are.
"""

import triton
import triton.language as tl

_GOLDEN = tl.constexpr(-7046029254386353131)
_FIRST = tl.constexpr(-4658895280553007687)
_SECOND = tl.constexpr(-7723592293110705685)


@triton.jit
def _shift_right(value, bits: tl.constexpr):
    """Logical shift of int64."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


@triton.jit
def _mix(value):
    value = (value ^ _shift_right(value, 30)) * _FIRST
    value = (value ^ _shift_right(value, 27)) * _SECOND
    return value ^ _shift_right(value, 31)


@triton.jit
def uniform(seed, position):
    """The float64 in [0, 1) of ``sampler/counter_random.py``, of int64 numbers."""
    keyed = _mix(seed + _GOLDEN)
    mixed = _mix(keyed ^ (position * _GOLDEN + _FIRST))
    return _shift_right(mixed, 11).to(tl.float64) * 1.1102230246251565e-16
