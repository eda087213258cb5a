"""Owns random numbers that are a pure function of (seed, position); holds no generator.

Two rounds of a 64-bit finaliser (the constants of SplitMix64) in wrapping int64 arithmetic, so a
request draws the same numbers in any batch, on any worker and after a resume.
"""

import torch

_GOLDEN = -7046029254386353131
_FIRST = -4658895280553007687
_SECOND = -7723592293110705685


def _shift_right(value: torch.Tensor, bits: int) -> torch.Tensor:
    """Logical shift of int64."""
    return (value >> bits) & ((1 << (64 - bits)) - 1)


def _mix(value: torch.Tensor) -> torch.Tensor:
    value = (value ^ _shift_right(value, 30)) * _FIRST
    value = (value ^ _shift_right(value, 27)) * _SECOND
    return value ^ _shift_right(value, 31)


def uniform(seeds: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """``seeds`` and ``positions`` [n] int64; returns [n] float64 in [0, 1)."""
    keyed = _mix(seeds + _GOLDEN)
    mixed = _mix(keyed ^ (positions * _GOLDEN + _FIRST))
    return _shift_right(mixed, 11).double() * 2.0**-53
