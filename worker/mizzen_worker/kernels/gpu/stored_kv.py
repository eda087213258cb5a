"""Owns how a value becomes one of the KV pool; knows no pool and stores nothing.

An FP8 pool (e4m3) holds a key or value divided by its layer's scale, so whoever reads it multiplies
by that. What lies beyond +-448, the largest number of the type, becomes that number: the hardware's
conversion does so, but not every conversion is the hardware's. NaN stays NaN.
"""

import torch
import triton
import triton.language as tl

from mizzen_worker.kernels.fp8_matrix import FP8, LARGEST

_LARGEST = tl.constexpr(LARGEST)


@triton.jit
def to_stored(value, inverse_scale, TYPE: tl.constexpr):
    """``value`` float32 as the pool's ``TYPE`` holds it."""
    if TYPE.primitive_bitwidth == 8:
        value = value * inverse_scale
        value = tl.clamp(value, -_LARGEST, _LARGEST, propagate_nan=tl.PropagateNan.ALL)
    return value.to(TYPE)


def require_scaled(pool_dtype: torch.dtype, *scales: float) -> None:
    """Raise ``ValueError`` for scales that the pool's type does not go with."""
    if any(scale <= 0 for scale in scales):
        message = f"scales of keys and values are above 0, not {scales}"
        raise ValueError(message)
    if pool_dtype != FP8 and any(scale != 1.0 for scale in scales):
        message = f"a pool of {pool_dtype} has no scales; {scales} are for {FP8}"
        raise ValueError(message)
