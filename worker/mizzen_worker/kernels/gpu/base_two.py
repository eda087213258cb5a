"""Owns the constant by which kernels turn exponentials and logarithms into those of base two."""

import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)
"""log2(e): exp(x) = exp2(x * LOG2E); the hardware has base two only."""
